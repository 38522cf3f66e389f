// SPDX-License-Identifier: Apache-2.0
// What the tests of paged attention share: stores of both sides, batches, the answer in double.
#pragma once

#include "kernels/cuda/attention/attention_mma.h"
#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {

inline const KvKernels& cpu_kernels_of(FloatFormat format) {
  return *find_kv_kernels(portable_kernels(), format == FloatFormat::kF32   ? "f32"
                                              : format == FloatFormat::kF16 ? "f16"
                                                                            : "bf16");
}

struct Shape {
  FloatFormat format;
  int32_t head_dim, kv_heads, group;
};

/// What a token sees, and what a head begins from.
struct View {
  int32_t window = 0;
  std::vector<float> sinks = {};  // [heads]; empty: none

  int32_t first_seen(int32_t position) const {
    return window == 0 ? 0 : std::max(0, position - window + 1);
  }
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
      for (int32_t p = 0; p < lengths_[static_cast<size_t>(s)]; ++p) {
        for (int32_t head = 0; head < shape.kv_heads; ++head) {
          const auto n = static_cast<size_t>(shape.head_dim);
          const auto key = random.normals(n), value = random.normals(n);
          write(s, p, head, key, value);
        }
      }
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
  /// Makes positions before `end` no numbers, and the blocks that lie wholly before it none: to
  /// read one is a fault.
  void forget(int32_t sequence, int32_t end) {
    const std::vector<float> nothing(static_cast<size_t>(shape_.head_dim), NAN);
    for (int32_t p = 0; p < end; ++p) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        write(sequence, p, head, nothing, nothing);
      }
    }
    constexpr int32_t kNoBlock = 1 << 28;
    for (int32_t block = 0; block < end / kKvBlock; ++block) {
      tables_[static_cast<size_t>(sequence * table_stride_ + block)] = kNoBlock;
    }
  }
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
  void write(int32_t sequence, int32_t position, int32_t head, const std::vector<float>& key,
             const std::vector<float>& value) {
    cpu_kernels_of(shape_.format)
        .write(cpu(), table(sequence)[position / kKvBlock], position % kKvBlock, head, key.data(),
               value.data());
    for (const bool is_value : {false, true}) {
      uint8_t* to = (is_value ? values_ : keys_)->data() + bytes_at(sequence, position, head);
      for (size_t d = 0; d < key.size(); ++d) {
        const float x = is_value ? value[d] : key[d];
        if (shape_.format == FloatFormat::kF32) {
          memcpy(to + 4 * d, &x, 4);
        } else {
          const uint16_t bits = shape_.format == FloatFormat::kF16 ? narrow_f16(x) : narrow_bf16(x);
          memcpy(to + 2 * d, &bits, 2);
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

inline int32_t tile_tokens(const Shape& shape, AttentionQueries rows) {
  return attention_tile_tokens(shape.kv_heads * shape.group, shape.kv_heads, rows);
}
inline int32_t tile_tokens(const Shape& shape, MmaRows rows) {
  return attention_mma_tile_tokens(shape.kv_heads * shape.group, shape.kv_heads, rows);
}
inline Status attend(const AttentionArguments& a, AttentionQueries rows) {
  return attention(a, rows, nullptr);
}
inline Status attend(const AttentionArguments& a, MmaRows rows) {
  return attention_mma(a, rows, nullptr);
}

template <typename RowsOfBlock>
std::vector<float> run(Stores& stores, const Shape& shape, const Batch& batch,
                       const std::vector<float>& queries, RowsOfBlock rows, int32_t ranges,
                       const View& view = {}) {
  const int32_t heads = shape.kv_heads * shape.group;
  const DeviceArray<float> device_queries(queries);
  const DeviceArray<int32_t> positions(batch.positions), tables(stores.tables()),
      sequences(batch.sequences);
  const DeviceArray<float> sinks(view.sinks);
  const auto tiles = batch.tiles(tile_tokens(shape, rows));
  const DeviceArray<AttentionTile> device_tiles(tiles);
  DeviceArray<float> out(queries.size());
  AttentionArguments a{.kv = stores.paged(),
                       .heads = heads,
                       .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                       .window = view.window,
                       .sinks = view.sinks.empty() ? nullptr : sinks.data(),
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

inline std::vector<float> portable(Stores& stores, const Shape& shape, const Batch& batch,
                                   const std::vector<float>& queries, const View& view = {}) {
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
      tile.window = view.window;
      if (!view.sinks.empty()) tile.sinks = view.sinks.data() + kv_head * shape.group;
      tile.query = &queries[at];
      tile.out = &out[at];
      tile.query_stride = tile.out_stride = n;
      cpu_kernels_of(shape.format).attend(stores.cpu(), tile);
    }
  }
  return out;
}

/// ||out - reference|| / ||reference|| of one token, the reference in double.
inline double distance(Stores& stores, const Shape& shape, int32_t sequence, int32_t position,
                       const std::vector<float>& query, const std::vector<float>& out,
                       const View& view = {}) {
  double difference = 0, size = 0;
  for (int32_t head = 0; head < shape.kv_heads * shape.group; ++head) {
    const int32_t kv_head = head / shape.group;
    const float* own = &query[static_cast<size_t>(head * shape.head_dim)];
    std::vector<double> scores;
    const int32_t first = view.first_seen(position);
    const double sink = view.sinks.empty() ? -INFINITY : view.sinks[static_cast<size_t>(head)];
    double max = sink;
    for (int32_t p = first; p <= position; ++p) {
      double score = 0;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        score += double{own[d]} * stores.at(false, sequence, p, kv_head, d);
      }
      scores.push_back(score * double{1.0f / std::sqrt(static_cast<float>(shape.head_dim))});
      max = std::max(max, scores.back());
    }
    double sum = std::exp(sink - max);
    for (double& score : scores) sum += score = std::exp(score - max);
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      double value = 0;
      for (int32_t p = first; p <= position; ++p) {
        value +=
            scores[static_cast<size_t>(p - first)] / sum * stores.at(true, sequence, p, kv_head, d);
      }
      const double got = out[static_cast<size_t>(head * shape.head_dim + d)];
      difference += (got - value) * (got - value);
      size += value * value;
    }
  }
  return std::sqrt(difference / size);
}

}  // namespace vitrine::kernels::cuda::testing
