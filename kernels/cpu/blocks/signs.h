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

/// Gives signs to magnitudes that have 128 added: 128 less the magnitude where one is set.
template <class Lanes>
VITRINE_BLOCK_INLINE Eight<Lanes> with_signs(Eight<Lanes> magnitudes, const uint8_t* planes, int s,
                                             int half) {
  const uint8_t* own = planes + 2 * kPlaneBytes * s;
  return {Lanes::negate_where(magnitudes.low, Lanes::plane(own, half)),
          Lanes::negate_where(magnitudes.high, Lanes::plane(own + kPlaneBytes, half))};
}

/// with_signs where the eighth sign makes the number of set ones even.
template <class Lanes>
VITRINE_BLOCK_INLINE Eight<Lanes> with_seven_signs(Eight<Lanes> magnitudes, const uint8_t* planes,
                                                   int s, int half) {
  typename Lanes::Plane signs[2];
  Lanes::seven_signs(planes, s, half, signs);
  return {Lanes::negate_where(magnitudes.low, signs[0]),
          Lanes::negate_where(magnitudes.high, signs[1])};
}

/// The spare bits of a unit's four eights, the first one lowest.
template <class Lanes>
VITRINE_BLOCK_INLINE typename Lanes::Ints spare_bits(const uint8_t* planes, int half) {
  using Plane = typename Lanes::Plane;
  Plane bits = 0;
  for (int s = 0; s < 4; ++s) {
    const Plane high = Lanes::plane(planes + 2 * kPlaneBytes * s + kPlaneBytes, half);
    bits |= (high & static_cast<Plane>(0x8888888888888888)) >> (3 - s);
  }
  return Lanes::nibbles(bits);
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

/// The entries of eight s of a unit. Two neighbouring ones are looked up together: whoever takes
/// both in turn has the compiler do it once.
template <class Lanes, class Book, class Index>
VITRINE_BLOCK_INLINE Eight<Lanes> look_up_step(const Index& index, int s) {
  const auto both = Lanes::template look_up_eights<Book>(index(s / 2 * 2), index(s / 2 * 2 + 1));
  return s % 2 == 0 ? both.first : both.second;
}

/// What formats with bytes of all eight bits, and signs, have in common.
struct SignedBytes {
  static constexpr int kBias = 128, kChain = 1;
  static constexpr bool kHasMinimum = false;
};

}  // namespace vitrine::kernels::blocks
