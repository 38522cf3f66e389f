// SPDX-License-Identifier: Apache-2.0
// IQ4_NL: a half d, 32 nibbles that index sixteen values; d * value.
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

/// The values of IQ4_NL and IQ4_XS, 128 added.
alignas(16) inline constexpr uint8_t kNonlinearBytes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                            129, 141, 153, 166, 181, 197, 217, 241};

/// Indices into sixteen values, in nibbles.
struct NonlinearNibbles {
  static constexpr int kUnitBytes = 4 * kRowWords;

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int s, int half) {
    const auto codes = nibbles<Lanes>(unit, s, half);
    return {Lanes::look_up_16(kNonlinearBytes, codes.low),
            Lanes::look_up_16(kNonlinearBytes, codes.high)};
  }
};

struct Iq4Nl : OneHalf<32> {
  static constexpr BlockFormat kFormat = BlockFormat::kIq4Nl;
  static constexpr const char* kName = "iq4_nl";
  static constexpr int kCols = 32, kBytes = 18;
  static constexpr int kUnitBytes = NonlinearNibbles::kUnitBytes;
  static constexpr int kBias = 128, kChain = 0;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    uint8_t codes[kCols];
    take_nibbles(block + 2, 16, codes);
    put_nibbles(units, r, codes);
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return NonlinearNibbles::step<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
