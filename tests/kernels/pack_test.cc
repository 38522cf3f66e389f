// SPDX-License-Identifier: Apache-2.0
// Packing of quantized matrices: what was packed comes out again, whole or in row ranges.
#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

/// Reads a packed matrix by the formulas of the header.
int unpack(const Matrix& matrix, int64_t row, int64_t col) {
  const int64_t cols = padded_cols(matrix.weight.cols);
  const int64_t tile = row / kTileRows;
  const int64_t r = row % kTileRows;
  if (matrix.weight.format == WeightFormat::kInt3) {
    const uint8_t* unit = &matrix.data[(tile * cols / 32 + col / 32) * 192 + 4 * r + col % 4];
    const int64_t c = col % 32;
    if (c < 24) return (unit[c / 8 * 64] >> (c % 8 < 4 ? 0 : 3) & 7) - 4;
    const int64_t last = c / 4 - 6;
    return (unit[last * 64] >> 6 | (unit[128] >> (6 + last) & 1) << 2) - 4;
  }
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
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kInt3}) {
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
        if (matrix.has_minimum()) number += static_cast<float>(half_range(c.format));
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
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kInt3}) {
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

/// The values of a row of `matrix` in words, as compressed-tensors has them.
std::vector<uint32_t> words_of(const Matrix& matrix, int64_t begin, int64_t end) {
  const int half = half_range(matrix.weight.format);
  const int bits = half == 4 ? 3 : half == 8 ? 4 : 8;
  const int64_t cols = matrix.weight.cols;
  std::vector<uint32_t> words;
  for (int64_t row = begin; row < end; ++row) {
    // What stands behind a row's numbers means nothing.
    const auto first = static_cast<int64_t>(words.size());
    words.resize(words.size() + (cols * bits + 31) / 32, 0xffffffffu);
    for (int64_t bit = 0; bit < cols * bits; ++bit) {
      const int number = matrix.quantized[row * cols + bit / bits] + half;
      const uint32_t mask = uint32_t{1} << (bit % 32);
      if ((number >> (bit % bits) & 1) == 0) words[first + bit / 32] &= ~mask;
    }
  }
  return words;
}

std::vector<uint8_t> stored_scales(const Matrix& matrix, int64_t begin, int64_t end) {
  const int64_t groups = group_count(matrix.weight.cols, matrix.weight.group_size);
  std::vector<uint8_t> bytes;
  for (int64_t i = begin * groups; i < end * groups; ++i) {
    const float scale = matrix.scales[i];
    const uint16_t half =
        matrix.weight.scale_format == ScaleFormat::kF16 ? narrow_f16(scale) : narrow_bf16(scale);
    const bool is_wide = matrix.weight.scale_format == ScaleFormat::kF32;
    const auto* from = is_wide ? reinterpret_cast<const uint8_t*>(&scale)
                               : reinterpret_cast<const uint8_t*>(&half);
    bytes.insert(bytes.end(), from, from + (is_wide ? 4 : 2));
  }
  return bytes;
}

// From words come the bytes that come from single values, in ranges of rows, from any address.
TEST(PackWords, GiveTheBytesOfValues) {
  Random random(3);
  for (const Case& c : all_cases()) {
    if (c.offsets != OffsetFormat::kNone && c.offsets != OffsetFormat::kZeroPoint) continue;
    const int64_t rows = 55, groups = group_count(c.cols, c.group_size);
    const Matrix whole =
        quantized_matrix(random, c.format, c.scales, c.group_size, rows, c.cols, c.offsets);
    for (const CpuKernels* table : available_tables()) {
      std::vector<uint8_t> data(whole.data.size(), 0xcd), scales(whole.packed_scales.size(), 0xcd),
          offsets(whole.packed_offsets.size(), 0xcd);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{32, 55}, {0, 16}, {16, 32}}) {
        const std::vector<uint32_t> words = words_of(whole, begin, end);
        std::vector<uint8_t> bytes(words.size() * 4 + 1);
        memcpy(&bytes[1], words.data(), words.size() * 4);
        EXPECT_EQ(static_cast<int64_t>(words.size()) * 4,
                  (end - begin) * quantized_row_bytes(c.format, c.cols));
        const std::vector<uint8_t> row_scales = stored_scales(whole, begin, end);
        std::vector<int8_t> zero_points;
        for (int64_t i = begin * groups; c.offsets != OffsetFormat::kNone && i < end * groups;
             ++i) {
          zero_points.push_back(static_cast<int8_t>(whole.offsets[i]));
        }
        EXPECT_EQ(table->pack_words(whole.weight, begin, end,
                                    {&bytes[1], row_scales.data(), zero_points.data()}, data.data(),
                                    scales.data(), offsets.data()),
                  -1);
      }
      EXPECT_EQ(data, whole.data) << table->isa << ' ' << c.cols;
      EXPECT_EQ(scales, whole.packed_scales) << table->isa << ' ' << c.cols;
      EXPECT_EQ(offsets, whole.packed_offsets) << table->isa << ' ' << c.cols;
    }
  }
}

TEST(PackWords, NameTheFirstRowWhoseScaleIsNotFinite) {
  Random random(4);
  for (const ScaleFormat format : {ScaleFormat::kF32, ScaleFormat::kF16, ScaleFormat::kBF16}) {
    Matrix matrix = quantized_matrix(random, WeightFormat::kInt4, format, 32, 40, 70);
    const std::vector<uint32_t> words = words_of(matrix, 0, 40);
    for (const float bad : {__builtin_inff(), -__builtin_inff(), __builtin_nanf("")}) {
      for (const int64_t row : {0, 15, 16, 39}) {
        std::vector<uint8_t> scales = stored_scales(matrix, 0, 40);
        const size_t size = scales.size() / (40 * 3);
        for (const int64_t at : {row, int64_t{39}}) {
          Matrix one = matrix;
          one.scales.assign(3, bad);
          const std::vector<uint8_t> stored = stored_scales(one, 0, 1);
          memcpy(&scales[(at * 3 + 2) * size], stored.data(), size);
        }
        for (const CpuKernels* table : available_tables()) {
          EXPECT_EQ(table->pack_words(matrix.weight, 0, 40, {words.data(), scales.data(), nullptr},
                                      matrix.data.data(), matrix.packed_scales.data(), nullptr),
                    row);
        }
      }
    }
  }
}

TEST(PackWords, FindsNanAmongBytes) {
  std::vector<uint8_t> bytes(777);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 2 == 0 ? 0x7e : 0xfe;
  EXPECT_FALSE(has_nan(bytes.data(), bytes.size()));
  for (const size_t at : {size_t{0}, size_t{400}, bytes.size() - 1}) {
    for (const uint8_t nan : {0x7f, 0xff}) {
      std::vector<uint8_t> changed = bytes;
      changed[at] = nan;
      EXPECT_TRUE(has_nan(changed.data(), changed.size())) << at;
      EXPECT_FALSE(has_nan(changed.data(), at));
    }
  }
}

TEST(Pack, Sizes) {
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt4, 17, 64), 32u * 32u);
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt8, 17, 64), 32u * 64u);
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt4, 16, 65), 16u * 48u);
  EXPECT_EQ(packed_data_bytes(WeightFormat::kInt3, 17, 64), 32u * 24u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kF32, 16, 65, 64), 16u * 2u * 4u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kF32, 17, 64, 32), 32u * 2u * 4u);
  EXPECT_EQ(packed_scale_bytes(ScaleFormat::kBF16, 16, 128, 128), 16u * 2u);
}

}  // namespace
}  // namespace vitrine::kernels::testing
