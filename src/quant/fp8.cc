// SPDX-License-Identifier: Apache-2.0
// The schemes fp8, fp8-dynamic and fp8-static: E4M3 floats, one scale a row. The last two ask for
// activations in E4M3, too: with a scale for each token, or one that the folder holds.
#include <algorithm>
#include <cmath>

#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

// Columns that share a scale in memory, where a row's groups have the same one.
constexpr int kGroup = 128;
constexpr float kLargest = 448.0f;

QuantizedMatrix quantize_fp8(std::span<const float> weights, int64_t rows, int64_t cols,
                             DType dtype, int /*group_size*/) {
  check_weights(weights, rows, cols, dtype);
  QuantizedMatrix matrix;
  matrix.number_format = NumberFormat::kE4M3;
  matrix.group_size = kGroup;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.scale_dtype = dtype;
  matrix.values.resize(weights.size());
  for (int64_t row = 0; row < rows; ++row) {
    const std::span own =
        weights.subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
    float largest = 0.0f;
    for (size_t i = 0; i < own.size(); ++i) {
      if (!std::isfinite(own[i])) throw not_finite(row, static_cast<int64_t>(i));
      largest = std::max(largest, std::fabs(own[i]));
    }
    float scale = round_to_dtype(largest / kLargest, dtype);
    if (scale == 0.0f) scale = dtype_epsilon(dtype);
    matrix.scales.insert(matrix.scales.end(), static_cast<size_t>(matrix.groups()), scale);
    int8_t* values = matrix.values.data() + row * cols;
    for (size_t i = 0; i < own.size(); ++i) {
      // compressed-tensors adds a zero point of 0: a negative zero becomes a positive one.
      const float scaled = round_to_dtype(own[i] / scale, dtype) + 0.0f;
      values[i] = static_cast<int8_t>(float_to_e4m3(scaled));
    }
  }
  return matrix;
}

QuantMethod fp8(const char* name, const char* description, ActivationUse activations) {
  return {.name = name,
          .description = description,
          .number_format = NumberFormat::kE4M3,
          .bits = 8,
          .layout = "float-quantized",
          .fixed_group = kWholeRow,
          .activations = activations,
          .quantize = &quantize_fp8};
}

const QuantMethodRegistration kFp8Registration(fp8(
    "fp8", "8-bit floats (E4M3), a scale for each row, round-to-nearest", ActivationUse::kFloat));
const QuantMethodRegistration kFp8DynamicRegistration(
    fp8("fp8-dynamic", "8-bit floats (E4M3), a scale for each row, and activations in E4M3",
        ActivationUse::kDynamic));
const QuantMethodRegistration kFp8StaticRegistration(
    fp8("fp8-static", "8-bit floats (E4M3), a scale for each row, and one for activations in E4M3",
        ActivationUse::kStatic));

}  // namespace
}  // namespace vitrine::quant
