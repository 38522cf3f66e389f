// SPDX-License-Identifier: Apache-2.0
// What the tests of attention share: ways to keep keys and values, a store of them, the answer in
// double precision.
#pragma once

#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

/// Ways to keep keys and values that every table has.
enum class KvFormat { kF32, kF16, kBF16, kI16 };
constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kI16};

inline const KvKernels& kernels_of(const CpuKernels& table, KvFormat format) {
  static constexpr const char* kNames[] = {"f32", "f16", "bf16", "i16"};
  return *find_kv_kernels(table, kNames[static_cast<size_t>(format)]);
}

inline int64_t position_bytes(KvFormat format, int32_t head_dim) {
  if (format == KvFormat::kI16) return int16_kv_bytes(head_dim);
  const bool is_wide = format == KvFormat::kF32;
  return float_kv_bytes(is_wide ? WeightFormat::kF32 : WeightFormat::kF16, head_dim);
}

/// What a row of keys or values becomes by being kept.
inline void round_to(KvFormat format, float* row, int32_t n) {
  double magnitude = 0;
  for (int32_t i = 0; i < n; ++i) magnitude = std::max<double>(magnitude, std::fabs(row[i]));
  const int32_t largest = n <= 128 ? 4095 : 2895;
  const float factor = static_cast<float>(largest) / static_cast<float>(magnitude);
  const float scale = static_cast<float>(magnitude) / static_cast<float>(largest);
  for (int32_t i = 0; i < n; ++i) {
    switch (format) {
      case KvFormat::kF16: row[i] = widen_f16(narrow_f16(row[i])); break;
      case KvFormat::kBF16: row[i] = widen_bf16(narrow_bf16(row[i])); break;
      case KvFormat::kI16: row[i] = std::nearbyint(row[i] * factor) * scale; break;
      default: break;
    }
  }
}

/// A KV store of one sequence with scattered blocks; what was never written is NaN.
struct Store {
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
  std::vector<int32_t> block_table;
  KvView view;
  KvFormat format;

  Store(Random& random, int32_t positions, int32_t kv_heads, int32_t head_dim, int32_t block_size,
        KvFormat kept = KvFormat::kF32)
      : format(kept) {
    const int32_t used = (positions + block_size - 1) / block_size;
    const int32_t blocks = used + 3;
    const size_t size = static_cast<size_t>(blocks) * kv_heads * block_size;
    // A NaN in every format of floats; integers of -1, whose scales are NaN.
    keys.assign(size * position_bytes(format, head_dim), 0xff);
    values.assign(size * position_bytes(format, head_dim), 0xff);
    block_table = random.permutation(blocks);
    block_table.resize(used);  // reading past the end would be seen by a sanitizer
    view = {keys.data(), values.data(), kv_heads, head_dim, block_size};
  }
  Store(const Store&) = delete;

  void write(const CpuKernels& table, int32_t position, int32_t kv_head, const float* key,
             const float* value) {
    kernels_of(table, format)
        .write(view, block_table[position / view.block_size], position % view.block_size, kv_head,
               key, value);
  }
};

/// Keys, values and queries of one kv head, position-major.
struct Sequence {
  int32_t positions;
  int32_t head_dim;
  std::vector<float> keys;
  std::vector<float> values;

  Sequence(Random& random, int32_t positions, int32_t head_dim)
      : positions(positions),
        head_dim(head_dim),
        keys(random.normals(static_cast<size_t>(positions) * head_dim)),
        values(random.normals(static_cast<size_t>(positions) * head_dim)) {}

  Sequence rounded(KvFormat format) const {
    Sequence result = *this;
    for (int32_t p = 0; p < positions; ++p) {
      round_to(format, &result.keys[static_cast<size_t>(p) * head_dim], head_dim);
      round_to(format, &result.values[static_cast<size_t>(p) * head_dim], head_dim);
    }
    return result;
  }

  void fill(Store* store, const CpuKernels& table, int32_t kv_head) const {
    for (int32_t p = 0; p < positions; ++p) {
      store->write(table, p, kv_head, &keys[static_cast<size_t>(p) * head_dim],
                   &values[static_cast<size_t>(p) * head_dim]);
    }
  }
};

/// `sink`: a score without a value; minus infinity: none.
inline std::vector<double> reference(const Sequence& sequence, int32_t position, const float* query,
                                     double scale, int32_t first = 0, double sink = -INFINITY) {
  const int32_t n = sequence.head_dim;
  std::vector<double> scores(position + 1), out(n, 0.0);
  double max = sink;
  for (int32_t p = first; p <= position; ++p) {
    for (int32_t d = 0; d < n; ++d) {
      scores[p] += static_cast<double>(query[d]) * sequence.keys[static_cast<size_t>(p) * n + d];
    }
    scores[p] *= scale;
    max = std::max(max, scores[p]);
  }
  double sum = std::exp(sink - max);
  for (int32_t p = first; p <= position; ++p) sum += scores[p] = std::exp(scores[p] - max);
  for (int32_t p = first; p <= position; ++p) {
    for (int32_t d = 0; d < n; ++d) {
      out[d] += scores[p] / sum * sequence.values[static_cast<size_t>(p) * n + d];
    }
  }
  return out;
}

/// queries: [tokens, heads, head_dim], of tokens from `position` on.
inline std::vector<float> run_tile(const CpuKernels& table, const Store& store, int32_t position,
                                   int32_t kv_head, const std::vector<float>& queries,
                                   int32_t tokens, int32_t window = 0,
                                   const float* sinks = nullptr) {
  const int32_t n = store.view.head_dim;
  std::vector<float> out(queries.size());
  AttentionSpan tile;
  tile.block_table = store.block_table.data();
  tile.kv_head = kv_head;
  tile.position = position;
  tile.tokens = tokens;
  tile.heads = static_cast<int32_t>(queries.size()) / (tokens * n);
  tile.scale = 1.0f / std::sqrt(static_cast<float>(n));
  tile.window = window;
  tile.sinks = sinks;
  tile.query = queries.data();
  tile.out = out.data();
  tile.query_stride = tile.out_stride = n;
  tile.query_token_stride = tile.out_token_stride = static_cast<int64_t>(tile.heads) * n;
  kernels_of(table, store.format).attend(store.view, tile);
  return out;
}

inline std::vector<float> run(const CpuKernels& table, const Store& store, int32_t position,
                              int32_t kv_head, const std::vector<float>& queries,
                              int32_t num_queries) {
  EXPECT_EQ(queries.size(), static_cast<size_t>(num_queries) * store.view.head_dim);
  return run_tile(table, store, position, kv_head, queries, 1);
}

}  // namespace
}  // namespace vitrine::kernels::testing
