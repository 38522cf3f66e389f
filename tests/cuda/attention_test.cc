// SPDX-License-Identifier: Apache-2.0
// Paged attention: the portable CPU kernel's bits, and the same bits for a token in whatever tile.
#include "kernels/cuda/attention/attention_mma.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

const KvKernels& cpu_kernels_of(FloatFormat format) {
  return *find_kv_kernels(portable_kernels(), format == FloatFormat::kF32   ? "f32"
                                              : format == FloatFormat::kF16 ? "f16"
                                                                            : "bf16");
}

struct Shape {
  FloatFormat format;
  int32_t head_dim, kv_heads, group;
};

/// Sequences in one paged store on the "device", and each in a CPU store beside it. What was never
/// written is NaN.
class Stores {
 public:
  Stores(Random& random, const Shape& shape, std::vector<int32_t> lengths)
      : shape_(shape), lengths_(std::move(lengths)) {
    const int64_t most = *std::max_element(lengths_.begin(), lengths_.end());
    table_stride_ = (most + kKvBlock - 1) / kKvBlock + 1;
    const auto sequences = static_cast<int32_t>(lengths_.size());
    const int64_t blocks = sequences * table_stride_ + 2;
    const auto order = random.permutation(static_cast<int32_t>(blocks));
    tables_.assign(order.begin(), order.begin() + sequences * table_stride_);
    const int64_t elements = blocks * shape.kv_heads * kKvBlock * shape.head_dim;
    const int64_t bytes = element_bytes(shape.format) * elements;
    keys_ = std::make_unique<DeviceArray<uint8_t>>(static_cast<size_t>(bytes));
    values_ = std::make_unique<DeviceArray<uint8_t>>(static_cast<size_t>(bytes));
    cpu_keys_.assign(static_cast<size_t>(bytes), 0xff);
    cpu_values_.assign(static_cast<size_t>(bytes), 0xff);
    for (int32_t s = 0; s < sequences; ++s) {
      for (int32_t p = 0; p < lengths_[static_cast<size_t>(s)]; ++p) write(random, s, p);
    }
  }
  KvCache paged() {
    return {keys_->data(), values_->data(), shape_.format, shape_.kv_heads, shape_.head_dim};
  }
  KvView cpu() {
    return {cpu_keys_.data(), cpu_values_.data(), shape_.kv_heads, shape_.head_dim, kKvBlock};
  }
  const int32_t* table(int32_t sequence) const { return tables_.data() + sequence * table_stride_; }
  const std::vector<int32_t>& tables() const { return tables_; }
  int64_t table_stride() const { return table_stride_; }
  /// Element d of a key (or value) in double.
  double at(bool value, int32_t sequence, int32_t position, int32_t head, int32_t d) {
    const uint8_t* from = (value ? values_ : keys_)->data() + bytes_at(sequence, position, head);
    if (shape_.format == FloatFormat::kF32) return reinterpret_cast<const float*>(from)[d];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(from)[d];
    return shape_.format == FloatFormat::kF16 ? widen_f16(bits) : widen_bf16(bits);
  }

 private:
  int64_t bytes_at(int32_t sequence, int32_t position, int32_t head) const {
    const int64_t block = table(sequence)[position / kKvBlock];
    const int64_t row = (block * shape_.kv_heads + head) * kKvBlock + position % kKvBlock;
    return row * shape_.head_dim * element_bytes(shape_.format);
  }
  void write(Random& random, int32_t sequence, int32_t position) {
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const auto n = static_cast<size_t>(shape_.head_dim);
      const auto key = random.normals(n), value = random.normals(n);
      cpu_kernels_of(shape_.format)
          .write(cpu(), table(sequence)[position / kKvBlock], position % kKvBlock, head, key.data(),
                 value.data());
      for (const bool is_value : {false, true}) {
        uint8_t* to = (is_value ? values_ : keys_)->data() + bytes_at(sequence, position, head);
        for (size_t d = 0; d < n; ++d) {
          const float x = is_value ? value[d] : key[d];
          if (shape_.format == FloatFormat::kF32) {
            memcpy(to + 4 * d, &x, 4);
          } else {
            const uint16_t bits =
                shape_.format == FloatFormat::kF16 ? narrow_f16(x) : narrow_bf16(x);
            memcpy(to + 2 * d, &bits, 2);
          }
        }
      }
    }
  }

  Shape shape_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> tables_;
  int64_t table_stride_ = 0;
  std::unique_ptr<DeviceArray<uint8_t>> keys_, values_;
  std::vector<uint8_t> cpu_keys_, cpu_values_;
};

/// Some tokens of the sequences, in order.
struct Batch {
  std::vector<int32_t> sequences;  // by token
  std::vector<int32_t> positions;  // by token

  void add(int32_t sequence, int32_t first, int32_t last) {
    for (int32_t p = first; p <= last; ++p) {
      sequences.push_back(sequence);
      positions.push_back(p);
    }
  }
  /// Tiles of at most `most` tokens of one sequence, and an empty one.
  std::vector<AttentionTile> tiles(int32_t most) const {
    std::vector<AttentionTile> tiles;
    for (size_t t = 0; t < sequences.size(); ++t) {
      if (t == 0 || sequences[t] != sequences[t - 1] || tiles.back().count == most) {
        tiles.push_back({static_cast<int32_t>(t), 0});
      }
      ++tiles.back().count;
    }
    tiles.push_back({0, 0});
    return tiles;
  }
};

int32_t tile_tokens(const Shape& shape, AttentionQueries rows) {
  return attention_tile_tokens(shape.kv_heads * shape.group, shape.kv_heads, rows);
}
int32_t tile_tokens(const Shape& shape, MmaRows rows) {
  return attention_mma_tile_tokens(shape.kv_heads * shape.group, shape.kv_heads, rows);
}
Status attend(const AttentionArguments& a, AttentionQueries rows) {
  return attention(a, rows, nullptr);
}
Status attend(const AttentionArguments& a, MmaRows rows) { return attention_mma(a, rows, nullptr); }

template <typename RowsOfBlock>
std::vector<float> run(Stores& stores, const Shape& shape, const Batch& batch,
                       const std::vector<float>& queries, RowsOfBlock rows, int32_t ranges) {
  const int32_t heads = shape.kv_heads * shape.group;
  const DeviceArray<float> device_queries(queries);
  const DeviceArray<int32_t> positions(batch.positions), tables(stores.tables()),
      sequences(batch.sequences);
  const auto tiles = batch.tiles(tile_tokens(shape, rows));
  const DeviceArray<AttentionTile> device_tiles(tiles);
  DeviceArray<float> out(queries.size());
  AttentionArguments a{.kv = stores.paged(),
                       .heads = heads,
                       .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                       .queries = device_queries.data(),
                       .positions = positions.data(),
                       .blocks = {tables.data(), stores.table_stride(), sequences.data()},
                       .tiles = device_tiles.data(),
                       .tile_count = static_cast<int32_t>(tiles.size()),
                       .tokens = static_cast<int32_t>(batch.positions.size()),
                       .ranges = ranges,
                       .out = out.data()};
  DeviceArray<float> scratch(static_cast<size_t>(attention_scratch_floats(a)));
  if (ranges > 1) a.scratch = scratch.data();
  EXPECT_TRUE(ok(attend(a, rows)));
  return out.to_vector();
}

std::vector<float> portable(Stores& stores, const Shape& shape, const Batch& batch,
                            const std::vector<float>& queries) {
  std::vector<float> out(queries.size());
  const int64_t n = shape.head_dim;
  for (size_t t = 0; t < batch.positions.size(); ++t) {
    for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const size_t at = (t * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(kv_head)) *
                        static_cast<size_t>(shape.group * n);
      kernels::AttentionSpan tile;
      tile.block_table = stores.table(batch.sequences[t]);
      tile.kv_head = kv_head;
      tile.position = batch.positions[t];
      tile.heads = shape.group;
      tile.scale = 1.0f / std::sqrt(static_cast<float>(n));
      tile.query = &queries[at];
      tile.out = &out[at];
      tile.query_stride = tile.out_stride = n;
      cpu_kernels_of(shape.format).attend(stores.cpu(), tile);
    }
  }
  return out;
}

TEST(CudaAttention, HasThePortableBitsInDecodeAndPrefill) {
  Random random(1);
  const Shape shapes[] = {{FloatFormat::kF32, 12, 2, 3},  {FloatFormat::kBF16, 64, 1, 8},
                          {FloatFormat::kF16, 40, 2, 1},  {FloatFormat::kBF16, 136, 1, 4},
                          {FloatFormat::kF32, 256, 1, 2}, {FloatFormat::kF16, 8, 1, 20}};
  uint64_t seed = 0;
  for (const Shape& shape : shapes) {
    Stores stores(random, shape, {150, 65, 3});
    Batch batch;
    batch.add(0, 58, 70);    // a chunk across a block's end
    batch.add(1, 64, 64);    // decode
    batch.add(2, 0, 2);      // a whole prompt
    batch.add(0, 149, 149);  // decode of a long one
    const auto queries =
        random.normals(batch.positions.size() * static_cast<size_t>(shape.kv_heads * shape.group) *
                           static_cast<size_t>(shape.head_dim),
                       2.0f);
    const auto expected = portable(stores, shape, batch, queries);
    for (const AttentionQueries rows : {AttentionQueries::k8, AttentionQueries::k16}) {
      for (const int32_t ranges : {1, 3}) {
        emulator::set_seed(++seed);
        EXPECT_TRUE(same_bits(run(stores, shape, batch, queries, rows, ranges), expected))
            << "head_dim " << shape.head_dim << " rows " << static_cast<int>(rows);
      }
    }
  }
}

/// ||out - reference|| / ||reference|| of one token, the reference in double.
double distance(Stores& stores, const Shape& shape, int32_t sequence, int32_t position,
                const std::vector<float>& query, const std::vector<float>& out) {
  double difference = 0, size = 0;
  for (int32_t head = 0; head < shape.kv_heads * shape.group; ++head) {
    const int32_t kv_head = head / shape.group;
    const float* own = &query[static_cast<size_t>(head * shape.head_dim)];
    std::vector<double> scores;
    double max = -INFINITY, sum = 0;
    for (int32_t p = 0; p <= position; ++p) {
      double score = 0;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        score += double{own[d]} * stores.at(false, sequence, p, kv_head, d);
      }
      scores.push_back(score * double{1.0f / std::sqrt(static_cast<float>(shape.head_dim))});
      max = std::max(max, scores.back());
    }
    for (double& score : scores) sum += score = std::exp(score - max);
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      double value = 0;
      for (int32_t p = 0; p <= position; ++p) {
        value += scores[static_cast<size_t>(p)] / sum * stores.at(true, sequence, p, kv_head, d);
      }
      const double got = out[static_cast<size_t>(head * shape.head_dim + d)];
      difference += (got - value) * (got - value);
      size += value * value;
    }
  }
  return std::sqrt(difference / size);
}

TEST(CudaAttention, RangesAgainstDoubleAndWhateverTheTile) {
  Random random(2);
  const Shape shape{FloatFormat::kBF16, 24, 1, 4};
  Stores stores(random, shape, {2050, 30});
  const auto row = static_cast<size_t>(shape.group * shape.head_dim);
  Batch batch;
  batch.add(0, 1021, 1026);
  batch.add(0, 2046, 2049);
  batch.add(1, 29, 29);
  const auto queries = random.normals(batch.positions.size() * row, 1.5f);
  const auto out = run(stores, shape, batch, queries, AttentionQueries::k16, 3);
  for (size_t t = 0; t < batch.positions.size(); ++t) {
    Batch alone;
    alone.add(batch.sequences[t], batch.positions[t], batch.positions[t]);
    const std::vector<float> query(queries.begin() + static_cast<int64_t>(t * row),
                                   queries.begin() + static_cast<int64_t>((t + 1) * row));
    const std::vector<float> own(out.begin() + static_cast<int64_t>(t * row),
                                 out.begin() + static_cast<int64_t>((t + 1) * row));
    const int32_t ranges = batch.positions[t] / kAttentionRange + 1;
    ASSERT_TRUE(same_bits(run(stores, shape, alone, query, AttentionQueries::k8, ranges), own))
        << "position " << batch.positions[t];
    EXPECT_LE(distance(stores, shape, batch.sequences[t], batch.positions[t], query, own), 1e-5);
  }
}

TEST(CudaAttentionMma, AgainstDoubleAndWhateverTheTile) {
  Random random(3);
  const Shape shapes[] = {{FloatFormat::kBF16, 64, 1, 8},
                          {FloatFormat::kF16, 128, 2, 4},
                          {FloatFormat::kF16, 64, 1, 1},
                          {FloatFormat::kBF16, 128, 1, 16}};
  for (const Shape& shape : shapes) {
    Stores stores(random, shape, {1100, 70, 3});
    const auto row = static_cast<size_t>(shape.kv_heads * shape.group * shape.head_dim);
    Batch batch;
    batch.add(0, 1020, 1030);
    batch.add(1, 60, 69);
    batch.add(2, 0, 2);
    auto queries = random.normals(batch.positions.size() * row, 1.5f);
    for (float& x : queries) {  // the kernel rounds them; the reference is not to be blamed
      x = shape.format == FloatFormat::kF16 ? widen_f16(narrow_f16(x)) : widen_bf16(narrow_bf16(x));
    }
    const auto out = run(stores, shape, batch, queries, MmaRows::k64, 2);
    for (size_t t = 0; t < batch.positions.size(); t += 3) {
      Batch alone;
      alone.add(batch.sequences[t], batch.positions[t], batch.positions[t]);
      const auto at = static_cast<int64_t>(t * row), end = static_cast<int64_t>((t + 1) * row);
      const std::vector<float> query(queries.begin() + at, queries.begin() + end);
      const std::vector<float> own(out.begin() + at, out.begin() + end);
      const int32_t ranges = batch.positions[t] / kAttentionRange + 1;
      ASSERT_TRUE(same_bits(run(stores, shape, alone, query, MmaRows::k16, ranges), own))
          << "position " << batch.positions[t];
      // The exponentials are rounded to 8 or 11 bits.
      EXPECT_LE(distance(stores, shape, batch.sequences[t], batch.positions[t], query, own),
                shape.format == FloatFormat::kF16 ? 5e-4 : 4e-3);
    }
  }
}

TEST(CudaAttention, RefusesWhatItCannotDo) {
  const DeviceArray<AttentionTile> tile(std::vector<AttentionTile>{{0, 0}});
  AttentionArguments a{.kv = {nullptr, nullptr, FloatFormat::kBF16, 2, 64},
                       .heads = 4,
                       .tiles = tile.data(),
                       .tile_count = 1};
  const auto refused = [&](auto change) {
    AttentionArguments changed = a;
    change(changed);
    return !ok(attention(changed, AttentionQueries::k8, nullptr));
  };
  EXPECT_FALSE(refused([](AttentionArguments&) {}));  // a tile of nothing
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.heads = 3; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.kv.head_dim = 60; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.kv.head_dim = 264; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.ranges = 2; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.tile_count = 0; }));
  AttentionArguments b = a;
  b.heads = 6;  // a group of 3
  EXPECT_EQ(attention_mma(b, MmaRows::k16, nullptr).code, kInvalidArguments);
  b.heads = 4;
  b.kv.head_dim = 96;
  EXPECT_EQ(attention_mma(b, MmaRows::k16, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
