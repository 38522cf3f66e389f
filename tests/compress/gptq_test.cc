// SPDX-License-Identifier: Apache-2.0
// GPTQ beside llm-compressor's (make_gptq_fixture.py), and what it must do whatever the numbers.
#include "compress/gptq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "compress/hessian.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/test_data.h"
#include "vitrine/checkpoint.h"

namespace vitrine::compress {
namespace {

using nlohmann::json;

std::vector<float> floats_of(const json& bits) {
  std::vector<float> values;
  for (const json& value : bits) {
    values.push_back(bf16_to_float(static_cast<uint16_t>(value.get<int>())));
  }
  return values;
}

/// Sums in double, in the order of the rows.
std::vector<float> plain_hessian(const std::vector<float>& rows, int64_t width) {
  std::vector<double> sum(static_cast<size_t>(width * width), 0.0);
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(width)) {
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      for (size_t j = 0; j < static_cast<size_t>(width); ++j) {
        sum[i * static_cast<size_t>(width) + j] +=
            static_cast<double>(rows[row + i]) * rows[row + j];
      }
    }
  }
  return {sum.begin(), sum.end()};
}

Rows random_rows(int64_t count, int64_t width, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Rows rows;
  rows.width = width;
  for (int64_t i = 0; i < count * width; ++i) rows.values.push_back(normal(random));
  // Columns that hang together, as those of a model do.
  for (size_t row = 0; row < rows.values.size(); row += static_cast<size_t>(width)) {
    for (size_t i = 1; i < static_cast<size_t>(width); ++i) {
      rows.values[row + i] += 0.7F * rows.values[row + i - 1];
    }
  }
  return rows;
}

std::vector<int32_t> all_of(const Rows& rows) {
  std::vector<int32_t> chosen(static_cast<size_t>(rows.count()));
  std::iota(chosen.begin(), chosen.end(), 0);
  return chosen;
}

/// The squared error of a matrix's outputs over the rows.
double output_error(const std::vector<float>& weights, const QuantizedMatrix& matrix,
                    const Rows& rows) {
  const std::vector<float> other = dequantize_matrix(matrix);
  double sum = 0;
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t i = 0; i < rows.count(); ++i) {
      double off = 0;
      for (int64_t c = 0; c < matrix.cols; ++c) {
        const auto at = static_cast<size_t>(r * matrix.cols + c);
        off += (static_cast<double>(weights[at]) - other[at]) * rows.row(i)[c];
      }
      sum += off * off;
    }
  }
  return sum;
}

TEST(Gptq, ChoosesWhatLlmCompressorChooses) {
  const json cases =
      json::parse(read_text_file(testing_support::test_data("gptq.json"), uint64_t{1} << 24));
  ASSERT_EQ(cases.size(), 4u);
  for (const json& one : cases) {
    SCOPED_TRACE(one["bits"].dump() + " bits, groups of " + one["group"].dump());
    const int64_t rows = one["rows"], cols = one["cols"];
    GptqOptions options;
    options.sorts_columns = one["sorts_columns"];
    options.least_shrink = 1;  // the extremes' own scales
    const QuantScheme scheme{one["bits"], one["group"], one["symmetric"]};
    const GptqFactor factor(plain_hessian(floats_of(one["inputs"]), cols), cols, options);
    const GptqResult result =
        gptq(floats_of(one["weights"]), rows, cols, DType::kBF16, scheme, factor, options, 2);
    EXPECT_EQ(result.matrix.scales, floats_of(one["scales"]));
    size_t same = 0;
    const json& numbers = one["numbers"];
    ASSERT_EQ(numbers.size(), result.matrix.values.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      same += numbers[i].get<int>() == result.matrix.values[i] ? 1 : 0;
    }
    EXPECT_GE(static_cast<double>(same), 0.999 * static_cast<double>(numbers.size())) << same;
    // It halves its losses.
    EXPECT_NEAR(result.loss / 2, one["loss"].get<double>(), 2e-3 * one["loss"].get<double>());
  }
}

TEST(Gptq, LosesLessThanRoundingAndTellsHowMuch) {
  const int64_t rows = 37, cols = 160;
  const Rows inputs = random_rows(500, cols, 3);
  const Rows weights = random_rows(rows, cols, 4);
  const std::vector<float> sum = hessian(inputs, all_of(inputs), 2);
  for (const bool symmetric : {true, false}) {
    const QuantScheme scheme{3, 32, symmetric};
    GptqOptions options;
    options.least_shrink = 1;
    options.damping = 1e-6;
    const GptqFactor factor(sum, cols, options);
    const GptqResult result =
        gptq(weights.values, rows, cols, DType::kF32, scheme, factor, options, 1);
    const QuantizedMatrix rounded =
        quantize_matrix(weights.values, rows, cols, DType::kF32, scheme);
    const double own = output_error(weights.values, result.matrix, inputs);
    EXPECT_LT(own, 0.7 * output_error(weights.values, rounded, inputs));
    EXPECT_NEAR(result.loss, own, 0.01 * own);
  }
}

TEST(Gptq, HangsOnNoNumberOfThreads) {
  const int64_t rows = 75, cols = 200;
  const Rows inputs = random_rows(300, cols, 5);
  const Rows weights = random_rows(rows, cols, 6);
  const GptqOptions options;
  const std::vector<float> one = hessian(inputs, all_of(inputs), 1);
  EXPECT_EQ(one, hessian(inputs, all_of(inputs), 3));
  const GptqFactor factor(one, cols, options);
  const auto run = [&](int threads) {
    return gptq(weights.values, rows, cols, DType::kBF16, {4, 128, true}, factor, options, threads);
  };
  const GptqResult single = run(1), several = run(3);
  EXPECT_EQ(single.matrix.values, several.matrix.values);
  EXPECT_EQ(single.matrix.scales, several.matrix.scales);
  EXPECT_EQ(single.loss, several.loss);
}

TEST(Gptq, HessianIsTheSumOfProductsOfChosenRows) {
  const Rows rows = random_rows(301, 73, 7);
  std::vector<int32_t> chosen;
  std::vector<float> copied;
  for (int32_t i = 0; i < 301; i += 3) {
    chosen.push_back(i);
    copied.insert(copied.end(), rows.row(i), rows.row(i) + rows.width);
  }
  const std::vector<float> expected = plain_hessian(copied, rows.width);
  const std::vector<float> found = hessian(rows, chosen, 2);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 2e-5 * (1 + std::fabs(expected[i]))) << i;
  }
}

TEST(Gptq, DeadColumnsBecomeZeroAndDampingGrows) {
  const int64_t cols = 64;
  Rows inputs = random_rows(10, cols, 8);  // fewer rows than columns
  for (int64_t i = 0; i < inputs.count(); ++i) inputs.values[static_cast<size_t>(i * cols + 9)] = 0;
  GptqOptions options;
  options.damping = 1e-12;
  const GptqFactor factor(hessian(inputs, all_of(inputs), 1), cols, options);
  EXPECT_TRUE(factor.is_dead(9));
  EXPECT_GT(factor.damping(), 1e-12);
  const Rows weights = random_rows(5, cols, 9);
  const GptqResult result =
      gptq(weights.values, 5, cols, DType::kF32, {4, 32, true}, factor, options, 1);
  for (int64_t r = 0; r < 5; ++r)
    EXPECT_EQ(result.matrix.values[static_cast<size_t>(r * cols + 9)], 0);
}

TEST(Gptq, InputsThatAreNoNumbersAreRefused) {
  std::vector<float> sum(16, 0.0F);
  sum[5] = std::numeric_limits<float>::quiet_NaN();
  const Error error = testing::error_of([&] { GptqFactor(sum, 4, GptqOptions{}); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(testing::is_one_line_with(error, {"positive definite", "expected"}));
}

}  // namespace
}  // namespace vitrine::compress
