// SPDX-License-Identifier: Apache-2.0
// Where the integers of keys and values lie (codec i16), for every instruction set's files.
// Internal linkage: each file has its own copy.
#pragma once

#include "cpu_kernels.h"
#include "exp_constants.h"
#include "fetch.h"
#include "window.h"

namespace vitrine::kernels {
namespace {

/// Pairs of elements of a key or a query; of an odd head_dim the last one's second is 0.
constexpr int32_t element_pairs(int32_t head_dim) { return (head_dim + 1) / 2; }

/// 16 positions of one kv head. A word is two int16 that are multiplied and added at once.
struct Int16Run {
  int32_t* keys;        // [element_pairs(head_dim)][16]
  float* key_scales;    // [16]
  int32_t* values;      // [8][head_dim]: positions 2i and 2i + 1
  float* value_scales;  // [16]
};

/// The run that position `offset` of a block is in.
__attribute__((always_inline)) inline Int16Run int16_run(const KvView& kv, int64_t block,
                                                         int64_t kv_head, int32_t offset) {
  const int64_t runs = kv.block_size / kKvLanes;
  const int64_t index = (block * kv.kv_heads + kv_head) * runs + offset / kKvLanes;
  const int64_t begin = index * kKvLanes * int16_kv_bytes(kv.head_dim);
  auto* keys = reinterpret_cast<int32_t*>(static_cast<uint8_t*>(kv.keys) + begin);
  auto* values = reinterpret_cast<int32_t*>(static_cast<uint8_t*>(kv.values) + begin);
  const int64_t scales = static_cast<int64_t>(element_pairs(kv.head_dim)) * kKvLanes;
  return {keys, reinterpret_cast<float*>(keys + scales), values,
          reinterpret_cast<float*>(values + scales)};
}

/// Up to 64 positions of one kv head, in runs of 16; those that are missing are the last one again.
struct Int16Runs {
  static constexpr int kMax = kAttentionBlock / kKvLanes;
  const int32_t* keys[kMax];    // [element_pairs(head_dim)][16]
  const int32_t* values[kMax];  // [8 pairs of positions][head_dim]
  const float* key_scales[kMax];
  const float* value_scales[kMax];
  int32_t start;  // the first one's position
};

/// Walks a block table.
struct Int16Cursor {
  const KvView& kv;
  const int32_t* block_table;
  int32_t kv_head;
  int32_t block_index = 0;
  int32_t offset = 0;

  /// The runs from position `start` on, where this stands, up to `end`. None: null pointers.
  Int16Runs take(int32_t start, int32_t end) {
    Int16Runs runs{};
    runs.start = start;
    int count = 0;
    for (; count < Int16Runs::kMax && start + count * kKvLanes < end; ++count) {
      const Int16Run run = int16_run(kv, block_table[block_index], kv_head, offset);
      runs.keys[count] = run.keys;
      runs.values[count] = run.values;
      runs.key_scales[count] = run.key_scales;
      runs.value_scales[count] = run.value_scales;
      offset += kKvLanes;
      if (offset == kv.block_size) {
        offset = 0;
        ++block_index;
      }
    }
    for (int i = count; count > 0 && i < Int16Runs::kMax; ++i) {
      runs.keys[i] = runs.keys[count - 1];
      runs.values[i] = runs.values[count - 1];
      runs.key_scales[i] = runs.key_scales[count - 1];
      runs.value_scales[i] = runs.value_scales[count - 1];
    }
    return runs;
  }
};

/// Numbers are round(x * factor), and mean number * scale.
struct Int16Scale {
  float factor;  // 0: all numbers are 0
  float scale;
};

/// The scale of a row whose largest magnitude is given; `has_nan`: besides, one of its elements is
/// NaN.
__attribute__((always_inline)) inline Int16Scale int16_scale(float magnitude, bool has_nan,
                                                             int32_t largest) {
  const auto limit = static_cast<float>(largest);
  if (has_nan) return {0.0f, __builtin_nanf("")};
  const float factor = limit / magnitude;
  if (!(factor > 0.0f)) return {0.0f, magnitude};     // an infinity
  if (!(factor <= __FLT_MAX__)) return {0.0f, 0.0f};  // as good as nothing
  return {factor, magnitude / limit};
}

/// The number that x becomes, rounded to nearest even.
inline int32_t int16_number(float x, float factor) {
  if (factor == 0.0f) return 0;  // then x may be no number that fits
  return static_cast<int32_t>((x * factor + kRoundMagic) - kRoundMagic);
}

/// Writes the n numbers of a key, value or query; returns their scale.
inline float quantize_int16(const float* x, int32_t n, int16_t* numbers) {
  float magnitude = 0.0f;
  bool has_nan = false;
  for (int32_t i = 0; i < n; ++i) {
    const float absolute = __builtin_fabsf(x[i]);
    if (absolute > magnitude) magnitude = absolute;
    has_nan = has_nan || absolute != absolute;
  }
  const Int16Scale scale = int16_scale(magnitude, has_nan, largest_kv_number(n));
  for (int32_t i = 0; i < n; ++i)
    numbers[i] = static_cast<int16_t>(int16_number(x[i], scale.factor));
  return scale.scale;
}

/// The scale of a block's weights, each already times its value's scale. One that is not finite
/// makes everything NaN.
__attribute__((always_inline)) inline Int16Scale weight_scale(float largest, bool all_finite) {
  return int16_scale(largest, !all_finite, kLargestValueWeight);
}

/// A query, two numbers a word, and its running softmax. Padded to whole vectors.
struct Int16State {
  alignas(64) int32_t pairs[kMaxHeadDim / 2];
  alignas(64) float out[kMaxHeadDim];
  float factor;  // of its scores: its scale times that of all scores
  float max;
  float sum;
  int32_t first;  // position that it sees
  int32_t position;
};

/// Scales lie behind all of a run's numbers.
__attribute__((always_inline)) inline void fetch_scales(const Int16Runs& block) {
#pragma GCC unroll 4
  for (int i = 0; i < Int16Runs::kMax; ++i) {
    fetch(block.key_scales[i]);
    fetch(block.value_scales[i]);
  }
}

/// Writes one position's key, and its scale, to place `offset` of a run.
template <class Table>
inline void write_key(const KvView& kv, const Int16Run& target, int32_t offset, const float* key) {
  alignas(64) int32_t pairs[kMaxHeadDim / 2];
  target.key_scales[offset] =
      Table::quantize(key, kv.head_dim, largest_kv_number(kv.head_dim), pairs);
  int32_t* keys = target.keys + offset;
  for (int32_t d = 0; d < element_pairs(kv.head_dim); ++d, keys += kKvLanes) *keys = pairs[d];
}

/// `tokens` tokens from the span's token `first` on, heads `head` … head + heads - 1; at most
/// kQueriesAtOnce queries. Each block of positions is read once for all of them; what a query does
/// not see has weight 0, and integers are added without rounding. Of a Table:
///   quantize(x, n, largest, pairs): a row's pairs, padded with zeros, and its scale;
///   take_block(block, next, kv, count, states, all): `count` queries in the order of their
///     positions, of `all` that walk the blocks together, meet a block; `next` may be none;
///   divide(state, n, out): out / sum.
template <class Table>
inline void attend_int16(const KvView& kv, const AttentionSpan& span, int32_t first, int32_t tokens,
                         int32_t head, int32_t heads) {
  Int16State states[kQueriesAtOnce];
  const int count = tokens * heads;
  const int32_t position = span.position + first;  // of the first of these tokens
  for (int i = 0; i < count; ++i) {
    Int16State& state = states[i];
    const float* query = span.query + (first + i / heads) * span.query_token_stride +
                         (head + i % heads) * span.query_stride;
    const int32_t largest = largest_kv_number(kv.head_dim);
    state.factor = Table::quantize(query, kv.head_dim, largest, state.pairs) * span.scale;
    state.max = first_max(span, head + i % heads);
    state.sum = first_sum(span);
    state.position = position + i / heads;
    state.first = first_seen(span, state.position);
    __builtin_memset(state.out, 0,
                     static_cast<size_t>((kv.head_dim + 15) / 16 * 16) * sizeof(float));
  }
  const int32_t end = position + tokens;
  const int32_t first_block = first_block_seen(span, position);
  Int16Cursor cursor{kv, span.block_table, span.kv_head, first_block / kv.block_size,
                     first_block % kv.block_size};
  Int16Runs next = cursor.take(first_block, end);
  for (int32_t start = first_block; start < end; start += kAttentionBlock) {
    const Int16Runs block = next;
    next = cursor.take(start + kAttentionBlock, end);
    if (next.keys[0] != nullptr) fetch_scales(next);
    const int begin = start > position ? (start - position) * heads : 0;
    const int seen = tokens_above(span, position, tokens, start) * heads;
    Table::take_block(block, next, kv, seen - begin, states + begin, count);
  }
  for (int i = 0; i < count; ++i) {
    Table::divide(states[i], kv.head_dim,
                  span.out + (first + i / heads) * span.out_token_stride +
                      (head + i % heads) * span.out_stride);
  }
}

template <class Table>
inline void attend_int16(const KvView& kv, const AttentionSpan& span) {
  for (int32_t head = 0; head < span.heads; head += kQueriesAtOnce) {
    const int32_t heads = span.heads - head < kQueriesAtOnce ? span.heads - head : kQueriesAtOnce;
    const int32_t at_once = kQueriesAtOnce / heads;
    for (int32_t first = 0; first < span.tokens; first += at_once) {
      const int32_t left = span.tokens - first;
      attend_int16<Table>(kv, span, first, left < at_once ? left : at_once, head, heads);
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels
