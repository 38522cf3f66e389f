// SPDX-License-Identifier: Apache-2.0
// IQ1_M: for each eight columns an index of eleven bits into a book of -1, 0 and 1, and a sign of
// what is added, an eighth; for each 16 a scale s of three bits; a half d spread over what is left
// of the scales' four words; (d * (2 * s + 1) / 8) * (8 * value ± 1).
#pragma once

#include "iq1_s.h"

namespace vitrine::kernels::blocks {

struct Iq1M : BytesOfABook {
  static constexpr BlockFormat kFormat = BlockFormat::kIq1M;
  static constexpr const char* kName = "iq1_m";
  static constexpr int kCols = 256, kBytes = 56;
  static constexpr int kBias = kIq1Bias, kChain = 4;
  // A unit is the low bytes of four indices, then a half with four bits for each: three high ones
  // and the sign. A block's scales: the four words, each with the scales of two units and four bits
  // of d.
  static constexpr int kHigh = 4 * kTileRows;
  static constexpr int kUnitBytes = kHigh + kRowHalves, kScaleBytes = 4 * kRowHalves;
  static constexpr bool kTwoParts = true, kTwoScales = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      uint8_t* unit = units + kUnitBytes * u;
      for (int e = 0; e < 4; ++e) unit[kTileRows * e + r] = block[4 * u + e];
      put_half(unit + kHigh, r, half_of(block + 32 + 2 * u));
    }
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = half_of(block + 48 + 2 * i);
      put_half(scales + kRowHalves * i, r, word);
      d |= word >> 12 << (4 * i);
    }
    return is_finite_half(static_cast<uint16_t>(d));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    const uint8_t* block = scales + kScaleBytes * (g / 8);
    const int u = static_cast<int>(g % 8);
    auto d = Lanes::set_ints(0);
    for (int i = 0; i < 4; ++i) {
      const auto top = Lanes::shift_right(Lanes::half_words(block + kRowHalves * i, half), 12);
      d = Lanes::bit_or(d, Lanes::shift_left(top, 4 * i));
    }
    const auto word = Lanes::half_words(block + kRowHalves * (u / 2), half);
    const auto own = Lanes::shift_right(word, 6 * (u % 2));
    const auto scale = Lanes::mul(Lanes::widen_halves(d), Lanes::set(0.125f));
    return scale_and_parts<Lanes>(scale, odd<Lanes>(Lanes::mask(own, 7)),
                                  odd<Lanes>(Lanes::mask(Lanes::shift_right(own, 3), 7)));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto eight = look_up_step<Lanes, Iq1Book>(
        [&](int e) __attribute__((always_inline)) { return eleven_bits<Lanes>(unit, e, half, 4); },
        s);
    return with_shift<Lanes>(eight, Lanes::half_words(unit + kHigh, half), 4 * s + 3);
  }
};

}  // namespace vitrine::kernels::blocks
