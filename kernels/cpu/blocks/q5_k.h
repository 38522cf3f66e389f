// SPDX-License-Identifier: Apache-2.0
// Q5_K: halves d and m, eight 6-bit scales s and minimums n, 256 high bits, 256 nibbles;
// (d * s) * u - (m * n).
#pragma once

#include "q5_0.h"

namespace vitrine::kernels::blocks {

struct Q5_K {
  static constexpr BlockFormat kFormat = BlockFormat::kQ5_K;
  static constexpr const char* kName = "q5_k";
  static constexpr int kCols = 256, kBytes = 176;
  // A block's scales: d, m; for each unit a byte, scale & 15 | minimum << 4; for each two units a
  // byte with the two high bits of scale and minimum of the first, then of the second.
  static constexpr int kLow = 2 * kRowHalves, kHigh = kLow + 8 * kTileRows;
  static constexpr int kUnitBytes = FiveBits::kUnitBytes, kScaleBytes = kHigh + 4 * kTileRows;
  static constexpr int kBias = 0, kChain = 4;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = true;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) {
      const auto [scale, minimum] = scale_and_minimum(block + 4, u);
      scales[kLow + kTileRows * u + r] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
      scales[kHigh + kTileRows * (u / 2) + r] |=
          static_cast<uint8_t>((scale >> 4 | minimum >> 4 << 2) << (4 * (u % 2)));
    }
    uint8_t numbers[kCols];
    for (int i = 0; i < 4; ++i) take_nibbles(block + 48 + 32 * i, 32, numbers + 64 * i);
    for (int u = 0; u < 8; ++u) {
      uint8_t* unit = units + kUnitBytes * u;
      put_nibbles(unit, r, numbers + 32 * u);
      put_planes(unit + FiveBits::kPlanes, r, block + 16, u);
    }
    put_half(scales, r, half_of(block));
    put_half(scales + kRowHalves, r, half_of(block + 2));
    return is_finite_half(half_of(block)) && is_finite_half(half_of(block + 2));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    const uint8_t* block = scales + kScaleBytes * (g / 8);
    const auto [scale, minimum] =
        six_bits<Lanes>(block + kLow, block + kHigh, static_cast<int>(g % 8), half);
    auto meaning =
        scale_alone<Lanes>(Lanes::mul(Lanes::halves(block, half), Lanes::to_float(scale)));
    meaning.minimum = Lanes::negative(
        Lanes::mul(Lanes::halves(block + kRowHalves, half), Lanes::to_float(minimum)));
    return meaning;
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return FiveBits::step<Lanes>(unit, s, half);
  }
};

}  // namespace vitrine::kernels::blocks
