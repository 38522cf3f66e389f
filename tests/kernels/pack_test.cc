// Packing of quantized matrices: what was packed comes out again, whole or in row ranges.
#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

int unpack(const Matrix& matrix, int64_t row, int64_t col) {
  const int64_t cols = matrix.weight.cols;
  const int64_t tile = row / kTileRows;
  const int64_t r = row % kTileRows;
  if (matrix.weight.format == WeightFormat::kInt8) {
    return matrix.data[tile * kTileRows * cols + col / 4 * 64 + 4 * r + col % 4] - 128;
  }
  const uint8_t byte = matrix.data[tile * kTileRows * cols / 2 + col / 8 * 64 + 4 * r + col % 4];
  return (col % 8 < 4 ? byte & 15 : byte >> 4) - 8;
}

float unpack_scale(const Matrix& matrix, int64_t row, int64_t group) {
  const int64_t groups = matrix.weight.cols / matrix.weight.group_size;
  const int64_t index = (row / kTileRows * groups + group) * kTileRows + row % kTileRows;
  if (matrix.weight.scale_format == ScaleFormat::kF32) {
    float scale;
    memcpy(&scale, &matrix.packed_scales[index * 4], 4);
    return scale;
  }
  uint16_t bits;
  memcpy(&bits, &matrix.packed_scales[index * 2], 2);
  return matrix.weight.scale_format == ScaleFormat::kF16 ? widen_f16(bits) : widen_bf16(bits);
}

TEST(Pack, RoundTripAndZeroPadding) {
  Random random(1);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const ScaleFormat scales : {ScaleFormat::kF32, ScaleFormat::kF16, ScaleFormat::kBF16}) {
      for (const int32_t group_size : {32, 64, 128}) {
        for (const int64_t rows : {1, 15, 16, 33}) {
          const int64_t cols = group_size * 3;
          const Matrix matrix = quantized_matrix(random, format, scales, group_size, rows, cols);
          const int64_t padded = (rows + 15) / 16 * 16;
          for (int64_t row = 0; row < padded; ++row) {
            for (int64_t col = 0; col < cols; ++col) {
              const int expected = row < rows ? matrix.quantized[row * cols + col] : 0;
              ASSERT_EQ(unpack(matrix, row, col), expected) << row << " " << col;
            }
            for (int64_t g = 0; g < 3; ++g) {
              const float expected = row < rows ? matrix.scales[row * 3 + g] : 0.0f;
              ASSERT_EQ(unpack_scale(matrix, row, g), expected);
            }
          }
        }
      }
    }
  }
}

TEST(Pack, ARowWidensToValueTimesScale) {
  Random random(3);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const ScaleFormat scales : {ScaleFormat::kF32, ScaleFormat::kF16, ScaleFormat::kBF16}) {
      for (const int32_t group_size : {32, 64, 128}) {
        const int64_t cols = group_size * 3;
        const Matrix matrix = quantized_matrix(random, format, scales, group_size, 19, cols);
        std::vector<float> row(static_cast<size_t>(cols));
        for (int64_t r = 0; r < 19; ++r) {
          widen_row(matrix.weight, r, row.data());
          for (int64_t col = 0; col < cols; ++col) {
            const float expected = static_cast<float>(matrix.quantized[r * cols + col]) *
                                   matrix.scales[r * 3 + col / group_size];
            ASSERT_EQ(row[static_cast<size_t>(col)], expected) << r << " " << col;
          }
        }
      }
    }
  }
}

TEST(Pack, RowRangesGiveTheSameBytes) {
  Random random(2);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const int64_t rows = 55;
    const int64_t cols = 96;
    const Matrix whole = quantized_matrix(random, format, ScaleFormat::kF16, 32, rows, cols);
    std::vector<uint8_t> data(whole.data.size(), 0xcd), scales(whole.packed_scales.size(), 0xcd);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{32, 55}, {0, 16}, {16, 32}}) {
      pack_quantized(format, ScaleFormat::kF16, 32, rows, cols, begin, end,
                     &whole.quantized[begin * cols], &whole.scales[begin * 3], data.data(),
                     scales.data());
    }
    EXPECT_EQ(data, whole.data);
    EXPECT_EQ(scales, whole.packed_scales);
  }
}

TEST(Pack, Sizes) {
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt4, 17, 64), 32u * 32u);
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt8, 17, 64), 32u * 64u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kF32, 17, 64, 32), 32u * 2u * 4u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kBF16, 16, 128, 128), 16u * 2u);
}

}  // namespace
}  // namespace vitrine::kernels::testing
