// SPDX-License-Identifier: Apache-2.0
// 16-bit floats to float32 and back, in plain C++ and with the same bits on any machine: the one
// source of these conversions, for the kernels and for the library above them. Internal linkage:
// each file has its own copy, compiled for its instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace vitrine::kernels {

static inline float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float widen_bf16(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

/// Exact; a signalling NaN becomes quiet, as vcvtph2ps makes it.
static inline float widen_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero and denormals: mantissa * 2^-24 is exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return float_from_bits(bits_from_float(magnitude) | sign);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return float_from_bits(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

/// Rounds half to even; NaN stays a quiet NaN.
static inline uint16_t narrow_bf16(float value) {
  const uint32_t bits = bits_from_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Rounds half to even; overflow gives infinity, NaN stays a quiet NaN.
static inline uint16_t narrow_f16(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by the adder
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_from_float(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace vitrine::kernels
