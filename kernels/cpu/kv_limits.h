// SPDX-License-Identifier: Apache-2.0
// How wide keys and values may be, and how large the integers that they become.
#pragma once

#include <cstdint>

namespace vitrine::kernels {

/// Elements of a head that attention has room for.
inline constexpr int32_t kMaxHeadDim = 512;
/// Elements of a key of latent attention, and of the part that is its value.
inline constexpr int32_t kMaxLatentKey = 640, kMaxLatentValue = 512;

/// The largest integer whose square is at most `number`.
constexpr int32_t square_root(int32_t number) {
  int32_t root = 0;
  for (int32_t bit = 1 << 15; bit != 0; bit >>= 1) {
    const int64_t tried = root | bit;
    if (tried * tried <= number) root |= bit;
  }
  return root;
}

/// i16: what the largest magnitude of a key, value or query becomes. The sum of head_dim products
/// of two such numbers fits 32 bits.
constexpr int32_t largest_kv_number(int32_t head_dim) {
  if (head_dim <= 128) return 4095;
  if (head_dim <= 256) return 2895;
  return square_root(INT32_MAX / head_dim);
}

/// i16: what the largest weight of a block of values becomes. The sum of kAttentionBlock products
/// with values fits 32 bits.
inline constexpr int32_t kLargestValueWeight = 8191;

}  // namespace vitrine::kernels
