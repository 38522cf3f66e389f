// SPDX-License-Identifier: Apache-2.0
// Attention over integer keys and values (docs/numerics.md, "Integer keys and values"): as
// attention_kernel.h, with exact sums of products of integers in place of chains of FMAs.
//
// Bytes: as for 16-bit floats, and 8 a position and kv head for the scales. Operations: one integer
// multiply-add where floats have one.
#include "kernels/cuda/attention/attention_block.h"
#include "kernels/cuda/attention/attention_shapes.h"
#include "kernels/cuda/integer_scale.h"

namespace vitrine::kernels::cuda {
namespace {

/// Format kBF16 stands for two bytes an element here.
template <int kQueriesOf, int kDimsOf>
struct IntegerShape : AttentionShape<FloatFormat::kBF16, kQueriesOf, kDimsOf> {
  using Base = AttentionShape<FloatFormat::kBF16, kQueriesOf, kDimsOf>;
  static constexpr int kScaleBytes = 4 * kAttentionPositions;
  static constexpr int shared_bytes(int head_dim) {
    return Base::shared_bytes(head_dim) + 2 * kScaleBytes + 4 * 2 * kQueriesOf;
  }
};

/// Behind what floats have.
struct IntegerMemory {
  AttentionMemory shared;  // `queries` and, behind the softmax, `scores` hold int32
  float* key_scales;       // [64]
  float* value_scales;     // [64]
  float* query_factor;     // [kQueries]: a query's scale times that of all scores
  float* unit;             // [kQueries]: what a block's weights are whole numbers of

  VITRINE_DEVICE_METHOD int32_t* queries() const {
    return reinterpret_cast<int32_t*>(shared.queries);
  }
  VITRINE_DEVICE_METHOD int32_t* weights() const {
    return reinterpret_cast<int32_t*>(shared.scores);
  }
};

template <typename Shape>
VITRINE_DEVICE IntegerMemory divide_integer_memory(int head_dim) {
  IntegerMemory memory{divide_memory<Shape>(head_dim), nullptr, nullptr, nullptr, nullptr};
  auto* behind = dynamic_shared<uint8_t>() + Shape::Base::shared_bytes(head_dim);
  memory.key_scales = reinterpret_cast<float*>(behind);
  memory.value_scales = memory.key_scales + kAttentionPositions;
  memory.query_factor = memory.value_scales + kAttentionPositions;
  memory.unit = memory.query_factor + Shape::kQueries;
  return memory;
}

/// The tile's queries as integers, a warp a row.
template <typename Shape>
VITRINE_DEVICE void begin_integer_rows(const AttentionArguments& a, const AttentionWork& work,
                                       const IntegerMemory& memory) {
  const int head_dim = a.kv.head_dim;
  if (thread_index() < Shape::kQueries) begin_row(a, work, memory.shared, thread_index());
  sync_block();
  for (int q = warp_index(); q < Shape::kQueries; q += kAttentionThreads / kWarp) {
    const bool valid = memory.shared.position[q] >= 0;
    const float* query = query_of(a, work, valid ? q : 0);
    const IntegerScale scale = scale_of_row(query, head_dim);
    if (lane_index() == 0) memory.query_factor[q] = scale.scale * a.scale;
    for (int d = lane_index(); d < head_dim; d += kWarp) {
      memory.queries()[q * head_dim + d] = valid ? number_of(query[d], scale.factor) : 0;
    }
  }
}

/// Starts the copies of the scales of positions start … start + 63.
VITRINE_DEVICE void copy_scales(const AttentionArguments& a, const AttentionWork& work,
                                int32_t start, const IntegerMemory& memory) {
  constexpr int kPieces = 4 * kAttentionPositions / 16;
  if (thread_index() >= 2 * kPieces) return;
  const int piece = thread_index() % kPieces;
  const bool is_values = thread_index() >= kPieces;
  const int64_t block = work.table[start / kKvBlock];
  const auto* from = static_cast<const uint8_t*>(is_values ? a.kv.values : a.kv.keys) +
                     (block * a.kv.kv_heads + work.kv_head + 1) * kv_head_bytes(a.kv) -
                     4 * kKvBlock;
  const bool valid = start + 4 * piece <= work.last;
  copy_async16((is_values ? memory.value_scales : memory.key_scales) + 4 * piece,
               from + (valid ? 16 * piece : 0), valid);
}

/// Two int16 of a word, each as int32.
VITRINE_DEVICE int32_t low_number(uint32_t word) { return static_cast<int16_t>(word); }
VITRINE_DEVICE int32_t high_number(uint32_t word) { return static_cast<int16_t>(word >> 16); }

/// scores[q][j] = float(q . k_j) * (key_scale[j] * query_factor[q]).
template <typename Shape>
VITRINE_DEVICE void score_integers(const AttentionArguments& a, const IntegerMemory& memory) {
  constexpr int kOwn = Shape::kQueries / 2;
  const int j = thread_index() % kAttentionPositions;
  const int first = thread_index() / kAttentionPositions * kOwn;
  const int head_dim = a.kv.head_dim;
  const uint8_t* key = memory.shared.keys + j * Shape::key_stride(head_dim);
  int32_t dot[kOwn] = {};
  for (int d = 0; d < head_dim; d += 8) {
    const Words4 words = load16(key + 2 * d);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    for (int q = 0; q < kOwn; ++q) {
      const int32_t* query = memory.queries() + (first + q) * head_dim + d;
      for (int i = 0; i < 4; ++i) {
        dot[q] += query[2 * i] * low_number(pairs[i]) + query[2 * i + 1] * high_number(pairs[i]);
      }
    }
  }
  for (int q = 0; q < kOwn; ++q) {
    const float scale = memory.key_scales[j] * memory.query_factor[first + q];
    memory.shared.scores[(first + q) * kAttentionPositions + j] =
        static_cast<float>(dot[q]) * scale;
  }
}

/// Exponentials become whole numbers of a unit, 16 lanes for a row; 0 where it does not see.
template <typename Shape>
VITRINE_DEVICE void round_weights(const IntegerMemory& memory, int32_t window, int32_t start) {
  constexpr int kEach = kAttentionPositions / 16;
  const int lane = lane_index() % 16;
  for (int q = warp_index() * 2 + lane_index() / 16; q < Shape::kQueries; q += 8) {
    float* scores = memory.shared.scores + q * kAttentionPositions;
    int32_t* numbers = memory.weights() + q * kAttentionPositions;
    const SeenPositions seen = seen_positions(window, memory.shared.position[q], start);
    float weights[kEach], largest = 0.0f;
    int32_t is_broken = 0;
    for (int i = 0; i < kEach; ++i) {
      const int j = lane + 16 * i;
      weights[i] = seen.has(j) ? scores[j] * memory.value_scales[j] : 0.0f;
      is_broken |= weights[i] <= bits_float(0x7f7fffffu) ? 0 : 1;
      largest = weights[i] > largest ? weights[i] : largest;
    }
    for (int width = 8; width > 0; width /= 2) {
      const float other = shuffle_xor(largest, width);
      largest = other > largest ? other : largest;
      is_broken |= shuffle_xor(is_broken, width);
    }
    const IntegerScale scale = integer_scale(largest, is_broken != 0, kLargestValueWeight);
    for (int i = 0; i < kEach; ++i) {
      numbers[lane + 16 * i] = number_of(weights[i], scale.factor);
    }
    if (lane == 0) memory.unit[q] = scale.scale;
  }
}

/// out[q][i] for element thread + 128 * i: corrected, then the block's exact sum times its unit.
template <typename Shape>
VITRINE_DEVICE void add_integers(const AttentionArguments& a, const IntegerMemory& memory,
                                 int32_t start, float (&out)[Shape::kQueries][Shape::kDims]) {
  const int head_dim = a.kv.head_dim;
  const auto* values = reinterpret_cast<const int16_t*>(memory.shared.values);
  int32_t dot[Shape::kQueries][Shape::kDims] = {};
  for (int j = 0; j < kAttentionPositions; j += 4) {
    for (int q = 0; q < Shape::kQueries; ++q) {
      const Words4 words = load16(memory.weights() + q * kAttentionPositions + j);
      const uint32_t p[4] = {words.x, words.y, words.z, words.w};
      for (int i = 0; i < Shape::kDims; ++i) {
        const int d = thread_index() + kAttentionThreads * i;
        for (int k = 0; k < 4; ++k) {
          if (d < head_dim) {
            dot[q][i] += static_cast<int32_t>(p[k]) * int32_t{values[(j + k) * head_dim + d]};
          }
        }
      }
    }
  }
  for (int q = 0; q < Shape::kQueries; ++q) {
    if (!seen_positions(a.window, memory.shared.position[q], start).any()) continue;
    for (int i = 0; i < Shape::kDims; ++i) {
      out[q][i] = fma_rn(static_cast<float>(dot[q][i]), memory.unit[q],
                         out[q][i] * memory.shared.correction[q]);
    }
  }
}

template <typename Shape>
VITRINE_KERNEL(kAttentionThreads, 2)
void attention_i16_kernel(const AttentionArguments a) {
  AttentionWork work;
  if (!find_work<Shape>(a, work)) return;
  const int head_dim = a.kv.head_dim;
  const IntegerMemory memory = divide_integer_memory<Shape>(head_dim);
  begin_integer_rows<Shape>(a, work, memory);
  float out[Shape::kQueries][Shape::kDims] = {};
  for (int32_t start = work.start; start < work.end; start += kAttentionPositions) {
    sync_block();  // the queries are here, and all have read what is overwritten now
    copy_positions<Shape>(a, work, a.kv.keys, start, memory.shared.keys,
                          Shape::key_stride(head_dim));
    copy_scales(a, work, start, memory);
    copy_async_commit();
    copy_positions<Shape>(a, work, a.kv.values, start, memory.shared.values, 2 * head_dim);
    copy_async_commit();
    copy_async_wait<1>();
    sync_block();  // the keys and the scales are here
    score_integers<Shape>(a, memory);
    sync_block();
    update_softmax<Shape>(memory.shared, a.window, start);
    sync_warp();  // a row's softmax and its weights are of the same lanes
    round_weights<Shape>(memory, a.window, start);
    copy_async_wait<0>();
    sync_block();  // the values and the weights are here
    add_integers<Shape>(a, memory, start, out);
  }
  write_rows<Shape>(a, work, memory.shared, out);
}

}  // namespace

Status launch_attention_i16(const AttentionArguments& a, AttentionQueries queries, Stream stream) {
  return with_attention_shape(a, queries, [&]<int kQueries, int kDims>(Dim3 grid) {
    using Shape = IntegerShape<kQueries, kDims>;
    return launch(attention_i16_kernel<Shape>, grid, kAttentionThreads,
                  static_cast<size_t>(Shape::shared_bytes(a.kv.head_dim)), stream, a);
  });
}

}  // namespace vitrine::kernels::cuda
