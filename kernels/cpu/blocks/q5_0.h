// SPDX-License-Identifier: Apache-2.0
// Q5_0: a half d, 32 high bits, 32 nibbles; d * (u - 16).
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

/// The numbers of five bits of Q5_0, Q5_1 and Q5_K: nibbles, then planes of their high bits.
struct FiveBits {
  static constexpr int kPlanes = 4 * kRowWords;
  static constexpr int kUnitBytes = kPlanes + 8 * kPlaneBytes;

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int s, int half) {
    return with_bits<Lanes>(nibbles<Lanes>(unit, s, half), unit + kPlanes, s, half, 16);
  }
  /// Packs a block of Q5_0 or Q5_1: a bit of each column, and nibbles.
  VITRINE_BLOCK_INLINE void put(uint8_t* unit, int r, const uint8_t* high, const uint8_t* low) {
    uint8_t numbers[kUnitCols];
    take_nibbles(low, 16, numbers);
    put_nibbles(unit, r, numbers);
    for (int f = 0; f < 8; ++f) {
      put_bits(unit + kPlanes + kPlaneBytes * f, r,
               static_cast<uint32_t>(high[f / 2]) >> (f % 2 * 4));
    }
  }
};

struct Q5_0 : OneHalf<32> {
  static constexpr BlockFormat kFormat = BlockFormat::kQ5_0;
  static constexpr const char* kName = "q5_0";
  static constexpr int kCols = 32, kBytes = 22;
  static constexpr int kUnitBytes = FiveBits::kUnitBytes;
  static constexpr int kBias = 16, kChain = 4;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    FiveBits::put(units, r, block + 2, block + 6);
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return FiveBits::step<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
