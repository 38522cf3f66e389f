// SPDX-License-Identifier: Apache-2.0
// The KV cache of one layer on the device.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// Positions of a storage block: those that attention walks at once.
inline constexpr int kKvBlock = 64;

/// Keys and values: in block b, for kv head h, position offset o,
///   element ((b * kv_heads + h) * 64 + o) * head_dim + d
/// of each, so that a head's positions are rows that a tile is copied from. (The CPU's keys stand
/// the other way round, KvView.) Integers (codec i16, docs/numerics.md) are int16 numbers, and
/// behind the 64 rows of a block and kv head stand their 64 scales, float32.
struct KvCache {
  void* keys = nullptr;
  void* values = nullptr;
  FloatFormat format = FloatFormat::kBF16;  // of elements that are no integers
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  bool is_integers = false;
};

/// Bytes of an element, and of a block's rows of one kv head.
constexpr int64_t kv_element_bytes(const KvCache& cache) {
  return cache.is_integers ? 2 : element_bytes(cache.format);
}
constexpr int64_t kv_head_bytes(const KvCache& cache) {
  return kKvBlock * (cache.head_dim * kv_element_bytes(cache) + (cache.is_integers ? 4 : 0));
}

/// Which block holds a position: token t's sequence has row `sequences[t]` of `tables` [any,
/// stride], whose entry p / 64 is the storage block of position p.
struct BlockTables {
  const int32_t* tables = nullptr;
  int64_t stride = 0;
  const int32_t* sequences = nullptr;  // [tokens]
};

}  // namespace vitrine::kernels::cuda
