// SPDX-License-Identifier: Apache-2.0
// Q1_0: a half d, 128 bits; d where a bit is set, else -d.
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

struct Q1_0 : OneHalf<128> {
  static constexpr BlockFormat kFormat = BlockFormat::kQ1_0;
  static constexpr const char* kName = "q1_0";
  static constexpr int kCols = 128, kBytes = 18;
  static constexpr int kUnitBytes = 8 * kPlaneBytes;
  static constexpr int kBias = 1, kChain = 8;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int f = 0; f < kCols / 4; ++f) {
      put_bits(units + kPlaneBytes * f, r, static_cast<uint32_t>(block[2 + f / 2]) >> (f % 2 * 4));
    }
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto zero = Lanes::set_bytes(0);
    return with_bits<Lanes>({zero, zero}, unit, s, half, 2);
  }
};

}  // namespace vitrine::kernels::blocks
