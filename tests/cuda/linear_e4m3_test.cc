// SPDX-License-Identifier: Apache-2.0
// Products of E4M3 weights with E4M3 activations: what the rows hold, against double precision, and
// the same bits in every cut, alone and in a batch.
#include "kernels/cpu/float8.h"
#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

constexpr auto kE4M3Rows = ActivationFormat::kE4M3;

/// Element (row, col) of the rows.
double input_at(const DeviceArray<uint8_t>& rows, int64_t row, int64_t col, int64_t cols) {
  const uint8_t* record = rows.data() + row * int8_row_bytes(cols) + col / 128 * kRecordBytes;
  GroupFactor factor;
  memcpy(&factor, record + kRecordCols, sizeof(factor));
  return double{e4m3_to_float(record[col % 128])} * factor.scale;
}

std::vector<float> run(const PackedMatrix& matrix, const uint8_t* activations, int32_t count,
                       const ProductTuning& tuning) {
  const int64_t rows = matrix.layout.rows;
  DeviceArray<float> out(static_cast<size_t>(count * rows));
  const Rows input{.format = kE4M3Rows, .activations = activations, .count = count};
  EXPECT_TRUE(
      ok(linear(matrix, 1, input, {.out = out.data(), .out_stride = rows}, tuning, nullptr)));
  return out.to_vector();
}

TEST(CudaQuantizeE4M3, RowsAreTheNearest) {
  Random random(1);
  for (const int64_t cols : {1, 127, 128, 300}) {
    const Inputs inputs(random, 3, cols, 0);
    const DeviceArray<uint8_t> rows = device_rows(inputs, 3, cols, 0, kE4M3Rows);
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t begin = 0; begin < cols; begin += 128) {
        const int64_t end = std::min(cols, begin + 128);
        double largest = 0;
        for (int64_t i = begin; i < end; ++i)
          largest = std::max(largest, std::fabs(inputs.at(m, i, 0)));
        for (int64_t i = begin; i < end; ++i) {
          const double x = inputs.at(m, i, 0), stored = input_at(rows, m, i, cols);
          // Half a step of three mantissa bits, or of the smallest numbers.
          ASSERT_LE(std::fabs(stored - x),
                    std::max(std::fabs(x) / 15.9, largest / 448 * 0x1.01p-10))
              << "col " << i;
        }
      }
      const int64_t records = (cols + 127) / 128;
      const uint8_t* last = rows.data() + m * int8_row_bytes(cols) + (records - 1) * kRecordBytes;
      for (int64_t i = cols - 128 * (records - 1); i < 128; ++i) ASSERT_EQ(last[i], 0);
    }
  }
}

TEST(CudaQuantizeE4M3, RowsThatAreNoNumbers) {
  for (const float odd : {NAN, INFINITY, 0.0f, 1e-40f}) {
    std::vector<float> x(128, 0.0f);
    x[5] = odd;
    const DeviceArray<float> values(x);
    DeviceArray<uint8_t> rows(static_cast<size_t>(int8_row_bytes(128)));
    ASSERT_TRUE(ok(quantize_rows_e4m3(values.data(), 128, 1, 128, rows.data(), nullptr)));
    GroupFactor factor;
    memcpy(&factor, rows.data() + kRecordCols, sizeof(factor));
    if (odd != odd) {
      EXPECT_TRUE(std::isnan(factor.scale));
    } else {
      EXPECT_EQ(factor.scale, std::isinf(odd) ? INFINITY : 0.0f);
    }
    for (int i = 0; i < 128; ++i) ASSERT_EQ(rows[static_cast<size_t>(i)], 0);
  }
}

TEST(CudaLinearE4M3, AgainstDoubleInEveryCut) {
  Random random(2);
  size_t shape = 0;
  for (const int64_t cols : {1, 70, 128, 257, 640}) {
    for (const int64_t rows : {5, 37, 83}) {
      const int32_t count = std::array{1, 3, 8, 11}[shape++ % 4];
      const Matrix matrix = e4m3_matrix(random, rows, cols);
      const Packed packed(matrix);
      const Inputs inputs(random, count, cols, 0);
      const DeviceArray<uint8_t> activations = device_rows(inputs, count, cols, 0, kE4M3Rows);
      std::vector<float> first;
      for (const ProductTuning& tuning : all_tunings()) {
        emulator::set_seed(shape);
        const std::vector<float> out = run(packed.matrix, activations.data(), count, tuning);
        if (first.empty()) first = out;
        ASSERT_TRUE(same_bits(out, first)) << tuning.tokens_per_tile;
      }
      for (int64_t m = 0; m < count; ++m) {
        for (int64_t r = 0; r < rows; ++r) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < cols; ++i) {
            const double term = matrix.at(r, i) * input_at(activations, m, i, cols);
            sum += term;
            size += std::fabs(term);
          }
          ASSERT_NEAR(first[static_cast<size_t>(m * rows + r)], sum, size * 1e-6) << cols;
        }
      }
    }
  }
}

TEST(CudaLinearE4M3, AloneAndInABatch) {
  Random random(3);
  const int64_t rows = 35, cols = 400;
  const int32_t count = 70;
  const Matrix matrix = e4m3_matrix(random, rows, cols);
  const Packed packed(matrix);
  const Inputs inputs(random, count, cols, 0);
  const DeviceArray<uint8_t> activations = device_rows(inputs, count, cols, 0, kE4M3Rows);
  const std::vector<float> all = run(packed.matrix, activations.data(), count, {32});
  for (const int32_t m : {0, 9, 66}) {
    const uint8_t* row = activations.data() + m * int8_row_bytes(cols);
    const std::vector<float> alone = run(packed.matrix, row, 1, {8, m == 9 ? 4 : 1});
    ASSERT_TRUE(
        same_bits(alone, std::vector<float>(all.begin() + m * rows, all.begin() + (m + 1) * rows)));
  }
}

TEST(CudaLinearE4M3, ActivationsOfAnotherKindAreRefused) {
  Random random(4);
  const Packed floats(e4m3_matrix(random, 16, 128));
  const Packed integers(
      quantized_matrix(random, WeightFormat::kInt8, ScaleFormat::kF32, 128, 16, 128));
  DeviceArray<float> out(16);
  DeviceArray<uint8_t> rows(static_cast<size_t>(int8_row_bytes(128)));
  const Epilogue epilogue{.out = out.data(), .out_stride = 16};
  Rows input{.format = ActivationFormat::kInt8, .activations = rows.data(), .count = 1};
  EXPECT_EQ(linear(floats.matrix, 1, input, epilogue, {}, nullptr).code, kInvalidArguments);
  input.format = kE4M3Rows;
  EXPECT_EQ(linear(integers.matrix, 1, input, epilogue, {}, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
