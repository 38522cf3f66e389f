// SPDX-License-Identifier: Apache-2.0
// IQ3_S: a half d; for each four columns an index of nine bits into a book of four magnitudes, and
// four signs; for each 32 a scale s of four bits; (d * (2 * s + 1)) * value.
#pragma once

#include "signs.h"

namespace vitrine::kernels::blocks {

struct Iq3S : BytesOfABook {
  static constexpr BlockFormat kFormat = BlockFormat::kIq3S;
  static constexpr const char* kName = "iq3_s";
  static constexpr int kCols = 256, kBytes = 110;
  static constexpr int kBias = kIq3SBias, kChain = 4;
  // A unit is the low bytes of eight indices, planes of signs, a byte of the ninth bits. Of a
  // block: d; for each unit a plane, its scale.
  static constexpr int kSigns = 8 * kTileRows, kHigh = kSigns + kSignBytes;
  static constexpr int kUnitBytes = kHigh + kTileRows;
  static constexpr int kScaleBytes = kRowHalves + 8 * kPlaneBytes;
  static constexpr bool kTwoParts = false, kTwoScales = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      uint8_t* unit = units + kUnitBytes * u;
      for (int f = 0; f < 8; ++f) unit[kTileRows * f + r] = block[2 + 8 * u + f];
      for (int e = 0; e < 4; ++e) put_signs(unit + kSigns, r, e, block[74 + 4 * u + e]);
      unit[kHigh + r] = block[66 + u];
      put_bits(scales + kRowHalves + kPlaneBytes * u, r,
               static_cast<uint32_t>(block[106 + u / 2]) >> (u % 2 * 4));
    }
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    const uint8_t* block = scales + kScaleBytes * (g / 8);
    const uint8_t* plane = block + kRowHalves + kPlaneBytes * (g % 8);
    const auto scale = odd<Lanes>(Lanes::nibbles(Lanes::plane(plane, half)));
    return scale_alone<Lanes>(Lanes::mul(Lanes::halves(block, half), Lanes::to_float(scale)));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto high = Lanes::bytes(unit + kHigh, half);
    const auto index = [&](int f) __attribute__((always_inline)) {
      return Lanes::bit_or(Lanes::bytes(unit + kTileRows * f, half),
                           above_a_byte<Lanes>(high, f, 1));
    };
    const auto fours = Lanes::template look_up_fours<Iq3SBook>(index(2 * s), index(2 * s + 1));
    return with_signs<Lanes, kBias>(fours, unit + kSigns, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
