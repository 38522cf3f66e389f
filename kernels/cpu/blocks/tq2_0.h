// SPDX-License-Identifier: Apache-2.0
// TQ2_0: 256 numbers of two bits, a half d; d * (u - 1).
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

struct Tq2_0 : OneHalf<256> {
  static constexpr BlockFormat kFormat = BlockFormat::kTq2_0;
  static constexpr const char* kName = "tq2_0";
  static constexpr int kCols = 256, kBytes = 66;
  static constexpr int kUnitBytes = 2 * kRowWords;
  static constexpr int kBias = 1, kChain = 8;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      uint8_t numbers[kUnitCols];
      for (int i = 0; i < kUnitCols; ++i) numbers[i] = block[u / 4 * 32 + i] >> (u % 4 * 2) & 3;
      put_two_bits(units + kUnitBytes * u, r, numbers);
    }
    put_half(scales, r, half_of(block + 64));
    return is_finite_half(half_of(block + 64));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return two_bits<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
