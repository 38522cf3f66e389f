// SPDX-License-Identifier: Apache-2.0
// IQ2_XXS: a half d; for each 32 columns four indices into a book of 256 times eight magnitudes,
// four times seven signs and a scale s of four bits; (d * (2 * s + 1) / 8) * value.
#pragma once

#include "signs.h"

namespace vitrine::kernels::blocks {

struct Iq2Xxs : BytesOfABook {
  static constexpr BlockFormat kFormat = BlockFormat::kIq2Xxs;
  static constexpr const char* kName = "iq2_xxs";
  static constexpr int kCols = 256, kBytes = 66;
  static constexpr int kBias = kIq2Bias, kChain = 1;
  // A unit is four bytes of indices, then planes of signs with the scale's bits as spare ones.
  static constexpr int kSigns = 4 * kTileRows;
  static constexpr int kUnitBytes = kSigns + kSignBytes, kScaleBytes = kRowHalves;
  static constexpr bool kTwoParts = false, kTwoScales = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      const uint8_t* source = block + 2 + 8 * u;
      uint8_t* unit = units + kUnitBytes * u;
      for (int e = 0; e < 4; ++e) unit[kTileRows * e + r] = source[e];
      put_signs_and_scale(unit + kSigns, r, source + 4);
    }
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t* data, const uint8_t* scales, int64_t g,
                                            int half) {
    return scale_in_spare_bits<Lanes>(data + kUnitBytes * g + kSigns,
                                      scales + kScaleBytes * (g / 8), half, 0.125f);
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto eight = look_up_step<Lanes, Iq2XxsBook>(
        [&](int e) __attribute__((always_inline)) { return index<Lanes>(unit, e, half); }, s);
    return with_seven_signs<Lanes, kBias>(eight, unit + kSigns, s, half);
  }

 private:
  template <class Lanes>
  VITRINE_BLOCK_INLINE auto index(const uint8_t* unit, int e, int half) {
    return Lanes::byte_indices(unit + kTileRows * e, half);
  }
};

}  // namespace vitrine::kernels::blocks
