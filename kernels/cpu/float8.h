// SPDX-License-Identifier: Apache-2.0
// E4M3 in plain C++: one sign, four exponent bits (bias 7), three of the mantissa; 0x7f is NaN,
// there is no infinity, 448 is the largest (Micikevicius et al., FP8 Formats for Deep Learning,
// 2022).
#pragma once

#include <cmath>
#include <cstdint>

#include "half.h"

namespace vitrine::kernels {

/// Exact.
static inline float e4m3_to_float(uint8_t bits) {
  const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

/// The same of what is no NaN, by moving its exponent and mantissa to where float32 has its own.
static inline float widen_e4m3(uint8_t bits) {
  const uint32_t moved =
      static_cast<uint32_t>(bits & 0x80) << 24 | static_cast<uint32_t>(bits & 0x7f) << 20;
  return float_from_bits(moved) * 0x1p120f;
}

/// To nearest, ties to even; what is beyond 448 becomes 448, NaN stays NaN.
static inline uint8_t float_to_e4m3(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude >= 464.0f)
    return static_cast<uint8_t>(sign | 0x7e);  // 464 ties between 448 and 480
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, f in [0.5, 1)
  if (magnitude == 0.0f || exponent < -5) exponent = -5;  // below 2^-6: multiples of 2^-9
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 4 - exponent)));
  // `steps` of 8 … 16 at this exponent; 16 carries into the next one by itself.
  return static_cast<uint8_t>(sign | (steps + ((exponent + 5) << 3)));
}

}  // namespace vitrine::kernels
