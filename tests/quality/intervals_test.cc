// SPDX-License-Identifier: Apache-2.0
// Intervals and tests against scipy and statsmodels (intervals.json, which intervals.py writes),
// and what they promise: how often they are wrong, and with how many items they decide.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "vitrine/statistics.h"

namespace vitrine {
namespace {

using Json = nlohmann::json;
using Values = std::vector<double>;
using Clusters = std::vector<size_t>;

const double kInfinity = std::numeric_limits<double>::infinity();

const Json& oracle() {
  static const Json read = Json::parse(std::ifstream("tests/quality/intervals.json"));
  return read;
}

PairedAnswers answers_of(int64_t lost, int64_t gained, int64_t total) {
  return {total - lost - gained, lost, gained, 0};
}

TEST(Distributions, AgreeWithScipy) {
  for (const Json& row : oracle()["student"]) {
    const double expected = row[2];
    EXPECT_NEAR(student_quantile(row[0], row[1]), expected, 1e-9 * (1 + std::abs(expected)));
  }
  for (const Json& row : oracle()["normal"]) {
    EXPECT_NEAR(normal_quantile(row[0]), row[1].get<double>(), 1e-9);
  }
  for (const Json& row : oracle()["binomial"]) {
    const double right = row["right"], total = row["total"];
    const Interval found = binomial_interval(right, total, 0.975);
    EXPECT_NEAR(found.lower, row["lower"].get<double>(), 1e-9) << row;
    EXPECT_NEAR(found.upper, row["upper"].get<double>(), 1e-9) << row;
    const double expected = row["at_least"];
    EXPECT_NEAR(binomial_at_least(right, total, 0.25), expected, 1e-9 * expected) << row;
  }
}

TEST(Distributions, RefuseWhatIsNone) {
  EXPECT_THROW(normal_quantile(0), Error);
  EXPECT_THROW(normal_quantile(1), Error);
  EXPECT_THROW(student_quantile(0.95, 0), Error);
  EXPECT_THROW(binomial_at_least(3, 2, 0.5), Error);
  EXPECT_THROW(binomial_at_least(-1, 2, 0.5), Error);
  EXPECT_THROW(binomial_at_least(1, 2, 1.5), Error);
  EXPECT_THROW(binomial_interval(1, 2, 1), Error);
}

TEST(PairedDrop, AgreesWithTangoAndWithScipy) {
  for (const Json& row : oracle()["paired"]) {
    const PairedAnswers answers = answers_of(row["lost"], row["gained"], row["total"]);
    EXPECT_NEAR(answers.drop_interval(0.95).upper, row["upper"].get<double>(), 1e-6) << row;
    EXPECT_NEAR(answers.p_worse(), row["worse"].get<double>(), 1e-9) << row;
    EXPECT_NEAR(answers.p_value(), row["two_sided"].get<double>(), 1e-9) << row;
    // The lower bound is the upper one of the sides changed about.
    const PairedAnswers other = answers_of(row["gained"], row["lost"], row["total"]);
    EXPECT_EQ(answers.drop_interval(0.95).lower, -other.drop_interval(0.95).upper);
  }
}

TEST(PairedDrop, WithoutAFlipTakes299ItemsToAPoint) {
  EXPECT_GT(answers_of(0, 0, 298).drop_interval(0.95).upper, 0.01);
  EXPECT_LT(answers_of(0, 0, 299).drop_interval(0.95).upper, 0.01);
  EXPECT_EQ(items_to_decide(0, 0.01), 299);
  EXPECT_TRUE(std::isnan(PairedAnswers{}.drop_interval(0.95).upper));
  EXPECT_EQ(answers_of(5, 0, 5).drop_interval(0.95).upper, 1);
}

/// How probable it is that the upper bound lies below the true drop, all results weighed.
double miss_probability(int64_t total, double drop, double gains) {
  const double losses = gains + drop, rest = 1 - gains - losses;
  const auto most = [&](double share) {
    const double mean = share * static_cast<double>(total);
    return static_cast<int64_t>(mean + 8 * std::sqrt(mean)) + 3;
  };
  double missed = 0;
  const auto n = static_cast<double>(total);
  for (int64_t lost = 0; lost <= std::min(total, most(losses)); ++lost) {
    for (int64_t gained = 0; gained <= std::min(total - lost, most(gains)); ++gained) {
      if (gained > 0 && gains == 0) break;
      if (answers_of(lost, gained, total).drop_interval(0.95).upper >= drop) continue;
      const auto b = static_cast<double>(lost), c = static_cast<double>(gained);
      missed += std::exp(std::lgamma(n + 1) - std::lgamma(b + 1) - std::lgamma(c + 1) -
                         std::lgamma(n - b - c + 1) + b * std::log(losses) +
                         (gained > 0 ? c * std::log(gains) : 0) + (n - b - c) * std::log(rest));
    }
  }
  return missed;
}

TEST(PairedDrop, IsWrongAtMostAsOftenAsItSays) {
  for (const int64_t total : {100, 299, 700}) {
    for (const double drop : {0.01, 0.02}) {
      for (const double gains : {0.0, 0.002, 0.01}) {
        EXPECT_LT(miss_probability(total, drop, gains), 0.0505)
            << total << " items, " << drop << " lost, " << gains << " gained";
      }
    }
  }
}

/// How probable it is that the upper bound lies below a margin where nothing is lost, all results
/// weighed.
double pass_probability(int64_t total, double flips, double margin) {
  const double mean = flips / 2 * static_cast<double>(total);
  const auto most = static_cast<int64_t>(mean + 8 * std::sqrt(mean)) + 3;
  const auto n = static_cast<double>(total);
  double passes = 0;
  for (int64_t lost = 0; lost <= most; ++lost) {
    for (int64_t gained = 0; gained <= most; ++gained) {
      if (answers_of(lost, gained, total).drop_interval(0.95).upper >= margin) continue;
      const auto b = static_cast<double>(lost), c = static_cast<double>(gained);
      passes += std::exp(std::lgamma(n + 1) - std::lgamma(b + 1) - std::lgamma(c + 1) -
                         std::lgamma(n - b - c + 1) + (b + c) * std::log(flips / 2) +
                         (n - b - c) * std::log(1 - flips));
    }
  }
  return passes;
}

TEST(ItemsToDecide, HaveTheirPower) {
  EXPECT_EQ(items_to_decide(0, 0.01), 299);
  EXPECT_EQ(items_to_decide(0.02, 0.01), 1397);
  EXPECT_EQ(items_to_decide(0.04, 0.01), 2562);
  for (const double flips : {0.01, 0.02, 0.04}) {
    const double power = pass_probability(items_to_decide(flips, 0.01), flips, 0.01);
    EXPECT_GT(power, 0.79) << flips;
    EXPECT_LT(power, 0.85) << flips;
  }
  // The shorter formula's numbers fall short.
  EXPECT_NEAR(pass_probability(1237, 0.02, 0.01), 0.775, 0.001);
  EXPECT_THROW(items_to_decide(-0.1, 0.01), Error);
  EXPECT_THROW(items_to_decide(0.02, 0), Error);
}

/// As many flips of each kind as independent items have.
PairedAnswers draw_answers(int64_t total, double losses, double gains, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform;
  PairedAnswers answers;
  for (int64_t i = 0; i < total; ++i) {
    const double at = uniform(random);
    ++(at < losses ? answers.first_only : at < losses + gains ? answers.second_only : answers.both);
  }
  return answers;
}

TEST(McNemar, IsRarelyWrongAndFindsWhatIsThere) {
  std::mt19937_64 random(2);
  int alarms = 0, found = 0;
  constexpr int kRuns = 2000;
  for (int run = 0; run < kRuns; ++run) {
    if (draw_answers(1000, 0.02, 0.02, random).p_worse() < 0.05) ++alarms;
    if (draw_answers(1000, 0.04, 0.01, random).p_worse() < 0.05) ++found;
  }
  EXPECT_LE(alarms, 0.05 * kRuns);
  EXPECT_GE(alarms, 0.01 * kRuns);
  EXPECT_GE(found, 0.95 * kRuns);
}

TEST(ClusteredMeans, AgreeWithStatsmodels) {
  for (const Json& row : oracle()["means"]) {
    const Values values = row["values"];
    const Clusters clusters = row["clusters"];
    const Estimate found = clustered_mean(values, clusters);
    EXPECT_NEAR(found.interval(0.95).lower, row["lower"].get<double>(), 1e-8);
    EXPECT_NEAR(found.interval(0.95).upper, row["upper"].get<double>(), 1e-8);
    EXPECT_NEAR(found.p_above(0.2), row["p_above"].get<double>(), 1e-8);
  }
}

TEST(ClusteredMeans, KnowWhatTheyCannotSay) {
  const Estimate one = clustered_mean(Values{1, 2}, Clusters{0, 0});
  EXPECT_TRUE(std::isnan(one.interval(0.95).upper));
  EXPECT_TRUE(std::isnan(one.p_above(0)));
  const Estimate equal = clustered_mean(Values{0, 0, 0}, Clusters{0, 1, 2});
  EXPECT_EQ(equal.interval(0.95).upper, 0);
  EXPECT_EQ(equal.p_above(0), 1);
  EXPECT_EQ(equal.p_above(-1), 0);
}

/// Values that hang together in clusters of so many: each has a part in common.
void draw_clusters(size_t num_clusters, size_t size, std::mt19937_64& random, Values& values,
                   Clusters& clusters) {
  std::normal_distribution<double> normal;
  values.clear();
  clusters.clear();
  for (size_t cluster = 0; cluster < num_clusters; ++cluster) {
    const double common = normal(random);
    for (size_t i = 0; i < size; ++i) {
      values.push_back(common + normal(random));
      clusters.push_back(cluster);
    }
  }
}

TEST(ClusteredMeans, AreWrongAsOftenAsTheySay) {
  std::mt19937_64 random(3);
  Values values;
  Clusters clusters;
  int missed = 0, alarms = 0;
  constexpr int kRuns = 4000;
  for (int run = 0; run < kRuns; ++run) {
    draw_clusters(8, 5, random, values, clusters);
    const Estimate found = clustered_mean(values, clusters);
    if (found.interval(0.95).upper < 0) ++missed;
    if (found.p_above(0) < 0.05) ++alarms;
  }
  EXPECT_NEAR(missed / double{kRuns}, 0.05, 0.011);
  EXPECT_NEAR(alarms / double{kRuns}, 0.05, 0.011);
}

Clusters alone(size_t count) {
  Clusters clusters(count);
  for (size_t i = 0; i < count; ++i) clusters[i] = i;
  return clusters;
}

TEST(QuantileIntervals, AgreeWithScipy) {
  for (const Json& row : oracle()["quantiles"]) {
    const Values values = row["values"];
    const Clusters clusters = alone(values.size());
    const double fraction = row["fraction"];
    const Interval found = quantile_interval(values, clusters, fraction, 0.95);
    EXPECT_EQ(found.lower, row["lower"].is_null() ? -kInfinity : row["lower"].get<double>()) << row;
    EXPECT_EQ(found.upper, row["upper"].is_null() ? kInfinity : row["upper"].get<double>()) << row;
    EXPECT_NEAR(quantile_p_above(values, clusters, fraction, 1), row["p_above"].get<double>(), 1e-9)
        << row;
  }
}

TEST(QuantileIntervals, HoldWhereValuesHangTogether) {
  std::mt19937_64 random(4);
  Values values;
  Clusters clusters;
  int missed = 0, alarms = 0, missed_alone = 0;
  constexpr int kRuns = 2000;
  const double truth = std::sqrt(2.0) * normal_quantile(0.9);
  for (int run = 0; run < kRuns; ++run) {
    draw_clusters(10, 20, random, values, clusters);
    if (quantile_interval(values, clusters, 0.9, 0.95).upper < truth) ++missed;
    if (quantile_interval(values, alone(values.size()), 0.9, 0.95).upper < truth) ++missed_alone;
    if (quantile_p_above(values, clusters, 0.9, truth) < 0.05) ++alarms;
  }
  EXPECT_LE(missed, 0.062 * kRuns);
  EXPECT_LE(alarms, 0.062 * kRuns);
  EXPECT_GE(missed_alone, 0.15 * kRuns);  // were they taken for independent
}

TEST(PairedRatios, FindWhatIsSlower) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> noise(0, 0.1), size(0, 1);
  Values first, second;
  for (int i = 0; i < 101; ++i) {
    const double item = std::exp(size(random));
    first.push_back(item * std::exp(noise(random)));
    second.push_back(item * 1.2 * std::exp(noise(random)));
  }
  const PairedRatio found = paired_ratio(first, second, 0.95);
  EXPECT_EQ(found.num_pairs, 101);
  EXPECT_NEAR(found.ratio, 1.2, 0.05);
  EXPECT_LT(found.interval.lower, 1.2);
  EXPECT_GT(found.interval.lower, 1.1);
  EXPECT_GT(found.interval.upper, 1.2);
  EXPECT_EQ(paired_ratio(Values{1, 1, 1, 1}, Values{1, 1, 1, 1}, 0.95).interval.upper, kInfinity);
  EXPECT_THROW(paired_ratio(Values{1, 0}, Values{1, 1}, 0.95), Error);
  EXPECT_THROW(paired_ratio(Values{1}, Values{1, 1}, 0.95), Error);
}

TEST(Holm, AgreesWithStatsmodelsAndPassesOverWhatWasNotTested) {
  const Values p_values = oracle()["holm"]["p"];
  const Values expected = oracle()["holm"]["adjusted"];
  const Values found = holm_p_values(p_values);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
  const double none = std::numeric_limits<double>::quiet_NaN();
  const Values some = holm_p_values(Values{none, 0.01, none, 0.04});
  EXPECT_TRUE(std::isnan(some[0]) && std::isnan(some[2]));
  EXPECT_EQ(some[1], 0.02);
  EXPECT_EQ(some[3], 0.04);
  EXPECT_TRUE(holm_p_values({}).empty());
}

TEST(Calibrations, AgreeWithTheirDefinition) {
  const Json& row = oracle()["calibration"];
  const Values probabilities = row["probabilities"];
  const std::vector<uint8_t> right = row["right"];
  const Calibration found = calibrate(probabilities, right);
  EXPECT_NEAR(found.expected_error, row["error"].get<double>(), 1e-12);
  EXPECT_NEAR(found.brier, row["brier"].get<double>(), 1e-12);
  size_t count = 0;
  for (const ReliabilityBin& bin : found.bins) {
    count += bin.count;
    if (bin.count == 0) continue;
    EXPECT_GE(bin.probability, bin.lower);
    EXPECT_LE(bin.probability, bin.upper);
  }
  EXPECT_EQ(count, probabilities.size());
  EXPECT_EQ(calibrate({}, {}).expected_error, 0);
  EXPECT_THROW(calibrate(Values{1.5}, std::vector<uint8_t>{1}), Error);
  EXPECT_THROW(calibrate(Values{0.5}, {}), Error);
  EXPECT_THROW(calibrate({}, {}, 0), Error);
}

using TopTokens = std::vector<std::pair<int32_t, float>>;

Values draw_logprobs(size_t count, double size, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, size);
  Values logprobs(count);
  double sum = 0;
  for (double& value : logprobs) sum += std::exp(value = normal(random));
  for (double& value : logprobs) value -= std::log(sum);
  return logprobs;
}

TopTokens top_of(const Values& logprobs, size_t count) {
  TopTokens all;
  for (size_t id = 0; id < logprobs.size(); ++id) {
    all.emplace_back(static_cast<int32_t>(id), static_cast<float>(logprobs[id]));
  }
  std::ranges::stable_sort(all, std::greater<>(), &std::pair<int32_t, float>::second);
  all.resize(count);
  return all;
}

TEST(TopDivergence, IsAtMostTheWholeOneAndReachesIt) {
  std::mt19937_64 random(6);
  for (int run = 0; run < 50; ++run) {
    const Values p = draw_logprobs(200, 2, random);
    Values q = p;
    const Values other = draw_logprobs(200, 0.3, random);
    double sum = 0;
    for (size_t id = 0; id < q.size(); ++id) sum += std::exp(q[id] += other[id]);
    for (double& value : q) value -= std::log(sum);
    double whole = 0;
    for (size_t id = 0; id < p.size(); ++id) whole += std::exp(p[id]) * (p[id] - q[id]);
    double last = 0;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{40}, size_t{200}}) {
      const double found = top_divergence(top_of(p, count), top_of(q, count));
      EXPECT_LE(found, whole + 1e-5);
      if (count == 40) {
        EXPECT_GT(found, 0.5 * whole);
      }
      last = found;
    }
    EXPECT_NEAR(last, whole, 1e-5);
  }
}

TEST(TopDivergence, TakesIdsOfOneListForTheRest) {
  const float half = std::log(0.5F), quarter = std::log(0.25F), eighth = std::log(0.125F);
  // Cells: id 1 (a half and a quarter), and the rest.
  const TopTokens p = {{1, half}, {2, quarter}}, q = {{3, half}, {1, quarter}, {4, eighth}};
  const double expected = 0.5 * std::log(2.0) + 0.5 * std::log(0.5 / 0.75);
  EXPECT_NEAR(top_divergence(p, q), expected, 1e-6);
  EXPECT_EQ(top_divergence(p, p), 0);
  EXPECT_THROW(top_divergence(TopTokens{{1, half}, {1, half}}, q), Error);
  EXPECT_THROW(top_divergence(TopTokens{{1, 0.0F}, {2, half}}, q), Error);
  EXPECT_THROW(top_divergence(TopTokens{{1, std::nanf("")}}, q), Error);
}

}  // namespace
}  // namespace vitrine
