#include <algorithm>
#include <cmath>

#include "vitrine/quant.h"

namespace vitrine {
namespace {

void check_matrix(const QuantizedMatrix& matrix) {
  int64_t count = 0;
  const bool sane = matrix.group_size > 0 && matrix.rows >= 0 && matrix.cols >= 0 &&
                    matrix.cols % matrix.group_size == 0 &&
                    !__builtin_mul_overflow(matrix.rows, matrix.cols, &count) &&
                    matrix.values.size() == static_cast<uint64_t>(count) &&
                    matrix.scales.size() == static_cast<uint64_t>(count / matrix.group_size);
  if (!sane) {
    throw Error(ErrorKind::kInvalidArgument,
                "quantized matrix has " + std::to_string(matrix.values.size()) + " values and " +
                    std::to_string(matrix.scales.size()) + " scales; expected " +
                    std::to_string(matrix.rows) + " rows of " + std::to_string(matrix.cols) +
                    " in groups of " + std::to_string(matrix.group_size));
  }
}

}  // namespace

std::vector<float> dequantize_matrix(const QuantizedMatrix& matrix) {
  check_matrix(matrix);
  std::vector<float> weights(matrix.values.size());
  const auto group_size = static_cast<size_t>(matrix.group_size);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(matrix.values[i]) * matrix.scales[i / group_size];
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
  const auto group_size = static_cast<size_t>(matrix.group_size);
  double sum = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double restored =
        static_cast<double>(static_cast<float>(matrix.values[i]) * matrix.scales[i / group_size]);
    const double difference = std::fabs(static_cast<double>(weights[i]) - restored);
    sum += difference;
    error.worst_absolute = std::max(error.worst_absolute, difference);
  }
  if (!weights.empty()) error.mean_absolute = sum / static_cast<double>(weights.size());
  return error;
}

}  // namespace vitrine
