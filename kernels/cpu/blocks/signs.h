// SPDX-License-Identifier: Apache-2.0
// Signs of the IQ2 and IQ3 formats. Of each eight columns there are two planes, the signs of the
// first four and of the last. Formats that store seven signs of eight have the last one as the
// parity of the others; its bit then holds something else (the "spare" bit).
#pragma once

#include "books.h"
#include "format.h"

namespace vitrine::kernels::blocks {

constexpr int kSignBytes = 8 * kPlaneBytes;  // of a unit

VITRINE_BLOCK_INLINE void put_signs(uint8_t* planes, int r, int eight, uint32_t signs) {
  put_bits(planes + 2 * kPlaneBytes * eight, r, signs);
  put_bits(planes + 2 * kPlaneBytes * eight + kPlaneBytes, r, signs >> 4);
}

/// A plane, of all sixteen rows.
VITRINE_BLOCK_INLINE uint64_t plane_of(const uint8_t* plane) {
  uint64_t bits;
  memcpy(&bits, plane, sizeof bits);
  return bits;
}

/// Gives signs to magnitudes that have kBias added: kBias less the magnitude where one is set.
template <class Lanes, int kBias>
VITRINE_BLOCK_INLINE Eight<Lanes> with_signs(Eight<Lanes> magnitudes, const uint8_t* planes, int s,
                                             int half) {
  const uint8_t* own = planes + 2 * kPlaneBytes * s;
  return {Lanes::template subtract_where<2 * kBias>(magnitudes.low, Lanes::plane(own, half)),
          Lanes::template subtract_where<2 * kBias>(magnitudes.high,
                                                    Lanes::plane(own + kPlaneBytes, half))};
}

/// with_signs where the eighth sign makes the number of set ones even: it is the parity of the
/// others.
template <class Lanes, int kBias>
VITRINE_BLOCK_INLINE Eight<Lanes> with_seven_signs(Eight<Lanes> magnitudes, const uint8_t* planes,
                                                   int s, int half) {
  const uint8_t* own = planes + 2 * kPlaneBytes * s;
  const uint64_t low = plane_of(own);
  const uint64_t high = plane_of(own + kPlaneBytes) & 0x7777777777777777;
  uint64_t parity = low ^ high;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  const uint64_t last = (parity & 0x1111111111111111) << 3;
  return {Lanes::template subtract_where<2 * kBias>(magnitudes.low, Lanes::rows_of(low, half)),
          Lanes::template subtract_where<2 * kBias>(magnitudes.high,
                                                    Lanes::rows_of(high | last, half))};
}

/// The spare bits of a unit's four eights, the first one lowest.
template <class Lanes>
VITRINE_BLOCK_INLINE typename Lanes::Ints spare_bits(const uint8_t* planes, int half) {
  uint64_t bits = 0;
  for (int s = 0; s < 4; ++s) {
    const uint64_t high = plane_of(planes + 2 * kPlaneBytes * s + kPlaneBytes);
    bits |= (high & 0x8888888888888888) >> (3 - s);
  }
  return Lanes::nibbles(Lanes::rows_of(bits, half));
}

/// (2 * scale + 1), as an integer.
template <class Lanes>
VITRINE_BLOCK_INLINE typename Lanes::Ints odd(typename Lanes::Ints scale) {
  return Lanes::add(Lanes::shift_left(scale, 1), Lanes::set_ints(1));
}

/// A half times a power of two times an integer, each product rounded.
template <class Lanes>
VITRINE_BLOCK_INLINE typename Lanes::Floats scaled_half(const uint8_t* halves, int half,
                                                        float factor) {
  return Lanes::mul(Lanes::halves(halves, half), Lanes::set(factor));
}

/// Packs four times seven signs, and a scale of four bits as spare ones, from the 32 bits of
/// IQ2_XXS and IQ3_XXS.
VITRINE_BLOCK_INLINE void put_signs_and_scale(uint8_t* planes, int r, const uint8_t* word_bytes) {
  uint32_t word;
  memcpy(&word, word_bytes, sizeof word);
  for (int e = 0; e < 4; ++e) {
    put_signs(planes, r, e, (word >> (7 * e) & 127) | (word >> (28 + e) & 1) << 7);
  }
}

/// The meaning of a half, times a factor, times the odd number of a scale in spare bits.
template <class Lanes>
VITRINE_BLOCK_INLINE Meaning<Lanes> scale_in_spare_bits(const uint8_t* planes,
                                                        const uint8_t* halves, int half,
                                                        float factor) {
  const auto scale = odd<Lanes>(spare_bits<Lanes>(planes, half));
  return scale_alone<Lanes>(
      Lanes::mul(scaled_half<Lanes>(halves, half, factor), Lanes::to_float(scale)));
}

/// What IQ2_XS and IQ2_S have beside their indices and signs: a half for a block, and for each unit
/// a byte, a scale of four bits for each half of its columns.
struct TwoScalesInAByte {
  static constexpr int kScaleBytes = kRowHalves + 8 * kTileRows;

  VITRINE_BLOCK_INLINE void put(const uint8_t* bytes, int r, uint8_t* scales) {
    for (int u = 0; u < 8; ++u) scales[kRowHalves + kTileRows * u + r] = bytes[u];
  }
  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    const uint8_t* block = scales + kScaleBytes * (g / 8);
    const auto pair = Lanes::bytes(block + kRowHalves + kTileRows * (g % 8), half);
    return scale_and_parts<Lanes>(scaled_half<Lanes>(block, half, 0.125f),
                                  odd<Lanes>(Lanes::mask(pair, 15)),
                                  odd<Lanes>(Lanes::shift_right(pair, 4)));
  }
};

/// The entries of eight s of a unit. Two neighbouring ones are looked up together: whoever takes
/// both in turn has the compiler do it once.
template <class Lanes, class Book, class Index>
VITRINE_BLOCK_INLINE Eight<Lanes> look_up_step(const Index& index, int s) {
  const auto both = Lanes::template look_up_eights<Book>(index(s / 2 * 2), index(s / 2 * 2 + 1));
  return s % 2 == 0 ? both.first : both.second;
}

/// `count` bits from bit `from` on, as those of an index above its byte.
template <class Lanes>
VITRINE_BLOCK_INLINE typename Lanes::Ints above_a_byte(typename Lanes::Ints bits, int from,
                                                       int count) {
  const auto moved =
      from <= 8 ? Lanes::shift_left(bits, 8 - from) : Lanes::shift_right(bits, from - 8);
  return Lanes::mask(moved, ((1 << count) - 1) << 8);
}

/// Holds what formats with bytes out of a book have in common. Tables that decode a tile once for
/// many tokens do so for these, since looking up costs more than a store and a load.
struct BytesOfABook {
  static constexpr bool kHasMinimum = false;
};

}  // namespace vitrine::kernels::blocks
