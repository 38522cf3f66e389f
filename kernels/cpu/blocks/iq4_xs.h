// SPDX-License-Identifier: Apache-2.0
// IQ4_XS: a half d, eight 6-bit scales s (their two high bits, then nibbles), 256 nibbles that
// index sixteen values; (d * (s - 32)) * value.
#pragma once

#include "iq4_nl.h"

namespace vitrine::kernels::blocks {

struct Iq4Xs {
  static constexpr BlockFormat kFormat = BlockFormat::kIq4Xs;
  static constexpr const char* kName = "iq4_xs";
  static constexpr int kCols = 256, kBytes = 136;
  // A block's scales: d; for each two units a byte, the low nibbles of their scales; for each four
  // a byte, two high bits each.
  static constexpr int kLow = kRowHalves, kHigh = kLow + 4 * kTileRows;
  static constexpr int kUnitBytes = NonlinearNibbles::kUnitBytes;
  static constexpr int kScaleBytes = kHigh + 2 * kTileRows;
  static constexpr int kBias = 128, kChain = 0;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int i = 0; i < 4; ++i) scales[kLow + kTileRows * i + r] = block[4 + i];
    for (int i = 0; i < 2; ++i) scales[kHigh + kTileRows * i + r] = block[2 + i];
    for (int u = 0; u < 8; ++u) {
      uint8_t codes[kUnitCols];
      take_nibbles(block + 8 + 16 * u, 16, codes);
      put_nibbles(units + kUnitBytes * u, r, codes);
    }
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    const uint8_t* block = scales + kScaleBytes * (g / 8);
    const int u = static_cast<int>(g % 8);
    const auto low = Lanes::bytes(block + kLow + kTileRows * (u / 2), half);
    const auto high = Lanes::bytes(block + kHigh + kTileRows * (u / 4), half);
    const auto six =
        Lanes::bit_or(Lanes::mask(Lanes::shift_right(low, 4 * (u % 2)), 15),
                      Lanes::shift_left(Lanes::mask(Lanes::shift_right(high, 2 * (u % 4)), 3), 4));
    const auto scale = Lanes::add(six, Lanes::set_ints(-32));
    return scale_alone<Lanes>(Lanes::mul(Lanes::halves(block, half), Lanes::to_float(scale)));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return NonlinearNibbles::step<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
