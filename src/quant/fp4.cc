// SPDX-License-Identifier: Apache-2.0
#include "fp4.h"

#include <algorithm>
#include <cmath>

namespace vitrine::quant {

QuantizedMatrix round_to_fp4(std::span<const float> weights, int64_t rows, int64_t cols,
                             DType dtype, int group_size, float divisor, const Fp4Scale& scale_of) {
  check_weights(weights, rows, cols, dtype);
  if (cols % group_size != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "matrix has " + std::to_string(cols) + " columns; expected a multiple of the " +
                    std::to_string(group_size) + " that share a scale");
  }
  QuantizedMatrix matrix;
  matrix.number_format = NumberFormat::kE2M1;
  matrix.bits = 4;
  matrix.group_size = group_size;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.divisor = divisor;
  matrix.values.reserve(weights.size());
  matrix.scales.reserve(weights.size() / static_cast<size_t>(group_size));
  for (size_t first = 0; first < weights.size(); first += static_cast<size_t>(group_size)) {
    const std::span group = weights.subspan(first, static_cast<size_t>(group_size));
    float largest = 0.0f;
    for (size_t i = 0; i < group.size(); ++i) {
      const auto at = static_cast<int64_t>(first + i);
      if (!std::isfinite(group[i])) throw not_finite(at / cols, at % cols);
      largest = std::max(largest, std::fabs(group[i]));
    }
    const float scale = scale_of(largest);
    matrix.scales.push_back(scale);
    const float step = scale / divisor;
    for (const float weight : group) {
      matrix.values.push_back(static_cast<int8_t>(float_to_e2m1(weight / step)));
    }
  }
  return matrix;
}

}  // namespace vitrine::quant
