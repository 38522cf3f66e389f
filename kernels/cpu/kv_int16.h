// Where the integers of keys and values lie (KvFormat::kI16), for every instruction set's files.
// Internal linkage: each file has its own copy.
#pragma once

#include "cpu_kernels.h"

namespace vitrine::kernels {
namespace {

/// Pairs of elements of a key or a query; of an odd head_dim the last one's second is 0.
constexpr int32_t element_pairs(int32_t head_dim) { return (head_dim + 1) / 2; }

/// One storage block of one kv head. A word is two int16 that are multiplied and added at once.
struct Int16Block {
  int32_t* keys;        // [element_pairs(head_dim)][block_size]
  float* key_scales;    // [block_size]
  int32_t* values;      // [block_size / 2][head_dim]: positions 2i and 2i + 1
  float* value_scales;  // [block_size]
};

__attribute__((always_inline)) inline Int16Block int16_block(const KvView& kv, int64_t block,
                                                             int64_t kv_head) {
  const int64_t begin = (block * kv.kv_heads + kv_head) * kv_head_bytes(kv);
  auto* keys = reinterpret_cast<int32_t*>(static_cast<uint8_t*>(kv.keys) + begin);
  auto* values = reinterpret_cast<int32_t*>(static_cast<uint8_t*>(kv.values) + begin);
  const int64_t scales = static_cast<int64_t>(element_pairs(kv.head_dim)) * kv.block_size;
  return {keys, reinterpret_cast<float*>(keys + scales), values,
          reinterpret_cast<float*>(values + scales)};
}

/// Up to 64 positions of one kv head, in runs of 16; those that are missing are the last one again.
struct Int16Runs {
  static constexpr int kMost = kAttentionBlock / kKvLanes;
  const int32_t* keys[kMost];    // [element_pairs(head_dim)], stride block_size
  const int32_t* values[kMost];  // [8 pairs of positions][head_dim]
  const float* key_scales[kMost];
  const float* value_scales[kMost];
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
    for (; count < Int16Runs::kMost && start + count * kKvLanes < end; ++count) {
      const Int16Block block = int16_block(kv, block_table[block_index], kv_head);
      runs.keys[count] = block.keys + offset;
      runs.values[count] = block.values + static_cast<int64_t>(offset / 2) * kv.head_dim;
      runs.key_scales[count] = block.key_scales + offset;
      runs.value_scales[count] = block.value_scales + offset;
      offset += kKvLanes;
      if (offset == kv.block_size) {
        offset = 0;
        ++block_index;
      }
    }
    for (int i = count; count > 0 && i < Int16Runs::kMost; ++i) {
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

/// Of a row whose largest magnitude is given; has_nan: besides, one of its elements is NaN.
__attribute__((always_inline)) inline Int16Scale int16_scale(float magnitude, bool has_nan,
                                                             int32_t largest) {
  const auto limit = static_cast<float>(largest);
  if (has_nan) return {0.0f, __builtin_nanf("")};
  const float factor = limit / magnitude;
  if (!(factor > 0.0f)) return {0.0f, magnitude};     // an infinity
  if (!(factor <= __FLT_MAX__)) return {0.0f, 0.0f};  // as good as nothing
  return {factor, magnitude / limit};
}

/// Of a block's weights, each already times its value's scale. One that is not finite makes
/// everything NaN.
__attribute__((always_inline)) inline Int16Scale weight_scale(float largest, bool all_finite) {
  return int16_scale(largest, !all_finite, kLargestValueWeight);
}

}  // namespace
}  // namespace vitrine::kernels
