// SPDX-License-Identifier: Apache-2.0
// Q2_0: a half d, 64 numbers of two bits; d * (u - 1).
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

struct Q2_0 : OneHalf<64> {
  static constexpr BlockFormat kFormat = BlockFormat::kQ2_0;
  static constexpr const char* kName = "q2_0";
  static constexpr int kCols = 64, kBytes = 18;
  static constexpr int kUnitBytes = 2 * kRowWords;
  static constexpr int kBias = 1, kChain = 8;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 2; ++u) {
      uint8_t numbers[kUnitCols];
      for (int i = 0; i < kUnitCols / 4; ++i) {
        uint32_t four = block[2 + 8 * u + i];  // two bits each, to a byte each
        four = (four | four << 12) & 0x000f000f;
        four = (four | four << 6) & 0x03030303;
        memcpy(numbers + 4 * i, &four, sizeof four);
      }
      put_two_bits(units + kUnitBytes * u, r, numbers);
    }
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return two_bits<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
