// SPDX-License-Identifier: Apache-2.0
// The largest of a warp's entries, one after the other.
#pragma once

#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {

/// Keys order as floats do, -0 as +0; 0 stands for no entry, and for NaN.
inline constexpr uint32_t kNoKey = 0;
inline constexpr uint32_t kNoId = 0xffffffffu;

VITRINE_DEVICE uint32_t order_key(float x) {
  if (x != x) return kNoKey;
  const uint32_t bits = float_bits(x + 0.0f);  // -0 becomes +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The float of a key; -0 comes back as +0.
VITRINE_DEVICE float key_float(uint32_t key) {
  return bits_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/// The best of one entry from each lane: the largest key, then the lowest id. All lanes get it.
struct Best {
  uint32_t key;
  uint32_t id;
};
VITRINE_DEVICE Best no_best() { return {kNoKey, kNoId}; }
VITRINE_DEVICE Best best_of_warp(Best own) {
  Best best;
  best.key = reduce_max(own.key);
  best.id = reduce_min(own.key == best.key ? own.id : kNoId);
  return best;
}

}  // namespace vitrine::kernels::cuda
