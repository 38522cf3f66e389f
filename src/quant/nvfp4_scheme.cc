// SPDX-License-Identifier: Apache-2.0
// The scheme nvfp4: E2M1 floats, an E4M3 scale for 16 columns, and one number for the matrix, which
// divides its scales so that they fill the range of E4M3.
#include <algorithm>
#include <cmath>
#include <limits>

#include "fp4.h"

namespace vitrine::quant {
namespace {

constexpr int kNvGroup = 16;
constexpr float kLargestE2M1 = 6.0f, kLargestE4M3 = 448.0f;

/// Does as compressed-tensors, whose scale of a group of zeros is E4M3's epsilon; but of float16,
/// where the divisor of small weights would be infinite, in float32.
QuantizedMatrix quantize_nvfp4_part(std::span<const float> weights, int64_t rows, int64_t cols,
                                    DType dtype, float largest) {
  if (dtype == DType::kF16) dtype = DType::kF32;
  const float least = std::numeric_limits<float>::min();
  // The inverse is rounded before it is multiplied, as torch divides a number by a tensor.
  const float inverse = round_to_dtype(1.0f / std::max(largest, least), dtype);
  float divisor = round_to_dtype(inverse * (kLargestE4M3 * kLargestE2M1), dtype);
  if (!std::isfinite(divisor)) divisor = 1.0f;
  const auto scale_of = [&](float group_largest) {
    const float scale = round_to_dtype(group_largest / kLargestE2M1, dtype) * divisor;
    const float stored = e4m3_to_float(float_to_e4m3(scale));
    return stored == 0.0f ? 0.125f : stored;
  };
  QuantizedMatrix matrix = round_to_fp4(weights, rows, cols, dtype, kNvGroup, divisor, scale_of);
  matrix.scale_dtype = DType::kF8E4M3;
  return matrix;
}

QuantizedMatrix quantize_nvfp4(std::span<const float> weights, int64_t rows, int64_t cols,
                               DType dtype, int /*group_size*/) {
  float largest = 0.0f;
  for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
  return quantize_nvfp4_part(weights, rows, cols, dtype, largest);
}

const QuantMethodRegistration kNvfp4Method({.name = "nvfp4",
                                            .description = "4-bit floats (E2M1), an 8-bit scale "
                                                           "for 16 columns, round-to-nearest",
                                            .number_format = NumberFormat::kE2M1,
                                            .bits = 4,
                                            .layout = "nvfp4-pack-quantized",
                                            .fixed_group = kNvGroup,
                                            .quantize = &quantize_nvfp4,
                                            .quantize_part = &quantize_nvfp4_part});

}  // namespace
}  // namespace vitrine::quant
