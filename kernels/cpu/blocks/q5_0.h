// SPDX-License-Identifier: Apache-2.0
// Q5_0: a half d, 32 high bits, 32 nibbles; d * (u - 16).
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

/// The numbers of five bits of Q5_0, Q5_1 and Q5_K: nibbles, then planes of their high bits.
struct FiveBits {
  static constexpr int kUnitBytes = 4 * kRowWords + 8 * kPlaneBytes;

  VITRINE_BLOCK_INLINE void put(uint8_t* unit, int r, const uint8_t* numbers) {
    put_nibbles(unit, r, numbers);
    put_planes(unit + 4 * kRowWords, r, numbers, 4);
  }
  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int s, int half) {
    return with_bits<Lanes>(nibbles<Lanes>(unit, s, half), unit + 4 * kRowWords, s, half, 16);
  }
  /// Reads the numbers of a block of Q5_0 or Q5_1.
  VITRINE_BLOCK_INLINE void take(const uint8_t* high, const uint8_t* low, uint8_t* numbers) {
    take_nibbles(low, 16, numbers);
    for (int i = 0; i < kUnitCols; ++i) {
      numbers[i] |= static_cast<uint8_t>((high[i / 8] >> (i % 8) & 1) << 4);
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
    uint8_t numbers[kCols];
    FiveBits::take(block + 2, block + 6, numbers);
    FiveBits::put(units, r, numbers);
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return FiveBits::step<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
