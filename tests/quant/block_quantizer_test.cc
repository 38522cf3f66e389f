// SPDX-License-Identifier: Apache-2.0
// Quantizers of GGUF's blocks beside llama.cpp's, whose blocks of the same rows are recorded
// (make_block_rows.py), and on values that fit nothing.
#include "quant/block_quantizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>

#include "tests/support/test_data.h"
#include "vitrine/quant.h"

namespace vitrine {
namespace {

constexpr int64_t kCols = 256;

std::string read_file(const std::string& name) {
  std::ifstream file(testing_support::test_data("block_rows/" + name + ".bin"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> read_floats(const std::string& name) {
  const std::string bytes = read_file(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::vector<float> read_blocks(const BlockFormat& format, const std::byte* blocks, int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * kCols));
  format.dequantize(blocks, rows * kCols / format.block_size, values.data());
  return values;
}

std::vector<std::byte> quantize(const quant::BlockQuantizer& quantizer,
                                const std::vector<float>& values, const float* importance) {
  const BlockFormat& format = *find_block_format(quantizer.ggml_type);
  const int64_t blocks = kCols / format.block_size;
  const auto rows = std::ssize(values) / kCols;
  std::vector<std::byte> out(static_cast<size_t>(rows * blocks * format.block_bytes));
  for (int64_t row = 0; row < rows; ++row) {
    quantizer.quantize(values.data() + row * kCols, blocks, importance,
                       out.data() + row * blocks * format.block_bytes);
  }
  return out;
}

/// By importance and size, as both sides weight errors; Q6_K by importance alone.
double weighted_error(const float* values, const float* found, const float* importance,
                      int64_t block_size, bool counts_size) {
  double sum = 0;
  for (int64_t first = 0; first < kCols; first += block_size) {
    double square = 0;
    for (int64_t i = first; i < first + block_size; ++i) square += values[i] * values[i];
    for (int64_t i = first; i < first + block_size; ++i) {
      const double off = static_cast<double>(found[i]) - values[i];
      const double size =
          std::sqrt(2 * square / static_cast<double>(block_size) + values[i] * values[i]);
      sum += importance[i] * (counts_size ? size : 1) * off * off;
    }
  }
  return sum;
}

TEST(BlockQuantizers, LoseNoMoreThanLlamaCppOnTheSameRows) {
  const std::vector<float> values = read_floats("rows"), importance = read_floats("importance");
  const int64_t rows = std::ssize(values) / kCols;
  ASSERT_EQ(rows, 12);
  ASSERT_EQ(std::ssize(importance), kCols);
  for (const quant::BlockQuantizer& quantizer : quant::block_quantizers()) {
    const std::string name(quantizer.name);
    SCOPED_TRACE(name);
    const BlockFormat& format = *find_block_format(quantizer.ggml_type);
    const std::string theirs = read_file(name);
    const std::vector<std::byte> ours = quantize(quantizer, values, importance.data());
    ASSERT_EQ(theirs.size(), ours.size());
    if (name == "q8_0") {
      EXPECT_EQ(std::memcmp(theirs.data(), ours.data(), ours.size()), 0);
      continue;
    }
    const std::vector<float> our_values = read_blocks(format, ours.data(), rows);
    const std::vector<float> their_values =
        read_blocks(format, reinterpret_cast<const std::byte*>(theirs.data()), rows);
    double our_sum = 0, their_sum = 0;
    for (int64_t at = 0; at < rows * kCols; at += kCols) {
      const auto error = [&](const std::vector<float>& found) {
        return weighted_error(values.data() + at, found.data() + at, importance.data(),
                              format.block_size, name != "q6_k");
      };
      const double our_error = error(our_values), their_error = error(their_values);
      EXPECT_LE(our_error, 1.1 * their_error) << "row " << at / kCols;
      our_sum += our_error / their_error;
      their_sum += 1;
    }
    EXPECT_LE(our_sum, their_sum);
    RecordProperty(name, std::to_string(our_sum / their_sum));
  }
}

TEST(BlockQuantizers, ReadBackWhatTheyWrote) {
  // Values that are blocks' own come back as they are, or nearly: the search finds their scales.
  const std::vector<float> importance(kCols, 1.0F);
  for (const quant::BlockQuantizer& quantizer : quant::block_quantizers()) {
    const std::string name(quantizer.name);
    SCOPED_TRACE(name);
    const BlockFormat& format = *find_block_format(quantizer.ggml_type);
    const std::string recorded = read_file(name);
    const std::vector<float> values =
        read_blocks(format, reinterpret_cast<const std::byte*>(recorded.data()), 12);
    const std::vector<std::byte> again = quantize(quantizer, values, importance.data());
    const std::vector<float> found = read_blocks(format, again.data(), 12);
    double error = 0, size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      error += (found[i] - values[i]) * (found[i] - values[i]);
      size += values[i] * values[i];
    }
    EXPECT_LT(error / size, name == "q2_k" ? 0.02 : 0.005);
  }
}

TEST(BlockQuantizers, TakeAnyFiniteValues) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<std::vector<float>> rows(9, std::vector<float>(kCols));
  for (size_t i = 0; i < kCols; ++i) {
    const float value = normal(random);
    rows[1][i] = value * 1e-42F;
    rows[2][i] = value * 1e-33F;
    rows[3][i] = value * 1e-7F;
    rows[4][i] = value * 1e5F;
    rows[5][i] = value * 1e37F;
    rows[6][i] = i == 100 ? -3e38F : 0;
    rows[7][i] = 0.5F;
    rows[8][i] = i % 2 == 0 ? -0.0F : -std::fabs(value);
  }
  std::vector<float> none, few(kCols, 0.0F), huge(kCols, 1e30F), one(kCols, 1.0F);
  few[7] = 1e-30F;
  for (const quant::BlockQuantizer& quantizer : quant::block_quantizers()) {
    const BlockFormat& format = *find_block_format(quantizer.ggml_type);
    for (size_t row = 0; row < rows.size(); ++row) {
      for (const std::vector<float>* given : {&none, &few, &huge, &one}) {
        const float* importance = given->empty() ? nullptr : given->data();
        SCOPED_TRACE(std::string(quantizer.name) + " row " + std::to_string(row));
        const std::vector<std::byte> blocks = quantize(quantizer, rows[row], importance);
        const std::vector<float> found = read_blocks(format, blocks.data(), 1);
        // Where all counts alike a row of ordinary size keeps most of itself.
        double error = 0, size = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          ASSERT_TRUE(std::isfinite(found[i]));
          error += (found[i] - rows[row][i]) * static_cast<double>(found[i] - rows[row][i]);
          size += static_cast<double>(rows[row][i]) * rows[row][i];
        }
        if (row == 0) {
          EXPECT_EQ(error, 0);
        }
        if (given == &one && (row == 7 || row == 8)) {
          EXPECT_LT(error, 0.3 * size);
        }
      }
    }
  }
}

}  // namespace
}  // namespace vitrine
