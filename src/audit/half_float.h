// SPDX-License-Identifier: Apache-2.0
// float32 to 16 bits and back, rounding to the nearest, ties to even; one NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace vitrine::audit {

/// IEEE binary16. What is too large becomes infinite.
inline uint16_t to_half(float value) {
  constexpr uint32_t kInfinity = 0x7F800000u;
  constexpr uint32_t kTooLarge = (127u + 16u) << 23;  // 2^16
  constexpr uint32_t kSmallestNormal = 113u << 23;    // 2^-14
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & 0x80000000u) >> 16;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= kTooLarge) {
    if (magnitude > kInfinity) return 0x7E00u;
    return static_cast<uint16_t>(sign | 0x7C00u);
  }
  if (magnitude < kSmallestNormal) {
    // The addition's own rounding is the rounding to a subnormal: 0.5's last place is 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xFFFu + odd) >> 13));
}

inline float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float value = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -value : value;
}

/// bfloat16: float32's range with 8 bits of precision.
inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0u;
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

inline float from_bfloat16(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

}  // namespace vitrine::audit
