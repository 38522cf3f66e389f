// SPDX-License-Identifier: Apache-2.0
// IQ3_XXS: a half d; for each four columns an index into a book of 256 times four magnitudes; for
// each 32 four times seven signs and a scale s of four bits; (d * (2 * s + 1) / 4) * value.
#pragma once

#include "signs.h"

namespace vitrine::kernels::blocks {

struct Iq3Xxs : BytesOfABook {
  static constexpr BlockFormat kFormat = BlockFormat::kIq3Xxs;
  static constexpr const char* kName = "iq3_xxs";
  static constexpr int kCols = 256, kBytes = 98;
  static constexpr int kBias = kIq3XxsBias, kChain = 1;
  // A unit is eight bytes of indices, then planes of signs with the scale's bits as spare ones.
  static constexpr int kSigns = 8 * kTileRows;
  static constexpr int kUnitBytes = kSigns + kSignBytes, kScaleBytes = kRowHalves;
  static constexpr bool kTwoParts = false, kTwoScales = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      uint8_t* unit = units + kUnitBytes * u;
      for (int f = 0; f < 8; ++f) unit[kTileRows * f + r] = block[2 + 8 * u + f];
      put_signs_and_scale(unit + kSigns, r, block + 66 + 4 * u);
    }
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t* data, const uint8_t* scales, int64_t g,
                                            int half) {
    return scale_in_spare_bits<Lanes>(data + kUnitBytes * g + kSigns,
                                      scales + kScaleBytes * (g / 8), half, 0.25f);
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto first = Lanes::byte_indices(unit + kTileRows * 2 * s, half);
    const auto second = Lanes::byte_indices(unit + kTileRows * (2 * s + 1), half);
    return with_seven_signs<Lanes, kBias>(Lanes::template look_up_fours<Iq3XxsBook>(first, second),
                                          unit + kSigns, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
