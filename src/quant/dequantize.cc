// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "vitrine/quant.h"

namespace vitrine {
namespace {

void check_matrix(const QuantizedMatrix& matrix) {
  int64_t count = 0;
  const bool sane =
      matrix.group_size > 0 && matrix.rows >= 0 && matrix.cols >= 0 &&
      !__builtin_mul_overflow(matrix.rows, matrix.cols, &count) &&
      matrix.values.size() == static_cast<uint64_t>(count) &&
      matrix.scales.size() == static_cast<uint64_t>(matrix.rows * matrix.groups()) &&
      (matrix.zero_points.empty() || (matrix.number_format == NumberFormat::kInteger &&
                                      matrix.zero_points.size() == matrix.scales.size()));
  if (!sane) {
    throw Error(ErrorKind::kInvalidArgument,
                "quantized matrix has " + std::to_string(matrix.values.size()) + " values and " +
                    std::to_string(matrix.scales.size()) + " scales; expected " +
                    std::to_string(matrix.rows) + " rows of " + std::to_string(matrix.cols) +
                    " in groups of " + std::to_string(matrix.group_size));
  }
}

/// The weight that is stored at [row][col].
float restore(const QuantizedMatrix& matrix, int64_t row, int64_t col) {
  const auto group = static_cast<size_t>(row * matrix.groups() + col / matrix.group_size);
  const int8_t stored = matrix.values[static_cast<size_t>(row * matrix.cols + col)];
  if (matrix.number_format == NumberFormat::kE4M3) {
    return e4m3_to_float(static_cast<uint8_t>(stored)) * matrix.scales[group];
  }
  if (matrix.number_format == NumberFormat::kE2M1) {
    return e2m1_to_float(static_cast<uint8_t>(stored)) * (matrix.scales[group] / matrix.divisor);
  }
  int value = stored;
  if (!matrix.zero_points.empty()) value -= matrix.zero_points[group];
  return static_cast<float>(value) * matrix.scales[group];
}

}  // namespace

std::vector<float> dequantize_matrix(const QuantizedMatrix& matrix) {
  check_matrix(matrix);
  std::vector<float> weights;
  weights.reserve(matrix.values.size());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t col = 0; col < matrix.cols; ++col) weights.push_back(restore(matrix, row, col));
  }
  return weights;
}

QuantError quantization_error(std::span<const float> weights, const QuantizedMatrix& matrix) {
  check_matrix(matrix);
  if (weights.size() != matrix.values.size()) {
    throw Error(ErrorKind::kInvalidArgument, "matrix has " + std::to_string(weights.size()) +
                                                 " weights; expected " +
                                                 std::to_string(matrix.values.size()));
  }
  QuantError error;
  double sum = 0.0;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t col = 0; col < matrix.cols; ++col) {
      const double weight = weights[static_cast<size_t>(row * matrix.cols + col)];
      const double difference = std::fabs(weight - static_cast<double>(restore(matrix, row, col)));
      sum += difference;
      error.worst_absolute = std::max(error.worst_absolute, difference);
    }
  }
  if (!weights.empty()) error.mean_absolute = sum / static_cast<double>(weights.size());
  return error;
}

}  // namespace vitrine
