// SPDX-License-Identifier: Apache-2.0
// The block formats of published files: what they unpack to (recorded from PyPI's gguf by
// make_block_data.py), and their products: against double, the same bits in every table.
#include <array>
#include <fstream>
#include <iterator>

#include "../support/test_data.h"
#include "kernel_test_util.h"
#include "kernels/cpu/blocks/list.h"
#include "widened_products.h"

namespace vitrine::kernels::testing {
namespace {

struct Format {
  BlockFormat format;
  const char* file;
};

constexpr Format kFormats[] = {{BlockFormat::kQ4_0, "q4_0"},      {BlockFormat::kQ4_1, "q4_1"},
                               {BlockFormat::kQ8_0, "q8_0"},      {BlockFormat::kQ4_K, "q4_k"},
                               {BlockFormat::kQ6_K, "q6_k"},      {BlockFormat::kMxfp4, "mxfp4"},
                               {BlockFormat::kQ2_K, "q2_k"},      {BlockFormat::kQ5_0, "q5_0"},
                               {BlockFormat::kQ5_1, "q5_1"},      {BlockFormat::kQ3_K, "q3_k"},
                               {BlockFormat::kQ5_K, "q5_k"},      {BlockFormat::kIq4Nl, "iq4_nl"},
                               {BlockFormat::kIq4Xs, "iq4_xs"},   {BlockFormat::kIq2Xxs, "iq2_xxs"},
                               {BlockFormat::kIq2Xs, "iq2_xs"},   {BlockFormat::kIq2S, "iq2_s"},
                               {BlockFormat::kIq3Xxs, "iq3_xxs"}, {BlockFormat::kIq3S, "iq3_s"},
                               {BlockFormat::kIq1S, "iq1_s"},     {BlockFormat::kIq1M, "iq1_m"},
                               {BlockFormat::kTq1_0, "tq1_0"},    {BlockFormat::kTq2_0, "tq2_0"},
                               {BlockFormat::kQ1_0, "q1_0"},      {BlockFormat::kQ2_0, "q2_0"},
                               {BlockFormat::kNvfp4, "nvfp4"}};

/// Packs rows of blocks, in two calls where there is more than one tile.
Matrix packed_blocks(BlockFormat format, const std::vector<uint8_t>& blocks, int64_t rows,
                     int64_t cols) {
  Matrix matrix;
  matrix.weight = block_weight(format, rows, cols);
  const WeightBytes bytes = packed_bytes(matrix.weight);
  matrix.data.assign(bytes.data, 0xcd);
  matrix.packed_scales.assign(bytes.scales, 0xcd);
  matrix.packed_offsets.assign(bytes.offsets, 0xcd);
  const int64_t middle = rows > kTileRows ? kTileRows : rows;
  for (const auto& [begin, end] : {std::pair{middle, rows}, {int64_t{0}, middle}}) {
    if (begin == end) continue;
    const int64_t bad_row = pack_blocks(
        format, matrix.weight, begin, end, blocks.data() + begin * block_row_bytes(format, cols),
        matrix.data.data(), matrix.packed_scales.data(),
        bytes.offsets == 0 ? nullptr : matrix.packed_offsets.data());
    EXPECT_EQ(bad_row, -1);
  }
  matrix.weight.data = matrix.data.data();
  matrix.weight.scales = matrix.packed_scales.data();
  if (bytes.offsets != 0) matrix.weight.offsets = matrix.packed_offsets.data();
  return matrix;
}

/// Where the float16 fields of a block begin; -1: none.
std::array<int, 2> half_fields(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_1:
    case BlockFormat::kQ5_1:
    case BlockFormat::kQ5_K:
    case BlockFormat::kQ4_K: return {0, 2};
    case BlockFormat::kQ2_K: return {80, 82};
    case BlockFormat::kQ3_K: return {108, -1};
    case BlockFormat::kQ6_K: return {208, -1};
    case BlockFormat::kTq1_0: return {52, -1};
    case BlockFormat::kTq2_0: return {64, -1};
    case BlockFormat::kIq1M:
    case BlockFormat::kNvfp4:
    case BlockFormat::kMxfp4: return {-1, -1};
    default: return {0, -1};
  }
}

/// The half of an IQ1_M block stands in the highest four bits of four words.
void set_iq1_m_scale(uint8_t* block, uint16_t half) {
  for (int i = 0; i < 4; ++i) {
    uint8_t& byte = block[49 + 2 * i];
    byte = static_cast<uint8_t>((byte & 15) | (half >> (4 * i) & 15) << 4);
  }
}

Matrix random_blocks(Random& random, BlockFormat format, int64_t rows, int64_t cols) {
  const int64_t block = block_row_bytes(format, block_cols(format));
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * block_row_bytes(format, cols)));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.integer(0, 255));
  for (size_t first = 0; first < blocks.size(); first += static_cast<size_t>(block)) {
    if (format == BlockFormat::kMxfp4) {
      blocks[first] = static_cast<uint8_t>(random.integer(118, 130));
    }
    if (format == BlockFormat::kIq1M) {
      set_iq1_m_scale(&blocks[first], narrow_f16(random.normals(1, 0.02f)[0]));
    }
    for (const int field : half_fields(format)) {
      if (field < 0) continue;
      const uint16_t half = narrow_f16(random.normals(1, 0.02f)[0]);
      memcpy(&blocks[first + static_cast<size_t>(field)], &half, 2);
    }
  }
  Matrix matrix = packed_blocks(format, blocks, rows, cols);
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    portable_kernels().embed_row(matrix.weight, r, 1.0f, row.data());
    matrix.exact.insert(matrix.exact.end(), row.begin(), row.end());
  }
  return matrix;
}

TEST(BlockFormats, WidenAsGgufDequantizes) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.file);
    std::ifstream file(testing_support::test_data(std::string("blocks/") + format.file + ".bin"),
                       std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    // 3 rows of 512, or of the formats that came later 2 rows of 256.
    const bool is_small = bytes.size() < 4 * 3 * 512;
    const int64_t rows = is_small ? 2 : 3, cols = is_small ? 256 : 512;
    const auto block_bytes = static_cast<size_t>(rows * block_row_bytes(format.format, cols));
    ASSERT_EQ(bytes.size(), block_bytes + static_cast<size_t>(rows * cols) * sizeof(float));
    const Matrix matrix = packed_blocks(format.format, bytes, rows, cols);
    for (const CpuKernels* table : available_tables()) {
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<float> row(cols), expected(cols);
        memcpy(expected.data(), &bytes[block_bytes + static_cast<size_t>(r * cols) * sizeof(float)],
               static_cast<size_t>(cols) * sizeof(float));
        table->embed_row(matrix.weight, r, 1.0f, row.data());
        for (size_t i = 0; i < row.size(); ++i) {
          if (row[i] == 0.0f && expected[i] == 0.0f) continue;  // of either sign
          ASSERT_TRUE(same_bits(row[i], expected[i]))
              << table->isa << " row " << r << " column " << i;
        }
      }
    }
  }
}

TEST(BlockFormats, RowsInOnePiece) {
  Random random(9);
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.file);
    const Matrix matrix = random_blocks(random, format.format, 19, 512);
    const bool has_minimums =
        matrix.weight.format == WeightFormat::kQ2K || matrix.weight.format == WeightFormat::kQ4K ||
        format.format == BlockFormat::kQ5_1 || format.format == BlockFormat::kQ5_K ||
        matrix.weight.offset_format != OffsetFormat::kNone;
    EXPECT_EQ(row_major(matrix.weight).stride == 0, has_minimums);
    if (!has_minimums) expect_row_major(random, matrix);
  }
}

/// Packing adds nothing: the bytes are those of the file (and the rows that fill the last tile).
TEST(BlockFormats, PackedSize) {
  for (const Format& format : kFormats) {
    const Weight weight = block_weight(format.format, 32, 512);
    if (weight.format == WeightFormat::kBlocks) {
      EXPECT_STREQ(blocks::find_shape(format.format).name, format.file);
    }
    EXPECT_EQ(packed_bytes(weight).total(),
              static_cast<size_t>(32 * block_row_bytes(format.format, 512)))
        << format.file;
  }
}

/// The first row with a scale or minimum that is no number is named.
TEST(BlockFormats, ScalesThatAreNotFinite) {
  for (const Format& format : kFormats) {
    for (const int field : half_fields(format.format)) {
      if (field < 0) continue;
      const int64_t row_bytes = block_row_bytes(format.format, 256);
      std::vector<uint8_t> blocks(static_cast<size_t>(19 * row_bytes));
      for (const int64_t row : {18, 7}) {
        blocks[static_cast<size_t>(row * row_bytes + field + 1)] = 0x7c;
        const Weight weight = block_weight(format.format, 19, 256);
        const WeightBytes bytes = packed_bytes(weight);
        std::vector<uint8_t> data(bytes.data), scales(bytes.scales), offsets(bytes.offsets);
        EXPECT_EQ(pack_blocks(format.format, weight, 0, 19, blocks.data(), data.data(),
                              scales.data(), bytes.offsets == 0 ? nullptr : offsets.data()),
                  row)
            << format.file;
      }
    }
  }
}

/// Every table packs the same bytes, whole tiles and parts of one, and reads nothing behind the
/// last block (the sanitizers watch the end of `blocks`).
TEST(BlockFormats, EveryTablePacksAlike) {
  Random random(33);
  for (const Format& format : kFormats) {
    for (const int64_t rows : {1, 16, 37, 64}) {
      for (const int64_t width : {1, 2, 5}) {
        const int64_t cols = width * block_cols(format.format);
        const Weight weight = block_weight(format.format, rows, cols);
        const WeightBytes bytes = packed_bytes(weight);
        std::vector<uint8_t> blocks(
            static_cast<size_t>(rows * block_row_bytes(format.format, cols)));
        for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.integer(0, 255));
        std::vector<uint8_t> expected;
        int64_t expected_row = 0;
        for (const CpuKernels* table : cpu_kernel_tables()) {
          std::vector<uint8_t> packed(bytes.total(), 0xcd);
          uint8_t* scales = packed.data() + bytes.data;
          const int64_t bad_row =
              table->pack_blocks(format.format, weight, 0, rows, blocks.data(), packed.data(),
                                 scales, bytes.offsets == 0 ? nullptr : scales + bytes.scales);
          if (expected.empty()) {
            expected = packed;
            expected_row = bad_row;
          }
          EXPECT_TRUE(packed == expected) << format.file << ' ' << table->isa << ' ' << rows;
          EXPECT_EQ(bad_row, expected_row) << format.file << ' ' << table->isa << ' ' << rows;
        }
      }
    }
  }
}

TEST(BlockFormats, ProductsAgainstDouble) {
  Random random(21);
  for (const Format& format : kFormats) {
    for (const int64_t rows : {1, 16, 37}) {
      const int64_t width = block_cols(format.format);
      for (const int64_t blocks : {1, 3}) {
        const int64_t cols = width * blocks;
        const Matrix matrix = random_blocks(random, format.format, rows, cols);
        const int32_t count = random.integer(1, 9);
        const Inputs inputs(random, count, cols, 32);
        for (const CpuKernels* table : available_tables()) {
          std::vector<float> out(static_cast<size_t>(count * rows));
          table->linear(matrix.weight, 0, rows, inputs.view, {nullptr, nullptr, count}, nullptr,
                        nullptr, out.data(), rows);
          for (int64_t m = 0; m < count; ++m) {
            for (int64_t r = 0; r < rows; ++r) {
              double dot = 0, weight_square = 0, input_square = 0;
              for (int64_t i = 0; i < cols; ++i) {
                const double x = inputs.at(m, i, 32);
                dot += matrix.at(r, i) * x;
                weight_square += matrix.at(r, i) * matrix.at(r, i);
                input_square += x * x;
              }
              // A minimum's product is added on its own, and may be larger than the sum.
              const double roundings = static_cast<double>(cols) / 2 + 16;
              const double bound = roundings * kEpsilon * std::sqrt(weight_square * input_square);
              ASSERT_NEAR(out[static_cast<size_t>(m * rows + r)], dot, bound)
                  << format.file << " " << table->isa << " row " << r;
            }
          }
        }
      }
    }
  }
}

/// Rows of floats, times what the blocks mean.
TEST(BlockFormats, WidenedProductsAreThoseOfTheirFloats) {
  Random random(23);
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.file);
    for (const int64_t rows : {5, 48}) {
      const Matrix matrix = random_blocks(random, format.format, rows, 512);
      if (format.format == BlockFormat::kQ2_K) {
        EXPECT_FALSE(has_widened_products(matrix.weight));
      } else {
        expect_widened_products(random, matrix);
      }
    }
  }
}

/// A row's bits depend on nothing but the row, in every table the same.
TEST(BlockFormats, SameBitsInEveryTableAndBatch) {
  Random random(22);
  constexpr int32_t kCount = 45;
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.file);
    const int64_t rows = 37;
    const int64_t cols = 768;
    const Matrix gate = random_blocks(random, format.format, rows, cols);
    const Matrix up = random_blocks(random, format.format, rows, cols);
    const Inputs inputs(random, kCount, cols, 32);
    std::vector<float> product(kCount * rows), gated(kCount * rows);
    for (int32_t m = 0; m < kCount; ++m) {
      const RowMap one{&m, &m, 1};
      portable_kernels().linear(gate.weight, 0, rows, inputs.view, one, nullptr, nullptr,
                                product.data(), rows);
      portable_kernels().gate_up(gate.weight, up.weight, 0, rows, inputs.view, one, gated.data(),
                                 rows);
    }
    for (const CpuKernels* table : available_tables()) {
      for (const int32_t count : {1, 2, 3, 4, 7, 8, 12, 16, 23, 45}) {
        std::vector<float> a = product, b = gated;
        std::fill_n(a.begin(), count * rows, 0.5f);
        std::fill_n(b.begin(), count * rows, 0.5f);
        const RowMap all{nullptr, nullptr, count};
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{16, 37}, {0, 16}}) {
          table->linear(gate.weight, begin, end, inputs.view, all, nullptr, nullptr, a.data(),
                        rows);
          table->gate_up(gate.weight, up.weight, begin, end, inputs.view, all, b.data(), rows);
        }
        ASSERT_TRUE(same_bits(product, a)) << table->isa << " count " << count;
        ASSERT_TRUE(same_bits(gated, b)) << table->isa << " count " << count;
      }
    }
  }
}

/// More rows, and wider ones, than a kernel's buffers hold at once.
TEST(BlockFormats, AMatrixOfNvfp4HasAMultiplier) {
  Random random(25);
  Matrix matrix = random_blocks(random, BlockFormat::kNvfp4, 21, 192);
  const std::vector<double> plain = matrix.exact;
  matrix.weight.multiplier = 0.3f;
  const Inputs inputs(random, 9, 192, 32);
  std::vector<float> expected(9 * 21), row(192);
  portable_kernels().linear(matrix.weight, 0, 21, inputs.view, {nullptr, nullptr, 9}, nullptr,
                            nullptr, expected.data(), 21);
  for (const CpuKernels* table : available_tables()) {
    for (const int32_t count : {1, 2, 9}) {
      std::vector<float> out(9 * 21);
      table->linear(matrix.weight, 0, 21, inputs.view, {nullptr, nullptr, count}, nullptr, nullptr,
                    out.data(), 21);
      out.resize(static_cast<size_t>(count * 21));
      ASSERT_TRUE(same_bits(out, {expected.begin(), expected.begin() + count * 21})) << table->isa;
    }
    for (int64_t r = 0; r < 21; ++r) {
      table->embed_row(matrix.weight, r, 1.0f, row.data());
      for (size_t i = 0; i < row.size(); ++i) {
        const double value = plain[static_cast<size_t>(r) * 192 + i] * 0.3f;
        ASSERT_NEAR(row[i], value, std::fabs(value) * 4 * kEpsilon) << table->isa;
      }
    }
  }
}

TEST(BlockFormats, ManyRowsAndWideMatrices) {
  Random random(24);
  const struct {
    int64_t cols;
    int32_t count;
  } sizes[] = {{256, 290}, {4096, 75}, {4352, 20}};
  for (const BlockFormat format :
       {BlockFormat::kQ4_K, BlockFormat::kQ6_K, BlockFormat::kQ4_1, BlockFormat::kQ5_K,
        BlockFormat::kQ3_K, BlockFormat::kIq2Xs, BlockFormat::kIq3S, BlockFormat::kNvfp4}) {
    for (const auto& size : sizes) {
      const Matrix gate = random_blocks(random, format, 19, size.cols);
      const Matrix up = random_blocks(random, format, 19, size.cols);
      const Inputs inputs(random, size.count, size.cols, 32);
      const std::vector<int32_t> in_rows = random.permutation(size.count);
      const std::vector<int32_t> out_rows = random.permutation(size.count);
      for (const RowMap& rows :
           {RowMap{nullptr, nullptr, size.count}, RowMap{in_rows.data(), nullptr, size.count},
            RowMap{in_rows.data(), out_rows.data(), size.count}}) {
        std::vector<float> expected, expected_gated;
        for (size_t i = available_tables().size(); i-- > 0;) {  // the portable table is the last
          const CpuKernels& table = *available_tables()[i];
          std::vector<float> product(static_cast<size_t>(size.count * 19)), gated(product.size());
          table.linear(gate.weight, 0, 19, inputs.view, rows, nullptr, nullptr, product.data(), 19);
          table.gate_up(gate.weight, up.weight, 0, 19, inputs.view, rows, gated.data(), 19);
          if (expected.empty()) expected = product, expected_gated = gated;
          ASSERT_TRUE(same_bits(expected, product)) << table.isa << " " << size.cols;
          ASSERT_TRUE(same_bits(expected_gated, gated)) << table.isa << " " << size.cols;
        }
      }
    }
  }
}

/// gate and up may be of different formats.
TEST(BlockFormats, MixedGateAndUp) {
  Random random(23);
  const Matrix matrices[] = {random_blocks(random, BlockFormat::kQ4_K, 33, 512),
                             random_blocks(random, BlockFormat::kQ6_K, 33, 512),
                             random_blocks(random, BlockFormat::kQ8_0, 33, 512),
                             random_blocks(random, BlockFormat::kQ4_1, 33, 512),
                             random_blocks(random, BlockFormat::kQ2_K, 33, 512),
                             random_blocks(random, BlockFormat::kIq2Xxs, 33, 512),
                             random_blocks(random, BlockFormat::kQ5_1, 33, 512),
                             random_blocks(random, BlockFormat::kNvfp4, 33, 512)};
  const Inputs inputs(random, 9, 512, 32);
  const RowMap rows{nullptr, nullptr, 9};
  for (const Matrix& gate : matrices) {
    for (const Matrix& up : matrices) {
      std::vector<float> expected(9 * 33);
      portable_kernels().gate_up(gate.weight, up.weight, 0, 33, inputs.view, rows, expected.data(),
                                 33);
      for (const CpuKernels* table : vector_tables()) {
        std::vector<float> out(9 * 33);
        table->gate_up(gate.weight, up.weight, 0, 33, inputs.view, rows, out.data(), 33);
        ASSERT_TRUE(same_bits(expected, out)) << table->isa;
      }
    }
  }
}

/// The largest numbers, scales and activations that a block can hold: integer sums stay exact.
TEST(BlockFormats, ExtremeValues) {
  for (const Format& format : kFormats) {
    for (const int pattern : {0x00, 0x7f, 0x80, 0xff}) {
      const int64_t row_bytes = block_row_bytes(format.format, 256);
      std::vector<uint8_t> blocks(static_cast<size_t>(16 * row_bytes),
                                  static_cast<uint8_t>(pattern));
      const int64_t block = block_row_bytes(format.format, block_cols(format.format));
      for (size_t first = 0; first < blocks.size(); first += static_cast<size_t>(block)) {
        const uint16_t one = 0x3c00;
        for (const int field : half_fields(format.format)) {
          if (field >= 0) memcpy(&blocks[first + static_cast<size_t>(field)], &one, 2);
        }
        if (format.format == BlockFormat::kMxfp4) blocks[first] = 128;
        if (format.format == BlockFormat::kIq1M) set_iq1_m_scale(&blocks[first], one);
      }
      const Matrix matrix = packed_blocks(format.format, blocks, 16, 256);
      for (const int sign : {-1, 1}) {
        const std::vector<int8_t> quantized(256, static_cast<int8_t>(127 * sign));
        const std::vector<float> scales(8, 1.0f);
        const std::vector<GroupSum> sums(
            8, {static_cast<int16_t>(127 * 32 * sign), static_cast<int16_t>(127 * 16 * sign),
                static_cast<float>(127 * 32 * sign)});
        Activations input;
        input.quantized = quantized.data();
        input.scales = scales.data();
        input.sums = sums.data();
        std::vector<double> dots(16);
        for (int64_t r = 0; r < 16; ++r) {
          std::vector<float> row(256);
          portable_kernels().embed_row(matrix.weight, r, 1.0f, row.data());
          for (const float value : row) {
            dots[static_cast<size_t>(r)] += static_cast<double>(value) * 127 * sign;
          }
        }
        // One token, a few, and many with a rest have loops of their own.
        for (const int32_t count : {1, 3, 37}) {
          const std::vector<int32_t> in_rows(static_cast<size_t>(count), 0);
          for (const CpuKernels* table : available_tables()) {
            std::vector<float> out(static_cast<size_t>(16 * count));
            table->linear(matrix.weight, 0, 16, input, {in_rows.data(), nullptr, count}, nullptr,
                          nullptr, out.data(), 16);
            for (size_t i = 0; i < out.size(); ++i) {
              const double dot = dots[i % 16];
              EXPECT_NEAR(out[i], dot, std::fabs(dot) * 8 * kEpsilon)
                  << format.file << " " << table->isa << " " << pattern << " " << i / 16;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
