// SPDX-License-Identifier: Apache-2.0
// Q5_1: halves d and m, 32 high bits, 32 nibbles; d * u + m.
#pragma once

#include "q5_0.h"

namespace vitrine::kernels::blocks {

struct Q5_1 {
  static constexpr BlockFormat kFormat = BlockFormat::kQ5_1;
  static constexpr const char* kName = "q5_1";
  static constexpr int kCols = 32, kBytes = 24;
  static constexpr int kUnitBytes = FiveBits::kUnitBytes, kScaleBytes = 2 * kRowHalves;
  static constexpr int kBias = 0, kChain = 4;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = true;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    FiveBits::put(units, r, block + 4, block + 8);
    put_half(scales, r, half_of(block));
    put_half(scales + kRowHalves, r, half_of(block + 2));
    return is_finite_half(half_of(block)) && is_finite_half(half_of(block + 2));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    auto meaning = scale_alone<Lanes>(Lanes::halves(scales + kScaleBytes * g, half));
    meaning.minimum = Lanes::halves(scales + kScaleBytes * g + kRowHalves, half);
    return meaning;
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return FiveBits::step<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
