// SPDX-License-Identifier: Apache-2.0
// Statistics of predictions against their definitions, computed the long way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "vitrine/quality.h"

namespace vitrine {
namespace {

using Values = std::vector<double>;
using Clusters = std::vector<size_t>;

std::vector<float> random_logits(size_t count, float size, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

/// log p of every token in 80-bit floats, without a maximum to subtract.
std::vector<long double> exact_logprobs(const std::vector<float>& logits) {
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  std::vector<long double> logprobs;
  for (const float logit : logits) {
    logprobs.push_back(static_cast<long double>(logit) - std::log(sum));
  }
  return logprobs;
}

TEST(Softmax, AgreesWithItsDefinition) {
  for (const size_t count : {size_t{1}, size_t{2}, size_t{17}, size_t{1021}}) {
    for (const float size : {0.1F, 3.0F, 40.0F}) {
      const std::vector<float> logits = random_logits(count, size, static_cast<unsigned>(count));
      const std::vector<long double> expected = exact_logprobs(logits);
      Values found(count);
      log_softmax(logits, found);
      for (size_t id = 0; id < count; ++id) {
        const auto exact = static_cast<double>(expected[id]);
        EXPECT_NEAR(found[id], exact, 1e-12 * (1 + std::abs(exact)));
        EXPECT_NEAR(logprob_of(logits, static_cast<int32_t>(id)), exact,
                    1e-12 * (1 + std::abs(exact)));
      }
    }
  }
}

TEST(Softmax, StandsLogitsThatNoExponentialHolds) {
  const std::vector<float> logits = {3e38F, 3e38F, -3e38F};
  Values found(3);
  log_softmax(logits, found);
  EXPECT_EQ(found[0], double{3e38F} - (double{3e38F} + std::log(2.0)));
  EXPECT_EQ(logprob_of(logits, 1), -std::log(2.0));
  EXPECT_LT(found[2], -1e38);
}

TEST(Softmax, RefusesWhatHasNoLogit) {
  const std::vector<float> logits = {1, 2};
  Values three(3);
  EXPECT_THROW(log_softmax(logits, three), Error);
  EXPECT_THROW(logprob_of(logits, 2), Error);
  EXPECT_THROW(logprob_of(logits, -1), Error);
  EXPECT_THROW(logprob_of({}, 0), Error);
}

TEST(Divergence, AgreesWithItsDefinition) {
  for (const size_t count : {size_t{2}, size_t{13}, size_t{1021}}) {
    const std::vector<float> p = random_logits(count, 4, 1), q = random_logits(count, 4, 2);
    Values p_logprobs(count), q_logprobs(count);
    log_softmax(p, p_logprobs);
    log_softmax(q, q_logprobs);
    const auto p_exact = exact_logprobs(p), q_exact = exact_logprobs(q);
    long double expected = 0;
    for (size_t id = 0; id < count; ++id) {
      expected += std::exp(p_exact[id]) * (p_exact[id] - q_exact[id]);
    }
    EXPECT_NEAR(kl_divergence(p_logprobs, q_logprobs), static_cast<double>(expected), 1e-12);
    EXPECT_GT(kl_divergence(p_logprobs, q_logprobs), 0.1);
    EXPECT_EQ(kl_divergence(p_logprobs, p_logprobs), 0);
  }
}

TEST(Divergence, KnowsWhatIsRuledOut) {
  const double none = -std::numeric_limits<double>::infinity(), half = std::log(0.5);
  EXPECT_NEAR(kl_divergence(Values{0, none}, Values{half, half}), std::log(2.0), 1e-15);
  EXPECT_EQ(kl_divergence(Values{half, half}, Values{0, none}),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(kl_divergence(Values{0, none}, Values{0, none}), 0);
  EXPECT_THROW(kl_divergence(Values{half, half}, Values{0}), Error);
}

TEST(ClusteredMean, OfSingleValuesIsTheUsualStandardError) {
  const Values values = {2.5, -1, 4, 4, 0.25, 7, 3};
  const Estimate found = clustered_mean(values, Clusters{0, 1, 2, 3, 4, 5, 6});
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / 7;
  for (const double value : values) squares += (value - mean) * (value - mean);
  EXPECT_NEAR(found.mean, mean, 1e-14);
  EXPECT_NEAR(found.standard_error, std::sqrt(squares / 6 / 7), 1e-14);
}

TEST(ClusteredMean, AddsUpWhatAClusterHasInCommon) {
  // Clusters of 3, 1, 4 and 2 values; their numbers need not ascend.
  const Values values = {1, 2, 3, 10, -1, -2, -3, -4, 5, 6};
  const Clusters clusters = {7, 7, 7, 2, 9, 9, 9, 9, 3, 3};
  const double mean = 17.0 / 10;
  double squares = 0;
  for (const auto& [sum, count] : {std::pair{6.0, 3}, {10.0, 1}, {-10.0, 4}, {11.0, 2}}) {
    squares += (sum - count * mean) * (sum - count * mean);
  }
  const Estimate found = clustered_mean(values, clusters);
  EXPECT_NEAR(found.mean, mean, 1e-14);
  EXPECT_NEAR(found.standard_error, std::sqrt(4.0 / 3 * squares) / 10, 1e-14);
}

TEST(ClusteredMean, CoversTheTruthAsOftenAsItSays) {
  // Values of one cluster share a number: to take them for independent would cover far too seldom.
  std::mt19937 generator(11);
  std::normal_distribution<double> normal;
  constexpr size_t kRuns = 2000, kClusters = 40;
  size_t covered = 0, covered_as_if_independent = 0;
  for (size_t run = 0; run < kRuns; ++run) {
    Values values;
    Clusters clusters, alone;
    for (size_t cluster = 0; cluster < kClusters; ++cluster) {
      const double shared = normal(generator);
      for (int i = 0; i < 9; ++i) {
        values.push_back(shared + 0.5 * normal(generator));
        clusters.push_back(cluster);
        alone.push_back(alone.size());
      }
    }
    const auto covers = [](const Estimate& estimate) {
      return std::abs(estimate.mean) < 1.96 * estimate.standard_error;
    };
    covered += covers(clustered_mean(values, clusters)) ? 1 : 0;
    covered_as_if_independent += covers(clustered_mean(values, alone)) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(covered) / kRuns, 0.95, 0.025);
  EXPECT_LT(static_cast<double>(covered_as_if_independent) / kRuns, 0.7);
}

TEST(ClusteredMean, KnowsNoErrorOfOneCluster) {
  const Estimate found = clustered_mean(Values{1, 2}, Clusters{5, 5});
  EXPECT_EQ(found.mean, 1.5);
  EXPECT_TRUE(std::isnan(found.standard_error));
  EXPECT_THROW(clustered_mean({}, {}), Error);
  EXPECT_THROW(clustered_mean(Values{1}, Clusters{1, 2}), Error);
}

TEST(PairedDifference, IsTheMeanOfDifferences) {
  const Values first = {1, 5, 2, 8, 3}, second = {1.5, 5.25, 2, 9, 2.5};
  const Clusters clusters = {0, 0, 1, 1, 2};
  const Estimate found = paired_difference(first, second, clusters);
  const Estimate expected = clustered_mean(Values{0.5, 0.25, 0, 1, -0.5}, clusters);
  EXPECT_EQ(found.mean, expected.mean);
  EXPECT_EQ(found.standard_error, expected.standard_error);
  EXPECT_THROW(paired_difference(first, Values{1}, clusters), Error);
}

TEST(Quantile, InterpolatesBetweenSortedValues) {
  const Values values = {9, 1, 4, 2};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 1), 9);
  EXPECT_EQ(quantile(values, 0.5), 3);
  EXPECT_NEAR(quantile(values, 0.9), 4 + 0.7 * 5, 1e-14);  // as numpy.quantile
  EXPECT_EQ(quantile(Values{7}, 0.3), 7);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
  for (const double fraction : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(quantile(values, fraction), Error);
  }
}

TEST(PairedAnswers, AreCounted) {
  const std::vector<uint8_t> first = {1, 1, 0, 0, 1, 0, 1}, second = {1, 0, 1, 0, 0, 0, 1};
  const PairedAnswers found = compare_answers(first, second);
  EXPECT_EQ(found.both, 2);
  EXPECT_EQ(found.first_only, 2);
  EXPECT_EQ(found.second_only, 1);
  EXPECT_EQ(found.neither, 2);
  EXPECT_THROW(compare_answers(first, std::vector<uint8_t>(6)), Error);
}

/// The share of all outcomes of `tosses` coins that are at least as uneven, each counted.
double exact_p_value(int tosses, int heads) {
  uint64_t as_uneven = 0;
  for (uint64_t outcome = 0; outcome < uint64_t{1} << tosses; ++outcome) {
    const int found = __builtin_popcountll(outcome);
    if (std::abs(2 * found - tosses) >= std::abs(2 * heads - tosses)) ++as_uneven;
  }
  return static_cast<double>(as_uneven) / static_cast<double>(uint64_t{1} << tosses);
}

TEST(PairedAnswers, HaveTheExactProbability) {
  for (const int tosses : {0, 1, 2, 5, 10, 15}) {
    for (int heads = 0; heads <= tosses; ++heads) {
      const PairedAnswers answers{.both = 100, .first_only = heads, .second_only = tosses - heads};
      EXPECT_NEAR(answers.p_value(), exact_p_value(tosses, heads), 1e-13) << tosses << " " << heads;
    }
  }
  // A million: no probability is lost to underflow. z = 2 sigma: 0.0456.
  const PairedAnswers many{.first_only = 499'000, .second_only = 501'000};
  EXPECT_NEAR(many.p_value(), 0.0456, 0.0005);
}

}  // namespace
}  // namespace vitrine
