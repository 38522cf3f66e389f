// SPDX-License-Identifier: Apache-2.0
// IQ2_S: a half d; for each eight columns an index of ten bits into a book of eight magnitudes and
// eight signs; for each 16 a scale s of four bits; (d * (2 * s + 1) / 8) * value.
#pragma once

#include "signs.h"

namespace vitrine::kernels::blocks {

struct Iq2S : BytesOfABook, TwoScalesInAByte {
  static constexpr BlockFormat kFormat = BlockFormat::kIq2S;
  static constexpr const char* kName = "iq2_s";
  static constexpr int kCols = 256, kBytes = 82;
  static constexpr int kBias = kIq2Bias, kChain = 1;
  // A unit is the low bytes of four indices, planes of signs, a byte of two high bits each. Of a
  // block: d; for each unit a byte, its two scales.
  static constexpr int kSigns = 4 * kTileRows, kHigh = kSigns + kSignBytes;
  static constexpr int kUnitBytes = kHigh + kTileRows;
  static constexpr bool kTwoParts = true, kTwoScales = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      uint8_t* unit = units + kUnitBytes * u;
      for (int e = 0; e < 4; ++e) {
        unit[kTileRows * e + r] = block[2 + 4 * u + e];
        put_signs(unit + kSigns, r, e, block[34 + 4 * u + e]);
      }
      unit[kHigh + r] = block[66 + u];
    }
    put(block + 74, r, scales);
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto eight = look_up_step<Lanes, Iq2SBook>(
        [&](int e) __attribute__((always_inline)) { return index<Lanes>(unit, e, half); }, s);
    return with_signs<Lanes, kBias>(eight, unit + kSigns, s, half);
  }

 private:
  template <class Lanes>
  VITRINE_BLOCK_INLINE typename Lanes::Ints index(const uint8_t* unit, int e, int half) {
    const auto high = Lanes::bytes(unit + kHigh, half);
    return Lanes::bit_or(Lanes::bytes(unit + kTileRows * e, half),
                         above_a_byte<Lanes>(high, 2 * e, 2));
  }
};

}  // namespace vitrine::kernels::blocks
