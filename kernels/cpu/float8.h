// SPDX-License-Identifier: Apache-2.0
// E4M3 in plain C++: one sign, four exponent bits (bias 7), three of the mantissa; 0x7f is NaN,
// there is no infinity, 448 is the largest (Micikevicius et al., FP8 Formats for Deep Learning,
// 2022). The one source of these conversions, for the kernels and for the library above them.
#pragma once

#include <cstdint>

#include "half.h"

namespace vitrine::kernels {

/// Widens what is no NaN exactly: exponent and mantissa move to where float32 has its own, 2^120
/// too small (subnormal ones too).
static inline float widen_e4m3(uint8_t bits) {
  const uint32_t moved =
      static_cast<uint32_t>(bits & 0x80) << 24 | static_cast<uint32_t>(bits & 0x7f) << 20;
  return float_from_bits(moved) * 0x1p120f;
}

/// Widens any value exactly; a NaN stays a NaN.
static inline float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24;
  return (bits & 0x7f) == 0x7f ? float_from_bits(sign | 0x7fc00000u) : widen_e4m3(bits);
}

/// Rounds to the nearest, ties to even; what is beyond 448 becomes 448, a NaN stays a NaN.
static inline uint8_t float_to_e4m3(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e80000u) return static_cast<uint8_t>(sign | 0x7eu);  // 464: a tie with 480
  if (magnitude < 0x3c800000u) {  // below 2^-6: a multiple of 2^-9, rounded by the adder
    const float shifted = float_from_bits(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (bits_from_float(shifted) & 0xfu));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

}  // namespace vitrine::kernels
