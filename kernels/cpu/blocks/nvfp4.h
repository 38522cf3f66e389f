// SPDX-License-Identifier: Apache-2.0
// NVFP4: four scales E4M3 without a sign, one for each 16 columns, then 64 nibbles, E2M1 values;
// (scale / 2) * (2 * value). A scale of 0x7f is 0.
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

/// Twice the E2M1 values, 12 added.
alignas(16) inline constexpr uint8_t kE2M1Bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                       12, 11, 10, 9,  8,  6,  4,  0};

struct Nvfp4 {
  static constexpr BlockFormat kFormat = BlockFormat::kNvfp4;
  static constexpr const char* kName = "nvfp4";
  static constexpr int kCols = 64, kBytes = 36;
  static constexpr int kUnitBytes = 4 * kRowWords, kScaleBytes = 4 * kTileRows;
  static constexpr int kBias = 12, kChain = 4;
  static constexpr bool kTwoParts = false, kTwoScales = true, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int i = 0; i < 4; ++i) {
      const uint8_t scale = block[i];
      scales[kTileRows * i + r] = scale == 0x7f ? 0 : scale;
    }
    for (int u = 0; u < 2; ++u) {
      uint8_t codes[kUnitCols];
      for (int i = 0; i < 2; ++i) take_nibbles(block + 4 + 16 * u + 8 * i, 8, codes + 16 * i);
      put_nibbles(units + kUnitBytes * u, r, codes);
    }
    return true;
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    const uint8_t* own = scales + 2 * kTileRows * g;
    auto meaning = scale_alone<Lanes>(scale<Lanes>(own, half));
    meaning.minimum = scale<Lanes>(own + kTileRows, half);
    return meaning;
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto codes = nibbles<Lanes>(unit, s, half);
    return {Lanes::look_up_16(kE2M1Bytes, codes.low), Lanes::look_up_16(kE2M1Bytes, codes.high)};
  }

 private:
  /// Half of an E4M3 number: as a half its bits mean a 256th.
  template <class Lanes>
  VITRINE_BLOCK_INLINE typename Lanes::Floats scale(const uint8_t* bytes, int half) {
    return Lanes::mul(Lanes::byte_halves(bytes, half), Lanes::set(128.0f));
  }
};

}  // namespace vitrine::kernels::blocks
