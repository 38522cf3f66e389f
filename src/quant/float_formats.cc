// SPDX-License-Identifier: Apache-2.0
// The public names of the conversions that the kernels use.
#include <cmath>
#include <cstring>

#include "block_format.h"
#include "kernels/cpu/float8.h"
#include "kernels/cpu/half.h"
#include "vitrine/quant.h"

namespace vitrine {

uint16_t float_to_bf16(float value) { return kernels::narrow_bf16(value); }
float bf16_to_float(uint16_t bits) { return kernels::widen_bf16(bits); }
uint16_t float_to_f16(float value) { return kernels::narrow_f16(value); }
float f16_to_float(uint16_t bits) { return kernels::widen_f16(bits); }
float e4m3_to_float(uint8_t bits) { return kernels::e4m3_to_float(bits); }
uint8_t float_to_e4m3(float value) { return kernels::float_to_e4m3(value); }

float e2m1_to_float(uint8_t bits) { return 0.5f * quant::kDoubledE2m1[bits & 15]; }

uint8_t float_to_e2m1(float value) {
  // Halfway between two neighbours lies what goes to the one whose mantissa is even.
  constexpr float kHalfway[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float magnitude = std::fabs(value);
  uint8_t number = 0;
  for (uint8_t i = 0; i < 7; ++i) {
    const bool is_even = i % 2 == 0;  // the lower one, which a tie stays at
    if (is_even ? magnitude > kHalfway[i] : magnitude >= kHalfway[i]) number = i + 1;
  }
  return value < 0 ? number | 8 : number;
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
