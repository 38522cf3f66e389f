// SPDX-License-Identifier: Apache-2.0
// The scheme mxfp4 (OCP Microscaling Formats 1.0): E2M1 floats, a power of two for 32 columns.
#include <algorithm>
#include <cmath>

#include "fp4.h"

namespace vitrine::quant {
namespace {

constexpr int kMxGroup = 32;
constexpr int kBias = 127;

/// Rounds a group's largest down to a power of two, or, from 1.75 times that power on, up, as
/// compressed-tensors does; a quarter of it is the scale, since 4 is the largest power that E2M1
/// has.
float power_of_two(float largest) {
  if (largest == 0.0f) return 0x1p-127f;
  int exponent = 0;
  const float fraction = std::frexp(largest, &exponent);  // 0.5 to 1
  const int power = exponent - 1 + (fraction >= 0.875f ? 1 : 0) - 2;
  return std::ldexp(1.0f, std::clamp(power, -kBias, kBias));
}

QuantizedMatrix quantize_mxfp4(std::span<const float> weights, int64_t rows, int64_t cols,
                               DType dtype, int /*group_size*/) {
  QuantizedMatrix matrix = round_to_fp4(weights, rows, cols, dtype, kMxGroup, 1.0f, &power_of_two);
  matrix.scale_dtype = DType::kU8;
  return matrix;
}

const QuantMethodRegistration kMxfp4Method({.name = "mxfp4",
                                            .description = "4-bit floats (E2M1), a power of two "
                                                           "for 32 columns, round-to-nearest",
                                            .number_format = NumberFormat::kE2M1,
                                            .bits = 4,
                                            .layout = "mxfp4-pack-quantized",
                                            .fixed_group = kMxGroup,
                                            .quantize = &quantize_mxfp4});

}  // namespace
}  // namespace vitrine::quant
