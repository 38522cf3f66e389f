// SPDX-License-Identifier: Apache-2.0
// The scheme fp8: E4M3 floats, one scale a row.
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

const QuantMethodRegistration kFp8Registration({.name = "fp8",
                                                .description = "8-bit floats (E4M3), a scale for "
                                                               "each row, round-to-nearest",
                                                .number_format = NumberFormat::kE4M3,
                                                .bits = 8,
                                                .quantize = &quantize_fp8});

}  // namespace
}  // namespace vitrine::quant
