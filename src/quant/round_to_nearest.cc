// SPDX-License-Identifier: Apache-2.0
#include "round_to_nearest.h"

#include <algorithm>
#include <cmath>

#include "group_grid.h"

namespace vitrine {
namespace quant {

float round_to_dtype(float value, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return bf16_to_float(float_to_bf16(value));
    case DType::kF16: return f16_to_float(float_to_f16(value));
    default: return value;
  }
}

float dtype_epsilon(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1p-7f;
    case DType::kF16: return 0x1p-10f;
    default: return 0x1p-23f;
  }
}

void check_weights(std::span<const float> weights, int64_t rows, int64_t cols, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    throw Error(ErrorKind::kInvalidArgument, "weights of dtype " + std::string(dtype_name(dtype)) +
                                                 " can't be quantized; expected F32, F16 or BF16");
  }
  int64_t count = 0;
  if (rows < 0 || cols < 0 || __builtin_mul_overflow(rows, cols, &count) ||
      weights.size() != static_cast<uint64_t>(count)) {
    throw Error(ErrorKind::kInvalidArgument, "matrix has " + std::to_string(weights.size()) +
                                                 " weights; expected " + std::to_string(rows) +
                                                 " rows of " + std::to_string(cols));
  }
}

Error not_finite(int64_t row, int64_t col) {
  return {ErrorKind::kInvalidArgument, "weight in row " + std::to_string(row) + ", column " +
                                           std::to_string(col) +
                                           " is not finite; expected a number"};
}

namespace {

void check_arguments(std::span<const float> weights, int64_t rows, int64_t cols, DType dtype,
                     int bits, int group_size) {
  if (bits != 3 && bits != 4 && bits != 8) {
    throw Error(ErrorKind::kInvalidArgument,
                "quantization to " + std::to_string(bits) + " bits is unknown; expected 3, 4 or 8");
  }
  if (group_size == kWholeRow) {
    check_weights(weights, rows, cols, dtype);
    return;
  }
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    throw Error(ErrorKind::kInvalidArgument,
                "group size " + std::to_string(group_size) + " is unknown; expected 32, 64 or 128");
  }
  check_weights(weights, rows, cols, dtype);
  if (cols % group_size != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "matrix has " + std::to_string(cols) +
                    " columns; expected a multiple of the group size " +
                    std::to_string(group_size));
  }
}

GroupGrid symmetric_grid(float smallest, float largest, int bits, DType dtype) {
  const float half_range = static_cast<float>((1 << bits) - 1) / 2.0f;  // exact in all three dtypes
  const float scale = round_to_dtype(std::max(-smallest, largest) / half_range, dtype);
  return {scale == 0.0f ? dtype_epsilon(dtype) : scale, 0.0f};
}

GroupGrid asymmetric_grid(float smallest, float largest, const IntegerRange& range, DType dtype) {
  const auto [lowest, highest] = range;
  const float span = round_to_dtype(largest - smallest, dtype);
  const float scale = round_to_dtype(span / (highest - lowest), dtype);
  if (scale == 0.0f) {  // of zeros, or so little that the quotient underflows
    return {dtype_epsilon(dtype), smallest < 0.0f ? highest : 0.0f};
  }
  const float quotient = round_to_dtype(smallest / scale, dtype);
  const float zero_point = round_to_dtype(lowest - quotient, dtype);
  return {scale, round_half_even(std::clamp(zero_point, lowest, highest))};
}

}  // namespace

GroupGrid group_grid(float smallest, float largest, int bits, bool symmetric, DType dtype) {
  return symmetric ? symmetric_grid(smallest, largest, bits, dtype)
                   : asymmetric_grid(smallest, largest, IntegerRange(bits), dtype);
}

QuantizedMatrix round_to_nearest(std::span<const float> weights, int64_t rows, int64_t cols,
                                 DType dtype, const QuantScheme& scheme) {
  const int bits = scheme.bits;
  check_arguments(weights, rows, cols, dtype, bits, scheme.group_size);
  const int group_size = scheme.group_size == kWholeRow
                             ? static_cast<int>(std::max<int64_t>(1, cols))
                             : scheme.group_size;
  QuantizedMatrix matrix;
  matrix.bits = bits;
  matrix.group_size = group_size;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.scale_dtype = dtype;
  matrix.values.resize(weights.size());
  matrix.scales.resize(weights.size() / static_cast<size_t>(group_size));

  if (!scheme.symmetric) matrix.zero_points.resize(matrix.scales.size());

  const auto [lowest, highest] = IntegerRange(bits);
  for (size_t group = 0; group < matrix.scales.size(); ++group) {
    const float* group_weights = weights.data() + group * static_cast<size_t>(group_size);
    int8_t* group_values = matrix.values.data() + group * static_cast<size_t>(group_size);
    float smallest = 0.0f;  // zero is always among the values
    float largest = 0.0f;
    for (int i = 0; i < group_size; ++i) {
      if (!std::isfinite(group_weights[i])) {
        const size_t index = group * static_cast<size_t>(group_size) + static_cast<size_t>(i);
        throw not_finite(static_cast<int64_t>(index) / cols, static_cast<int64_t>(index) % cols);
      }
      smallest = std::min(smallest, group_weights[i]);
      largest = std::max(largest, group_weights[i]);
    }
    const GroupGrid grid = group_grid(smallest, largest, bits, scheme.symmetric, dtype);
    if (!std::isfinite(grid.scale)) {
      const size_t row = group * static_cast<size_t>(group_size) / static_cast<size_t>(cols);
      throw Error(ErrorKind::kInvalidArgument,
                  "weights of a group in row " + std::to_string(row) + " span more than " +
                      std::string(dtype_name(dtype)) + " holds; expected a smaller span");
    }
    matrix.scales[group] = grid.scale;
    if (!scheme.symmetric) matrix.zero_points[group] = static_cast<int8_t>(grid.zero_point);
    for (int i = 0; i < group_size; ++i) {
      float scaled = round_to_dtype(group_weights[i] / grid.scale, dtype);
      scaled = round_to_dtype(scaled + grid.zero_point, dtype);
      group_values[i] = static_cast<int8_t>(round_half_even(std::clamp(scaled, lowest, highest)));
    }
  }
  return matrix;
}

}  // namespace quant

QuantizedMatrix quantize_matrix(std::span<const float> weights, int64_t rows, int64_t cols,
                                DType dtype, const QuantScheme& scheme) {
  return quant::round_to_nearest(weights, rows, cols, dtype, scheme);
}

}  // namespace vitrine
