// SPDX-License-Identifier: Apache-2.0
// IQ1_S: a half d; for each eight columns an index of eleven bits into a book of -1, 0 and 1; for
// each 32 a scale s of three bits and a sign of what is added, an eighth; (d * (2 * s + 1) / 8) *
// (8 * value ± 1).
#pragma once

#include "signs.h"

namespace vitrine::kernels::blocks {

/// Bytes of 8 * value plus 1, or less 1 in rows whose bit `bit` of `high` is set.
template <class Lanes>
VITRINE_BLOCK_INLINE Eight<Lanes> with_shift(Eight<Lanes> eight, typename Lanes::Ints high,
                                             int bit) {
  const auto is_less = Lanes::mask(high, 1 << bit);
  const auto shift = Lanes::bytes_by_row(is_less, 255, 1);
  return {Lanes::add_bytes(eight.low, shift), Lanes::add_bytes(eight.high, shift)};
}

/// The index of eight e of a unit of four bytes of low bits and a half of `stride` bits each.
template <class Lanes>
VITRINE_BLOCK_INLINE typename Lanes::Ints eleven_bits(const uint8_t* unit, int e, int half,
                                                      int stride) {
  const auto high = Lanes::half_words(unit + 4 * kTileRows, half);
  return Lanes::bit_or(Lanes::bytes(unit + kTileRows * e, half),
                       above_a_byte<Lanes>(high, stride * e, 3));
}

struct Iq1S : BytesOfABook {
  static constexpr BlockFormat kFormat = BlockFormat::kIq1S;
  static constexpr const char* kName = "iq1_s";
  static constexpr int kCols = 256, kBytes = 50;
  static constexpr int kBias = kIq1Bias, kChain = 4;
  // A unit is the low bytes of four indices, then a half: three high bits each, scale and sign.
  static constexpr int kHigh = 4 * kTileRows;
  static constexpr int kUnitBytes = kHigh + kRowHalves, kScaleBytes = kRowHalves;
  static constexpr bool kTwoParts = false, kTwoScales = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      uint8_t* unit = units + kUnitBytes * u;
      for (int e = 0; e < 4; ++e) unit[kTileRows * e + r] = block[2 + 4 * u + e];
      put_half(unit + kHigh, r, half_of(block + 34 + 2 * u));
    }
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t* data, const uint8_t* scales, int64_t g,
                                            int half) {
    const auto high = Lanes::half_words(data + kUnitBytes * g + kHigh, half);
    const auto scale = odd<Lanes>(Lanes::mask(Lanes::shift_right(high, 12), 7));
    const auto d = scaled_half<Lanes>(scales + kScaleBytes * (g / 8), half, 0.125f);
    return scale_alone<Lanes>(Lanes::mul(d, Lanes::to_float(scale)));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto eight = look_up_step<Lanes, Iq1Book>(
        [&](int e) __attribute__((always_inline)) { return eleven_bits<Lanes>(unit, e, half, 3); },
        s);
    return with_shift<Lanes>(eight, Lanes::half_words(unit + kHigh, half), 15);
  }
};

}  // namespace vitrine::kernels::blocks
