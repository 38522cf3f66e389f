// SPDX-License-Identifier: Apache-2.0
// bfloat16 and IEEE half, to and from float32, in integer arithmetic: the same bits on any machine.
#include <bit>
#include <cstring>

#include "vitrine/quant.h"

namespace vitrine {

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  const uint32_t round_to_even = 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>((bits + round_to_even) >> 16);
}

float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  // 65520 is halfway between the largest half and the next power of two: it ties to infinity.
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal half, in units of 2^-24
    if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126u - exponent;
    uint32_t result = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1u);
    if (rest > half || (rest == half && (result & 1u))) ++result;
    return static_cast<uint16_t>(sign | result);
  }
  const uint32_t round_to_even = 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((magnitude + round_to_even - 0x38000000u) >> 13));
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Exponent and mantissa where float32 has its own, 2^120 too small (subnormal ones too).
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e80000u) return static_cast<uint8_t>(sign | 0x7eu);  // 464: a tie with 480
  if (magnitude < 0x3c800000u) {  // below 2^-6: a multiple of 2^-9, rounded by the adder
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xfu));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

void widen_to_f32(const void* data, DType dtype, int64_t count, float* out) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  switch (dtype) {
    case DType::kF32:
      if (count > 0) std::memcpy(out, bytes, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
        out[i] = dtype == DType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
      }
      return;
    default:
      throw Error(ErrorKind::kUnsupported, "dtype " + std::string(dtype_name(dtype)) +
                                               " can't be widened to F32; expected F32, F16 or "
                                               "BF16");
  }
}

}  // namespace vitrine
