// SPDX-License-Identifier: Apache-2.0
// Norm, clamp and rotation of heads, and the write to the KV cache.
#include "kernels/cuda/kv/rope_kv.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

struct Shape {
  int32_t heads, kv_heads, head_dim;
  bool has_norm;
  float clip;
  FloatFormat cache, query;
  bool whole_row = false;
  int32_t rotary_dim = 0;  // 0: all of a head
};

float read(const DeviceArray<uint8_t>& bytes, FloatFormat format, size_t i) {
  if (format == FloatFormat::kF32) {
    float value;
    std::memcpy(&value, bytes.data() + 4 * i, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, bytes.data() + 2 * i, 2);
  return format == FloatFormat::kF16 ? widen_f16(half) : widen_bf16(half);
}

float rounded(FloatFormat format, float value) {
  if (format == FloatFormat::kF16) return widen_f16(narrow_f16(value));
  if (format == FloatFormat::kBF16) return widen_bf16(narrow_bf16(value));
  return value;
}

void expect_portable(const Shape& shape, uint64_t seed) {
  emulator::set_seed(seed);
  Random random(static_cast<uint32_t>(seed));
  const int32_t d = shape.head_dim, tokens = 4, context = 200, blocks = 7;
  const int32_t rotary = shape.rotary_dim == 0 ? d : shape.rotary_dim, half = rotary / 2;
  const std::vector<int32_t> positions = {0, 63, 64, 150};
  const std::vector<int32_t> sequences = {1, 0, 0, 1};
  // Blocks of two sequences of four blocks each; some entries are no block and are not read.
  const std::vector<int32_t> tables = {3, 6, -1, -1, -1, 5, -1, 2, -1, -1};
  const DeviceArray<int32_t> device_tables(tables);
  const int64_t width = static_cast<int64_t>(shape.heads + 2 * shape.kv_heads) * d;
  const int64_t stride = width + 3;
  const DeviceArray<float> qkv(random.normals(static_cast<size_t>(tokens * stride)));
  const int32_t query_width = shape.whole_row ? shape.heads * d : d;
  const int32_t key_width = shape.whole_row ? shape.kv_heads * d : d;
  const DeviceArray<float> query_norm(random.normals(static_cast<size_t>(query_width)));
  const DeviceArray<float> key_norm(random.normals(static_cast<size_t>(key_width)));
  const DeviceArray<float> cos(random.normals(static_cast<size_t>(context * half)));
  const DeviceArray<float> sin(random.normals(static_cast<size_t>(context * half)));
  const DeviceArray<int32_t> device_positions(positions), device_sequences(sequences);
  const auto cache_elements = static_cast<size_t>(blocks * shape.kv_heads * kKvBlock * d);
  DeviceArray<uint8_t> keys(cache_elements * static_cast<size_t>(element_bytes(shape.cache)));
  DeviceArray<uint8_t> values(keys.size());
  const auto query_elements = static_cast<size_t>(tokens * shape.heads * d);
  DeviceArray<uint8_t> query(query_elements * static_cast<size_t>(element_bytes(shape.query)));
  RopeKv step{.heads = shape.heads, .qkv = qkv.data(), .qkv_stride = stride};
  if (shape.has_norm) {
    step.query_norm = query_norm.data();
    step.key_norm = key_norm.data();
  }
  step.norm_whole_row = shape.whole_row;
  step.eps = 1e-6f;
  step.clip = shape.clip;
  step.rotary_dim = rotary;
  step.cos = cos.data();
  step.sin = sin.data();
  step.positions = device_positions.data();
  step.blocks = {device_tables.data(), 5, device_sequences.data()};
  step.cache = {keys.data(), values.data(), shape.cache, shape.kv_heads, d};
  step.query = query.data();
  step.query_format = shape.query;
  ASSERT_TRUE(ok(rope_kv_write(step, tokens, nullptr)));
  size_t written = 0;
  for (int32_t token = 0; token < tokens; ++token) {
    const int32_t position = positions[static_cast<size_t>(token)];
    const float* row = qkv.data() + token * stride;
    std::vector<float> normed(row, row + width);
    if (shape.has_norm && shape.whole_row) {
      float* keys_of_row = normed.data() + query_width;
      portable_kernels().rms_norm(normed.data(), query_norm.data(), 1e-6f, query_width,
                                  normed.data());
      portable_kernels().rms_norm(keys_of_row, key_norm.data(), 1e-6f, key_width, keys_of_row);
    }
    for (int32_t head = 0; head < shape.heads + 2 * shape.kv_heads; ++head) {
      const float* from = normed.data() + static_cast<int64_t>(head) * d;
      std::vector<float> x(from, from + d);
      const bool is_query = head < shape.heads, is_value = head >= shape.heads + shape.kv_heads;
      if (shape.has_norm && !shape.whole_row && !is_value) {
        portable_kernels().rms_norm(x.data(), is_query ? query_norm.data() : key_norm.data(), 1e-6f,
                                    d, x.data());
      }
      if (shape.clip > 0) {
        for (float& value : x) value = std::clamp(value, -shape.clip, shape.clip);
      }
      if (!is_value) {
        portable_kernels().rope(x.data(), cos.data() + position * half,
                                sin.data() + position * half, rotary);
      }
      const int32_t block = tables[static_cast<size_t>(sequences[static_cast<size_t>(token)] * 5 +
                                                       position / kKvBlock)];
      const int32_t kv_head = (head - shape.heads) % shape.kv_heads;
      for (int32_t i = 0; i < d; ++i) {
        const float value = x[static_cast<size_t>(i)];
        const int64_t at =
            is_query ? (static_cast<int64_t>(token) * shape.heads + head) * d + i
                     : ((static_cast<int64_t>(block) * shape.kv_heads + kv_head) * kKvBlock +
                        position % kKvBlock) *
                               d +
                           i;
        const FloatFormat format = is_query ? shape.query : shape.cache;
        const float got = read(is_query   ? query
                               : is_value ? values
                                          : keys,
                               format, static_cast<size_t>(at));
        ASSERT_TRUE(same_bits(got, rounded(format, value)))
            << "token " << token << " head " << head;
      }
      written += is_query ? 0 : static_cast<size_t>(d);
    }
  }
  // Nothing else of the cache was touched: what is left is the poison.
  size_t poisoned = 0;
  for (size_t i = 0; i < cache_elements; ++i) {
    poisoned += std::isnan(read(keys, shape.cache, i)) ? 1 : 0;
    poisoned += std::isnan(read(values, shape.cache, i)) ? 1 : 0;
  }
  EXPECT_EQ(poisoned + written, 2 * cache_elements);
}

TEST(CudaRopeKv, HasThePortableBits) {
  uint64_t seed = 0;
  const FloatFormat f32 = FloatFormat::kF32, f16 = FloatFormat::kF16, bf16 = FloatFormat::kBF16;
  for (const Shape& shape :
       {Shape{4, 2, 64, false, 0, f32, f32}, Shape{3, 1, 128, true, 0, bf16, bf16},
        Shape{5, 5, 18, true, 0.5f, f16, f32}, Shape{1, 1, 2, false, 0.7f, bf16, f16},
        Shape{8, 2, 96, true, 0, f16, bf16}, Shape{2, 1, 256, true, 1.0f, f32, f16},
        Shape{6, 3, 16, true, 0.4f, f32, f32, true}, Shape{16, 4, 90, true, 0, bf16, f16, true},
        Shape{1, 1, 2, true, 0, f16, f32, true}, Shape{4, 2, 32, false, 0, f32, f32, false, 16},
        Shape{3, 1, 128, true, 0, bf16, f32, false, 64},
        Shape{2, 2, 30, true, 0.4f, f16, f32, false, 2},
        Shape{2, 1, 72, true, 0, f32, bf16, true, 70}}) {
    expect_portable(shape, ++seed);
  }
}

// Takes a head's row out of a plane, and of integers its scale: all bits are set there then.
std::vector<uint8_t> take(const KvCache& cache, DeviceArray<uint8_t>& plane, int32_t block,
                          int32_t kv_head, int32_t position) {
  const int64_t row = cache.head_dim * kv_element_bytes(cache), offset = position % kKvBlock;
  uint8_t* const head =
      plane.data() + (int64_t{block} * cache.kv_heads + kv_head) * kv_head_bytes(cache);
  std::vector<uint8_t> bytes;
  const auto take_part = [&](uint8_t* from, int64_t count) {
    bytes.insert(bytes.end(), from, from + count);
    std::fill_n(from, count, uint8_t{0xff});
  };
  take_part(head + offset * row, row);
  if (cache.is_integers) take_part(head + kKvBlock * row + offset * 4, 4);
  return bytes;
}

TEST(CudaRopeKv, WritesTokensToTheBranchesThatSeeThem) {
  const int32_t d = 16, heads = 4, kv_heads = 2, tokens = 3, spans = 260, stride = 3;
  std::vector<int32_t> tables;  // each span has blocks of its own
  for (int32_t i = 0; i < spans * stride; ++i) tables.push_back(spans * stride - 1 - i);
  const std::vector<int32_t> positions = {63, 64, 130}, sequences = {1, 2, 0};
  // Spans that see a token, up to the 256th behind its own.
  const std::vector<std::vector<int32_t>> seen_by = {{2, 34, 257}, {}, {1, 31, 32, 33, 256}};
  std::vector<uint32_t> bits(static_cast<size_t>(tokens * kBranchWords));
  for (size_t token = 0; token < seen_by.size(); ++token) {
    for (const int32_t span : seen_by[token]) {
      const auto bit = static_cast<size_t>(span - sequences[token] - 1);
      bits[token * kBranchWords + bit / 32] |= 1U << bit % 32;
    }
  }
  for (const bool is_integers : {false, true}) {
    emulator::set_seed(is_integers ? 2 : 1);
    Random random(5);
    const int64_t width = (heads + 2 * kv_heads) * d;
    const DeviceArray<float> qkv(random.normals(static_cast<size_t>(tokens * width)));
    const DeviceArray<float> cos(random.normals(200 * d / 2)), sin(random.normals(200 * d / 2));
    const DeviceArray<int32_t> device_tables(tables), device_positions(positions);
    const DeviceArray<int32_t> device_sequences(sequences);
    const DeviceArray<uint32_t> branches(bits);
    KvCache cache{nullptr, nullptr, FloatFormat::kBF16, kv_heads, d, is_integers};
    const auto bytes = static_cast<size_t>(spans * stride * kv_heads * kv_head_bytes(cache));
    DeviceArray<uint8_t> keys(bytes), values(bytes);
    cache.keys = keys.data();
    cache.values = values.data();
    DeviceArray<float> query(static_cast<size_t>(tokens * heads * d));
    RopeKv step{.heads = heads, .qkv = qkv.data(), .qkv_stride = width};
    step.rotary_dim = d;
    step.cos = cos.data();
    step.sin = sin.data();
    step.positions = device_positions.data();
    step.blocks = {device_tables.data(), stride, device_sequences.data()};
    step.branches = branches.data();
    step.cache = cache;
    step.query = query.data();
    ASSERT_TRUE(ok(rope_kv_write(step, tokens, nullptr)));
    for (size_t token = 0; token < positions.size(); ++token) {
      const int32_t position = positions[token];
      for (int32_t head = 0; head < kv_heads; ++head) {
        for (DeviceArray<uint8_t>* plane : {&keys, &values}) {
          const auto taken = [&](int32_t span) {
            const int32_t entry = span * stride + position / kKvBlock;
            return take(cache, *plane, tables[static_cast<size_t>(entry)], head, position);
          };
          const std::vector<uint8_t> own = taken(sequences[token]);
          EXPECT_NE(own, std::vector<uint8_t>(own.size(), 0xff));
          for (const int32_t span : seen_by[token]) {
            EXPECT_EQ(taken(span), own) << "token " << token << ", span " << span;
          }
        }
      }
    }
    for (const DeviceArray<uint8_t>* plane : {&keys, &values}) {
      EXPECT_EQ(std::count(plane->data(), plane->data() + bytes, uint8_t{0xff}),
                static_cast<ptrdiff_t>(bytes))
          << "nothing else was written";
    }
  }
}

TEST(CudaRopeKv, AgainstDouble) {
  Random random(17);
  const int32_t d = 20;
  const DeviceArray<float> qkv(random.normals(3 * d)), norm(random.normals(d));
  DeviceArray<float> cos(d / 2), sin(d / 2), query(d), keys(kKvBlock * d), values(kKvBlock * d);
  for (size_t i = 0; i < d / 2; ++i) {
    cos[i] = std::cos(0.3f * static_cast<float>(i));
    sin[i] = std::sin(0.3f * static_cast<float>(i));
  }
  const DeviceArray<int32_t> zero(std::vector<int32_t>{0});
  RopeKv step{.heads = 1, .qkv = qkv.data(), .qkv_stride = 3 * d, .query_norm = norm.data()};
  step.eps = 1e-6f;
  step.rotary_dim = d;
  step.cos = cos.data();
  step.sin = sin.data();
  step.positions = zero.data();
  step.blocks = {zero.data(), 1, zero.data()};
  step.cache = {keys.data(), values.data(), FloatFormat::kF32, 1, d};
  step.query = query.data();
  ASSERT_TRUE(ok(rope_kv_write(step, 1, nullptr)));
  std::vector<double> x;
  double squares = 0;
  for (size_t i = 0; i < d; ++i) squares += double{qkv[i]} * qkv[i];
  for (size_t i = 0; i < d; ++i) {
    x.push_back(qkv[i] / std::sqrt(squares / d + 1e-6) * norm[i]);
  }
  std::vector<double> reference(d);
  for (size_t i = 0; i < d / 2; ++i) {
    const double angle = double{0.3f} * static_cast<double>(i);
    reference[i] = x[i] * std::cos(angle) - x[i + d / 2] * std::sin(angle);
    reference[i + d / 2] = x[i + d / 2] * std::cos(angle) + x[i] * std::sin(angle);
  }
  EXPECT_LT(relative_distance(query.to_vector(), reference), 1e-6);
}

TEST(CudaRopeKv, RefusesWhatItCannotDo) {
  RopeKv step{.heads = 1};
  step.cache.kv_heads = 1;
  for (const int32_t head_dim : {0, 7, 258}) {
    step.cache.head_dim = head_dim;
    EXPECT_EQ(rope_kv_write(step, 1, nullptr).code, kInvalidArguments);
  }
  step.cache.head_dim = 8;
  for (const int32_t rotary_dim : {0, 3, 10}) {
    step.rotary_dim = rotary_dim;
    EXPECT_EQ(rope_kv_write(step, 1, nullptr).code, kInvalidArguments);
  }
  step.rotary_dim = 8;
  EXPECT_EQ(rope_kv_write(step, 0, nullptr).code, kInvalidArguments);
  step.cache.kv_heads = 0;
  EXPECT_EQ(rope_kv_write(step, 1, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
