// SPDX-License-Identifier: Apache-2.0
// Q3_K: 256 high bits, 256 numbers of two bits, 16 6-bit scales s in 12 bytes, a half d;
// (d * (s - 32)) * (u - 4).
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

struct Q3_K {
  static constexpr BlockFormat kFormat = BlockFormat::kQ3_K;
  static constexpr const char* kName = "q3_k";
  static constexpr int kCols = 256, kBytes = 110;
  // A unit is two bits each, then planes of the high bits. A block's scales: d; for each unit a
  // byte, the low nibbles of its two scales; for each two units a byte, two high bits of each of
  // their scales.
  static constexpr int kPlanes = 2 * kRowWords;
  static constexpr int kUnitBytes = kPlanes + 8 * kPlaneBytes;
  static constexpr int kLow = kRowHalves, kHigh = kLow + 8 * kTileRows;
  static constexpr int kScaleBytes = kHigh + 4 * kTileRows;
  static constexpr int kBias = 4, kChain = 4;
  static constexpr bool kTwoParts = true, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    const uint8_t* packed = block + 96;
    for (int p = 0; p < 16; ++p) {
      const uint32_t low = packed[p % 8] >> (p / 8 * 4) & 15u;
      const uint32_t high = packed[8 + p % 4] >> (p / 4 * 2) & 3u;
      scales[kLow + kTileRows * (p / 2) + r] |= static_cast<uint8_t>(low << (4 * (p % 2)));
      scales[kHigh + kTileRows * (p / 4) + r] |= static_cast<uint8_t>(high << (2 * (p % 4)));
    }
    for (int u = 0; u < 8; ++u) {
      put_two_bits(units + kUnitBytes * u, r, block + 32 + u / 4 * 32, u % 4 * 2);
      put_planes(units + kUnitBytes * u + kPlanes, r, block, u);
    }
    put_half(scales, r, half_of(block + 108));
    return is_finite_half(half_of(block + 108));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    const uint8_t* block = scales + kScaleBytes * (g / 8);
    const auto [first, second] =
        six_bits<Lanes>(block + kLow, block + kHigh, static_cast<int>(g % 8), half);
    const auto bias = Lanes::set_ints(-32);
    return scale_and_parts<Lanes>(Lanes::halves(block, half), Lanes::add(first, bias),
                                  Lanes::add(second, bias));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    return with_bits<Lanes>(two_bits<Lanes>(unit, s, half), unit + kPlanes, s, half, 4);
  }
};

}  // namespace vitrine::kernels::blocks
