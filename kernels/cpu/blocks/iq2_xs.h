// SPDX-License-Identifier: Apache-2.0
// IQ2_XS: a half d; for each eight columns an index of nine bits into a book of eight magnitudes
// and seven signs; for each 16 a scale s of four bits; (d * (2 * s + 1) / 8) * value.
#pragma once

#include "signs.h"

namespace vitrine::kernels::blocks {

struct Iq2Xs : BytesOfABook, TwoScalesInAByte {
  static constexpr BlockFormat kFormat = BlockFormat::kIq2Xs;
  static constexpr const char* kName = "iq2_xs";
  static constexpr int kCols = 256, kBytes = 74;
  static constexpr int kBias = kIq2Bias, kChain = 1;
  // A unit is the low bytes of four indices, then planes of signs with the ninth bits as spare
  // ones. A block's scales: d; for each unit a byte, its two scales.
  static constexpr int kSigns = 4 * kTileRows;
  static constexpr int kUnitBytes = kSigns + kSignBytes;
  static constexpr bool kTwoParts = true, kTwoScales = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int e = 0; e < 32; ++e) {
      const uint32_t code = half_of(block + 2 + 2 * e);
      uint8_t* unit = units + kUnitBytes * (e / 4);
      unit[kTileRows * (e % 4) + r] = static_cast<uint8_t>(code);
      put_signs(unit + kSigns, r, e % 4, code >> 9 | (code >> 8 & 1) << 7);
    }
    put(block + 66, r, scales);
    put_half(scales, r, half_of(block));
    return is_finite_half(half_of(block));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t, int s, int half) {
    const auto eight = look_up_step<Lanes, Iq2XsBook>(
        [&](int e) __attribute__((always_inline)) { return index<Lanes>(unit, e, half); }, s);
    return with_seven_signs<Lanes, kBias>(eight, unit + kSigns, s, half);
  }

 private:
  template <class Lanes>
  VITRINE_BLOCK_INLINE typename Lanes::Ints index(const uint8_t* unit, int e, int half) {
    const uint8_t* high = unit + kSigns + 2 * kPlaneBytes * e + kPlaneBytes;
    const auto nibble = Lanes::nibbles(Lanes::plane(high, half));
    return Lanes::bit_or(Lanes::bytes(unit + kTileRows * e, half),
                         above_a_byte<Lanes>(nibble, 3, 1));
  }
};

}  // namespace vitrine::kernels::blocks
