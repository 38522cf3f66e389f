// SPDX-License-Identifier: Apache-2.0
#include "examples/cli/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace cli {
namespace {

using Values = std::vector<double>;

TEST(Median, MiddleValue) {
  EXPECT_EQ(median(Values{3}), 3);
  EXPECT_EQ(median(Values{9, 1, 5}), 5);
  EXPECT_EQ(median(Values{4, 1, 9, 2}), 3);
  EXPECT_EQ(median(Values{-1, -3}), -2);
  EXPECT_EQ(median(Values{0, 0, 0, 1e300}), 0);
  EXPECT_TRUE(std::isnan(median(Values{})));
}

TEST(Median, LeavesItsInputAlone) {
  const Values values{5, 3, 4, 1};
  const Values copy = values;
  median(values);
  EXPECT_EQ(values, copy);
}

TEST(Ratio, IsOfAllTogether) {
  // A short answer that ran badly weighs what it took.
  const Values plain{100, 50, 0.01}, guessed{50, 25, 0.04};
  EXPECT_NEAR(ratio_of_sums(plain, guessed), 2, 0.01);
  EXPECT_EQ(median(Values{2, 2, 0.25}), 2);
  const Interval interval = bootstrap_ratio_interval(plain, guessed);
  EXPECT_NEAR(interval.high, 2, 0.01);
  EXPECT_LT(interval.low, interval.high);
  EXPECT_EQ(bootstrap_ratio_interval(Values{6}, Values{4}).low, 1.5);
  EXPECT_TRUE(std::isnan(ratio_of_sums(Values{}, Values{})));
  EXPECT_TRUE(std::isnan(bootstrap_ratio_interval(Values{}, Values{}).low));
}

TEST(Bootstrap, SameValuesSameInterval) {
  Values values;
  std::mt19937 engine(1);
  std::normal_distribution<double> normal;
  for (int count = 0; count < 200; ++count) values.push_back(normal(engine));
  const Interval first = bootstrap_median_interval(values);
  const Interval second = bootstrap_median_interval(values);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
  const Interval other_seed = bootstrap_median_interval(values, 10000, 2);
  EXPECT_TRUE(other_seed.low != first.low || other_seed.high != first.high);
  EXPECT_LT(first.low, median(values));
  EXPECT_GT(first.high, median(values));
}

TEST(Bootstrap, DegenerateInputs) {
  const Interval one = bootstrap_median_interval(Values{0.25});
  EXPECT_EQ(one.low, 0.25);
  EXPECT_EQ(one.high, 0.25);
  EXPECT_TRUE(std::isnan(bootstrap_median_interval(Values{}).low));
  EXPECT_TRUE(std::isnan(bootstrap_median_interval(Values{1}, 0).high));
}

TEST(Bootstrap, WidthIsThatOfTheMedian) {
  // The median of n standard normal values has a standard error of about sqrt(pi / (2 n)).
  constexpr int kCount = 400;
  double width = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    Values values(kCount);
    for (double& value : values) value = normal(engine);
    const Interval interval = bootstrap_median_interval(values, 1000);
    width += (interval.high - interval.low) / 40;
  }
  EXPECT_NEAR(width, 2 * 1.96 * std::sqrt(M_PI / (2 * kCount)), 0.03);
}

TEST(Bootstrap, CoversTheTrueMedianAbout95TimesIn100) {
  constexpr int kExperiments = 400;
  int covered = 0;
  for (unsigned seed = 0; seed < kExperiments; ++seed) {
    std::mt19937 engine(seed + 1000);
    std::exponential_distribution<double> exponential;
    Values values(100);
    for (double& value : values) value = exponential(engine);
    const Interval interval = bootstrap_median_interval(values, 500);
    covered += interval.low <= M_LN2 && M_LN2 <= interval.high;
  }
  EXPECT_GE(covered, kExperiments * 90 / 100);
  EXPECT_LE(covered, kExperiments * 99 / 100);
}

TEST(Verdict, Boundaries) {
  const auto at = [](double low, double high) { return overhead_verdict({low, high}); };
  EXPECT_EQ(at(-0.02, 0.0099), "STRICT");
  EXPECT_EQ(at(-0.5, -0.1), "STRICT");
  EXPECT_EQ(at(0.0099, 0.01), "INCONCLUSIVE");
  EXPECT_EQ(at(0.01, 0.01), "LENIENT");
  EXPECT_EQ(at(0.01, 0.0499), "LENIENT");
  EXPECT_EQ(at(0.0499, 0.05), "INCONCLUSIVE");
  EXPECT_EQ(at(0.05, 0.05), "FAIL");
  EXPECT_EQ(at(0.05, 0.10), "FAIL");
  EXPECT_EQ(at(0.0999, 0.1001), "INCONCLUSIVE");
  EXPECT_EQ(at(0.1001, 0.9), "CATASTROPHIC");
  EXPECT_EQ(at(-0.01, 0.9), "INCONCLUSIVE");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(at(nan, nan), "INCONCLUSIVE");
}

}  // namespace
}  // namespace cli
