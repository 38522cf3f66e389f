// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: random inputs, bit comparison, quantized matrices.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/float8.h"
#include "kernels/cpu/half.h"
#include "tests/support/float_bits.h"

namespace vitrine::kernels::testing {

inline constexpr double kEpsilon = 0x1p-24;  // half an ulp of 1 in float32

/// Every table that this machine can run.
inline std::span<const CpuKernels* const> available_tables() { return cpu_kernel_tables(); }

/// The tables whose bits are compared with the portable one's.
inline std::span<const CpuKernels* const> vector_tables() {
  return available_tables().first(available_tables().size() - 1);
}

/// Equal bits; any NaN equals any NaN (payloads are not part of the contract).
inline bool equal_bits(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return memcmp(&a, &b, sizeof(a)) == 0;
}

inline ::testing::AssertionResult same_bits(float a, float b) {
  if (equal_bits(a, b)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << testing_support::with_bits(a) << " and " << testing_support::with_bits(b);
}

inline ::testing::AssertionResult same_bits(const std::vector<float>& a,
                                            const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal_bits(a[i], b[i])) {
      return ::testing::AssertionFailure() << testing_support::different_elements(i, a[i], b[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  std::vector<float> normals(size_t n, float scale = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, scale);
    std::vector<float> values(n);
    for (float& value : values) value = distribution(engine_);
    return values;
  }
  int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  std::vector<int32_t> permutation(int32_t n) {
    std::vector<int32_t> values(n);
    for (int32_t i = 0; i < n; ++i) values[i] = i;
    std::shuffle(values.begin(), values.end(), engine_);
    return values;
  }

 private:
  std::mt19937 engine_;
};

inline double norm(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum);
}

/// Half of the numbers that integers of a format can be.
inline int half_range(WeightFormat format) {
  return format == WeightFormat::kInt3 ? 4 : format == WeightFormat::kInt4 ? 8 : 128;
}

/// A random matrix in any format, with its exact values beside it.
struct Matrix {
  Weight weight;
  std::vector<float> values;  // [rows, cols]: what the stored elements mean, scales not applied
  std::vector<float> scales;  // [rows, cols / group_size], quantized formats
  std::vector<uint8_t> data;
  std::vector<uint8_t> packed_scales;
  std::vector<int8_t> quantized;  // [rows, cols]
  std::vector<float> offsets;     // [rows, group_count], zero points or minimums
  std::vector<uint8_t> packed_offsets;
  std::vector<double> exact;  // [rows, cols], block formats and E4M3: the elements

  bool is_quantized() const { return !is_float_format(weight.format); }
  /// Group size of the int8 input rows that it meets; 0: float rows.
  int32_t input_group() const { return is_quantized() ? weight.group_size : 0; }
  bool has_minimum() const { return weight.offset_format > OffsetFormat::kZeroPoint; }
  /// The matrix element that is stored at [row][col].
  double at(int64_t row, int64_t col) const {
    if (!exact.empty()) return exact[row * weight.cols + col];
    double value = values[row * weight.cols + col];
    if (!is_quantized()) return value;
    const int64_t group =
        row * group_count(weight.cols, weight.group_size) + col / weight.group_size;
    if (weight.offset_format == OffsetFormat::kZeroPoint) value -= offsets[group];
    if (has_minimum()) value += half_range(weight.format);
    return value * scales[group] + (has_minimum() ? offsets[group] : 0.0);
  }
};

inline float round_to(ScaleFormat format, float value) {
  if (format == ScaleFormat::kF16) return widen_f16(narrow_f16(value));
  if (format == ScaleFormat::kBF16) return widen_bf16(narrow_bf16(value));
  return value;
}

/// Bytes of every kind but NaN, and scales of about one size.
inline Matrix e4m3_matrix(Random& random, int64_t rows, int64_t cols) {
  Matrix matrix;
  const int64_t groups = group_count(cols, kE4M3Group);
  matrix.scales = random.normals(rows * groups, 0.01f);
  matrix.packed_scales.resize(matrix.scales.size() * sizeof(float));
  memcpy(matrix.packed_scales.data(), matrix.scales.data(), matrix.packed_scales.size());
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int code = random.integer(0, 0x7e) | (random.integer(0, 1) << 7);
    matrix.data.push_back(static_cast<uint8_t>(code));
    const float scale = matrix.scales[i / cols * groups + i % cols / kE4M3Group];
    matrix.exact.push_back(double{e4m3_to_float(matrix.data.back())} * scale);
  }
  matrix.weight = {.format = WeightFormat::kE4M3,
                   .group_size = kE4M3Group,
                   .rows = rows,
                   .cols = cols,
                   .data = matrix.data.data(),
                   .scales = matrix.packed_scales.data()};
  return matrix;
}

inline Matrix float_matrix(Random& random, WeightFormat format, int64_t rows, int64_t cols) {
  if (format == WeightFormat::kE4M3) return e4m3_matrix(random, rows, cols);
  Matrix matrix;
  matrix.values = random.normals(rows * cols);
  matrix.data.resize(rows * cols * (format == WeightFormat::kF32 ? 4 : 2));
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    float& value = matrix.values[i];
    if (format == WeightFormat::kF32) {
      memcpy(&matrix.data[i * 4], &value, 4);
      continue;
    }
    const bool half = format == WeightFormat::kF16;
    const uint16_t bits = half ? narrow_f16(value) : narrow_bf16(value);
    memcpy(&matrix.data[i * 2], &bits, 2);
    value = half ? widen_f16(bits) : widen_bf16(bits);
  }
  matrix.weight = {.format = format, .rows = rows, .cols = cols, .data = matrix.data.data()};
  return matrix;
}

inline Matrix quantized_matrix(Random& random, WeightFormat format, ScaleFormat scale_format,
                               int32_t group_size, int64_t rows, int64_t cols,
                               OffsetFormat offset_format = OffsetFormat::kNone) {
  Matrix matrix;
  const int64_t groups = group_count(cols, group_size);
  matrix.quantized.resize(rows * cols);
  matrix.values.resize(rows * cols);
  const int limit = half_range(format);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    matrix.quantized[i] = static_cast<int8_t>(random.integer(-limit, limit - 1));
    matrix.values[i] = matrix.quantized[i];
  }
  matrix.scales = random.normals(rows * groups, 0.01f);
  for (float& scale : matrix.scales) scale = round_to(scale_format, scale);
  matrix.data.resize(packed_data_bytes(format, rows, cols));
  matrix.packed_scales.resize(packed_scale_bytes(scale_format, rows, cols, group_size));
  pack_quantized(format, scale_format, group_size, rows, cols, 0, rows, matrix.quantized.data(),
                 matrix.scales.data(), matrix.data.data(), matrix.packed_scales.data());
  if (offset_format == OffsetFormat::kZeroPoint) {
    for (int64_t i = 0; i < rows * groups; ++i) {
      matrix.offsets.push_back(static_cast<float>(random.integer(-limit, limit - 1)));
    }
  } else if (offset_format != OffsetFormat::kNone) {
    matrix.offsets = random.normals(rows * groups, 0.05f);
    for (float& offset : matrix.offsets) offset = round_to(scale_format, offset);
  }
  matrix.packed_offsets.resize(packed_offset_bytes(offset_format, rows, cols, group_size));
  pack_offsets(offset_format, group_size, rows, cols, 0, rows, matrix.offsets.data(),
               matrix.packed_offsets.data());
  matrix.weight = {.format = format,
                   .scale_format = scale_format,
                   .offset_format = offset_format,
                   .group_size = group_size,
                   .rows = rows,
                   .cols = cols,
                   .data = matrix.data.data(),
                   .scales = matrix.packed_scales.data(),
                   .offsets = matrix.packed_offsets.data()};
  return matrix;
}

/// Input rows with their quantized form, padded strides.
struct Inputs {
  std::vector<float> values;
  std::vector<int8_t> quantized;
  std::vector<float> scales;
  std::vector<GroupSum> sums;
  Activations view;

  Inputs(Random& random, int64_t count, int64_t cols, int32_t group_size) {
    view.value_stride = cols + 3;
    values = random.normals(count * view.value_stride);
    view.values = values.data();
    if (group_size == 0) return;
    view.quantized_stride = padded_cols(cols) + 5;
    view.group_stride = group_count(cols, group_size) + 1;
    quantized.resize(count * view.quantized_stride);
    scales.resize(count * view.group_stride);
    sums.resize(count * view.group_stride);
    for (int64_t m = 0; m < count; ++m) {
      portable_kernels().quantize_row(&values[m * view.value_stride], cols, group_size,
                                      &quantized[m * view.quantized_stride],
                                      &scales[m * view.group_stride], &sums[m * view.group_stride]);
    }
    view.quantized = quantized.data();
    view.scales = scales.data();
    view.sums = sums.data();
  }
  Inputs(const Inputs&) = delete;

  /// The input element that a matrix with this group size meets.
  double at(int64_t row, int64_t col, int32_t group_size) const {
    if (group_size == 0) return values[row * view.value_stride + col];
    return static_cast<double>(quantized[row * view.quantized_stride + col]) *
           scales[row * view.group_stride + col / group_size];
  }
};

/// Every row in one piece means what it means in its tile, and nothing beyond it is written.
inline void expect_row_major(Random& random, const Matrix& matrix) {
  const Weight& weight = matrix.weight;
  RowMajor rows = row_major(weight);
  ASSERT_GT(rows.stride, 0);
  const auto bytes = static_cast<size_t>(weight.rows * rows.stride);
  std::vector<std::byte> memory(bytes + 64, std::byte{0xcd});
  make_row_major(weight, memory.data());
  for (size_t i = bytes; i < memory.size(); ++i) ASSERT_EQ(memory[i], std::byte{0xcd});
  rows.data = memory.data();
  const auto cols = static_cast<size_t>(weight.cols);
  const std::vector<float> factors = random.normals(cols);
  for (const CpuKernels* table : available_tables()) {
    for (int64_t r = 0; r < weight.rows; ++r) {
      std::vector<float> expected(cols), out(cols + 1, 7.0f);
      table->embed_row(weight, r, 1.0f, expected.data());
      table->multiply(factors.data(), weight.cols, expected.data());
      table->widen_row(rows, r, factors.data(), out.data());
      EXPECT_EQ(out.back(), 7.0f);
      out.pop_back();
      ASSERT_TRUE(same_bits(out, expected)) << table->isa << " row " << r;
    }
  }
}

}  // namespace vitrine::kernels::testing
