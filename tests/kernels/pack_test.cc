// Packing of quantized matrices: what was packed comes out again, whole or in row ranges.
#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

/// Reads a packed matrix by the formulas of the header.
int unpack(const Matrix& matrix, int64_t row, int64_t col) {
  const int64_t cols = padded_cols(matrix.weight.cols);
  const int64_t tile = row / kTileRows;
  const int64_t r = row % kTileRows;
  if (matrix.weight.format == WeightFormat::kInt8) {
    return matrix.data[tile * kTileRows * cols + col / 4 * 64 + 4 * r + col % 4] - 128;
  }
  const uint8_t byte = matrix.data[tile * kTileRows * cols / 2 + col / 8 * 64 + 4 * r + col % 4];
  return (col % 8 < 4 ? byte & 15 : byte >> 4) - 8;
}

float unpack_float(const std::vector<uint8_t>& packed, ScaleFormat format, int64_t index) {
  if (format == ScaleFormat::kF32) {
    float scale;
    memcpy(&scale, &packed[index * 4], 4);
    return scale;
  }
  uint16_t bits;
  memcpy(&bits, &packed[index * 2], 2);
  return format == ScaleFormat::kF16 ? widen_f16(bits) : widen_bf16(bits);
}

struct Case {
  WeightFormat format;
  ScaleFormat scales;
  OffsetFormat offsets;
  int32_t group_size;
  int64_t cols;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const std::pair<ScaleFormat, OffsetFormat> formats[] = {
        {ScaleFormat::kF32, OffsetFormat::kNone},       {ScaleFormat::kF16, OffsetFormat::kNone},
        {ScaleFormat::kBF16, OffsetFormat::kNone},      {ScaleFormat::kF32, OffsetFormat::kF32},
        {ScaleFormat::kF16, OffsetFormat::kF16},        {ScaleFormat::kBF16, OffsetFormat::kBF16},
        {ScaleFormat::kBF16, OffsetFormat::kZeroPoint},
    };
    for (const auto& [scales, offsets] : formats) {
      for (const int32_t group_size : {32, 64, 128}) {
        for (const int64_t cols : {1, 32, 96, 131, 384}) {
          cases.push_back({format, scales, offsets, group_size, cols});
        }
      }
    }
  }
  return cases;
}

TEST(Pack, RoundTripAndZeroPadding) {
  Random random(1);
  for (const Case& c : all_cases()) {
    for (const int64_t rows : {1, 15, 16, 33}) {
      const Matrix matrix =
          quantized_matrix(random, c.format, c.scales, c.group_size, rows, c.cols, c.offsets);
      const int64_t groups = group_count(c.cols, c.group_size);
      for (int64_t row = 0; row < (rows + 15) / 16 * 16; ++row) {
        for (int64_t col = 0; col < padded_cols(c.cols); ++col) {
          const bool inside = row < rows && col < c.cols;
          const int expected = inside ? matrix.quantized[row * c.cols + col] : 0;
          ASSERT_EQ(unpack(matrix, row, col), expected) << row << " " << col;
        }
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t index = (row / kTileRows * groups + g) * kTileRows + row % kTileRows;
          const bool inside = row < rows;
          ASSERT_EQ(unpack_float(matrix.packed_scales, c.scales, index),
                    inside ? matrix.scales[row * groups + g] : 0.0f);
          if (c.offsets == OffsetFormat::kNone) continue;
          const float offset = c.offsets == OffsetFormat::kZeroPoint
                                   ? static_cast<int8_t>(matrix.packed_offsets[index])
                                   : unpack_float(matrix.packed_offsets, c.scales, index);
          ASSERT_EQ(offset, inside ? matrix.offsets[row * groups + g] : 0.0f);
        }
      }
      const WeightBytes bytes = packed_bytes(matrix.weight);
      EXPECT_EQ(bytes.data, matrix.data.size());
      EXPECT_EQ(bytes.scales, matrix.packed_scales.size());
      EXPECT_EQ(bytes.offsets, matrix.packed_offsets.size());
    }
  }
}

TEST(Pack, ARowWidensToWhatItsNumbersMean) {
  Random random(3);
  for (const Case& c : all_cases()) {
    const Matrix matrix =
        quantized_matrix(random, c.format, c.scales, c.group_size, 19, c.cols, c.offsets);
    const int64_t groups = group_count(c.cols, c.group_size);
    std::vector<float> row(static_cast<size_t>(c.cols));
    for (int64_t r = 0; r < 19; ++r) {
      const CpuKernels& table =
          *available_tables()[static_cast<size_t>(r) % available_tables().size()];
      table.embed_row(matrix.weight, r, 1.0f, row.data());
      for (int64_t col = 0; col < c.cols; ++col) {
        const int64_t group = r * groups + col / c.group_size;
        auto number = static_cast<float>(matrix.quantized[r * c.cols + col]);
        if (c.offsets == OffsetFormat::kZeroPoint) number -= matrix.offsets[group];
        if (matrix.has_minimum()) number += c.format == WeightFormat::kInt4 ? 8 : 128;
        float expected = number * matrix.scales[group];
        if (matrix.has_minimum()) expected += matrix.offsets[group];
        ASSERT_EQ(row[static_cast<size_t>(col)], expected) << r << " " << col;
      }
    }
  }
}

TEST(Pack, RowsInOnePiece) {
  Random random(5);
  for (const Case& c : all_cases()) {
    const Matrix matrix =
        quantized_matrix(random, c.format, c.scales, c.group_size, 19, c.cols, c.offsets);
    if (c.offsets == OffsetFormat::kNone) {
      expect_row_major(random, matrix);
    } else {
      EXPECT_EQ(row_major(matrix.weight).stride, 0);
    }
  }
  EXPECT_EQ(row_major(float_matrix(random, WeightFormat::kBF16, 3, 40).weight).stride, 0);
}

TEST(Pack, RowRangesGiveTheSameBytes) {
  Random random(2);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const int64_t rows = 55;
    const int64_t cols = 91;
    const Matrix whole = quantized_matrix(random, format, ScaleFormat::kF16, 32, rows, cols,
                                          OffsetFormat::kZeroPoint);
    std::vector<uint8_t> data(whole.data.size(), 0xcd), scales(whole.packed_scales.size(), 0xcd),
        offsets(whole.packed_offsets.size(), 0xcd);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{32, 55}, {0, 16}, {16, 32}}) {
      pack_quantized(format, ScaleFormat::kF16, 32, rows, cols, begin, end,
                     &whole.quantized[begin * cols], &whole.scales[begin * 3], data.data(),
                     scales.data());
      pack_offsets(OffsetFormat::kZeroPoint, 32, rows, cols, begin, end, &whole.offsets[begin * 3],
                   offsets.data());
    }
    EXPECT_EQ(data, whole.data);
    EXPECT_EQ(scales, whole.packed_scales);
    EXPECT_EQ(offsets, whole.packed_offsets);
  }
}

TEST(Pack, Sizes) {
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt4, 17, 64), 32u * 32u);
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt8, 17, 64), 32u * 64u);
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt4, 16, 65), 16u * 48u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kF32, 16, 65, 64), 16u * 2u * 4u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kF32, 17, 64, 32), 32u * 2u * 4u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kBF16, 16, 128, 128), 16u * 2u);
}

}  // namespace
}  // namespace vitrine::kernels::testing
