// SPDX-License-Identifier: Apache-2.0
// What is drawn against what should be: chi-squared over 200,000 draws, for each stage and for
// pipelines of three, beside probabilities that share nothing with the stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "sample/drawing_stage.h"
#include "vitrine/sample.h"

namespace vitrine {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr int kDraws = 200000;
const std::vector<int32_t> kHistory = {3, 9, 3, 12, 30, 3, 9, 12};

using Logits = std::vector<double>;  // -infinity: dropped
using Step = std::function<void(Logits&)>;

std::vector<float> random_logits(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

Logits softmax(const Logits& logits) {
  const double largest = *std::ranges::max_element(logits);
  Logits result(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) total += result[i] = std::exp(logits[i] - largest);
  for (double& value : result) value /= total;
  return result;
}

/// Ids by a key, ascending; ties by lower id.
std::vector<size_t> order_by(const std::function<double(size_t)>& key, size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, key);
  return order;
}

void keep(Logits& logits, const std::function<bool(size_t)>& keeps) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!keeps(i)) logits[i] = kNever;
  }
}

/// Keeps the first ids of an order until their probabilities reach p.
void keep_mass(Logits& logits, const std::vector<size_t>& order, double p) {
  const Logits probabilities = softmax(logits);
  double sum = 0;
  for (const size_t id : order) {
    if (sum >= p) logits[id] = kNever;
    sum += probabilities[id];
  }
}

Step scale(double temperature) {
  return [=](Logits& logits) {
    for (double& logit : logits) logit /= temperature;
  };
}

Step best(size_t k) {
  return [=](Logits& logits) {
    const auto order = order_by([&](size_t id) { return -logits[id]; }, logits.size());
    for (size_t i = k; i < order.size(); ++i) logits[order[i]] = kNever;
  };
}

Step nucleus(double p) {
  return [=](Logits& logits) {
    keep_mass(logits, order_by([&](size_t id) { return -logits[id]; }, logits.size()), p);
  };
}

Step at_least(double p) {
  return [=](Logits& logits) {
    const Logits probabilities = softmax(logits);
    const double limit = p * *std::ranges::max_element(probabilities);
    keep(logits, [&](size_t id) { return probabilities[id] >= limit; });
  };
}

double entropy_of(const Logits& probabilities) {
  double entropy = 0;
  for (const double p : probabilities) entropy -= p > 0 ? p * std::log(p) : 0;
  return entropy;
}

Step typical(double p) {
  return [=](Logits& logits) {
    const Logits probabilities = softmax(logits);
    const double entropy = entropy_of(probabilities);
    keep_mass(logits,
              order_by([&](size_t id) { return std::abs(-std::log(probabilities[id]) - entropy); },
                       logits.size()),
              p);
  };
}

Step within_sigmas(double n) {
  return [=](Logits& logits) {
    double sum = 0, squares = 0, count = 0;
    for (const double logit : logits) {
      if (logit == kNever) continue;
      sum += logit;
      squares += logit * logit;
      ++count;
    }
    const double deviation = std::sqrt(squares / count - sum / count * sum / count);
    const double limit = *std::ranges::max_element(logits) - n * deviation;
    keep(logits, [&](size_t id) { return logits[id] >= limit; });
  };
}

Step entropy_scale(double middle, double range, double exponent) {
  return [=](Logits& logits) {
    const double count = static_cast<double>(logits.size());  // of cases that drop nothing before
    const double share = entropy_of(softmax(logits)) / std::log(count);
    scale(middle - range + 2 * range * std::pow(share, exponent))(logits);
  };
}

Step without_top(double threshold) {
  return [=](Logits& logits) {
    const Logits probabilities = softmax(logits);
    double last = 2;
    int reach = 0;
    for (const double p : probabilities) {
      if (p < threshold) continue;
      ++reach;
      last = std::min(last, p);
    }
    if (reach > 1) keep(logits, [&](size_t id) { return probabilities[id] <= last; });
  };
}

Step penalise(double repetition, double frequency, double presence, size_t window) {
  return [=](Logits& logits) {
    std::vector<int> counts(logits.size());
    for (size_t i = kHistory.size() - window; i < kHistory.size(); ++i) {
      ++counts[static_cast<size_t>(kHistory[i])];
    }
    for (size_t id = 0; id < logits.size(); ++id) {
      if (counts[id] == 0) continue;
      logits[id] = logits[id] < 0 ? logits[id] * repetition : logits[id] / repetition;
      logits[id] -= counts[id] * frequency + presence;
    }
  };
}

Step add(size_t id, double bias) {
  return [=](Logits& logits) { logits[id] += bias; };
}

/// Mirostat's first choice: everything of at most 2 tau bits.
Step surprise_at_most(double bits) {
  return [=](Logits& logits) {
    const Logits probabilities = softmax(logits);
    keep(logits, [&](size_t id) { return -std::log2(probabilities[id]) <= bits; });
  };
}

struct Case {
  const char* name;
  SamplerOptions options;
  std::vector<Step> steps;
  double xtc_share = 0;  // of the draws, `steps` and then `xtc` are what happens
  Step xtc = {};
};

Logits expected_probabilities(const Case& test, const std::vector<float>& logits,
                              double temperature) {
  Logits plain(logits.begin(), logits.end());
  scale(temperature)(plain);
  for (const Step& step : test.steps) step(plain);
  if (test.xtc_share == 0) return softmax(plain);
  Logits excluded = plain;
  test.xtc(excluded);
  const Logits with = softmax(excluded), without = softmax(plain);
  Logits mixed(with.size());
  for (size_t id = 0; id < with.size(); ++id) {
    mixed[id] = test.xtc_share * with[id] + (1 - test.xtc_share) * without[id];
  }
  return mixed;
}

/// What is guessed for a draw; none: nothing is.
using Guess = std::function<int32_t(int draw)>;

std::vector<int> draw_many(const Case& test, const std::vector<float>& logits,
                           const Guess& guess = {}) {
  SamplerPipeline pipeline = SamplerPipeline::from_options(test.options);
  DrawingStage* const stage = find_drawing_stage(pipeline);
  std::vector<int> counts(logits.size());
  const bool has_state = test.options.mirostat != 0;
  for (int i = 0; i < kDraws; ++i) {
    // Mirostat begins anew at each position 0.
    const SampleContext context{
        .seed = test.options.seed + (has_state ? static_cast<uint64_t>(i) : 0),
        .position = has_state ? 0 : 100 + i,
        .history = kHistory};
    const int32_t draft = guess ? guess(i) : -1;
    if (guess) stage->set_drafts(context.position, {&draft, 1});
    ++counts[static_cast<size_t>(pipeline.sample(logits, context))];
  }
  return counts;
}

/// Standard score of a chi-squared statistic (Wilson and Hilferty's cube root); infinite where
/// something impossible was drawn. Bins that expect fewer than 5 draws are put together.
double chi_squared_score(const std::vector<int>& counts, const Logits& expected) {
  double statistic = 0, rare_expected = 0, rare_count = 0;
  int bins = 0;
  const auto add_bin = [&](double count, double mean) {
    statistic += (count - mean) * (count - mean) / mean;
    ++bins;
  };
  for (size_t id = 0; id < expected.size(); ++id) {
    if (expected[id] == 0.0 && counts[id] > 0) return std::numeric_limits<double>::infinity();
    if (expected[id] * kDraws < 5) {
      rare_expected += expected[id] * kDraws;
      rare_count += counts[id];
    } else {
      add_bin(counts[id], expected[id] * kDraws);
    }
  }
  if (rare_expected > 0) add_bin(rare_count, rare_expected);
  const double freedom = bins - 1;
  const double spread = 2 / (9 * freedom);
  return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread);
}

std::vector<Case> all_cases() {
  const Step never9 = add(9, kNever);
  return {
      {"draw", {.seed = 11}, {}},
      {"temperature below 1", {.temperature = 0.6f, .seed = 12}, {scale(0.6f)}},
      {"temperature above 1", {.temperature = 1.7f, .seed = 13}, {scale(1.7f)}},
      {"top_k", {.top_k = 12, .seed = 14}, {best(12)}},
      {"top_p", {.top_p = 0.8f, .seed = 15}, {nucleus(0.8f)}},
      {"min_p", {.min_p = 0.08f, .seed = 16}, {at_least(0.08f)}},
      {"typical_p", {.seed = 17, .typical_p = 0.7f}, {typical(0.7f)}},
      {"top_n_sigma", {.seed = 18, .top_n_sigma = 1.2f}, {within_sigmas(1.2f)}},
      {"xtc",
       {.seed = 19, .xtc_probability = 0.4f, .xtc_threshold = 0.04f},
       {},
       0.4f,
       without_top(0.04f)},
      {"dynamic temperature",
       {.seed = 20, .dynamic_temperature = 0.5f, .dynamic_temperature_exponent = 1.5f},
       {entropy_scale(1, 0.5, 1.5)}},
      {"mirostat", {.seed = 21, .mirostat = 2, .mirostat_tau = 2.2f}, {surprise_at_most(2 * 2.2f)}},
      {"penalties",
       {.seed = 22,
        .repetition_penalty = 1.3f,
        .frequency_penalty = 0.3f,
        .presence_penalty = 0.2f,
        .penalty_window = 6},
       {penalise(1.3f, 0.3f, 0.2f, 6)}},
      // The last two tokens, 9 and 12, stood nowhere before; 12 stood before 30.
      {"dry",
       {.seed = 23, .dry_multiplier = 0.9f, .dry_base = 2, .dry_allowed_length = 1},
       {add(30, -static_cast<double>(0.9f))}},
      {"logit_bias", {.seed = 24, .logit_bias = {{4, 2.5f}}}, {add(4, 2.5)}},
      {"ban", {.seed = 25, .ban = {{9}, {12, 4}, {5, 6}}}, {never9, add(4, kNever)}},
      {"temperature, top_k, top_p",
       {.temperature = 0.8f, .top_k = 30, .top_p = 0.9f, .seed = 26},
       {scale(0.8f), best(30), nucleus(0.9f)}},
      {"top_k, top_p, min_p",
       {.top_k = 30, .top_p = 0.9f, .min_p = 0.05f, .seed = 27},
       {best(30), nucleus(0.9f), at_least(0.05f)}},
      {"top_n_sigma, typical_p, temperature",
       {.temperature = 1.4f,
        .seed = 28,
        .typical_p = 0.8f,
        .top_n_sigma = 1.5f,
        .samplers = {"top_n_sigma", "typical_p", "temperature"}},
       {within_sigmas(1.5f), typical(0.8f), scale(1.4f)}},
      {"penalties, min_p, xtc",
       {.min_p = 0.03f,
        .seed = 29,
        .xtc_probability = 0.5f,
        .xtc_threshold = 0.05f,
        .presence_penalty = 1.0f},
       {penalise(1, 0, 1, 8), at_least(0.03f)},
       0.5f,
       without_top(0.05f)},
      {"logit_bias, dynamic temperature, top_p",
       {.top_p = 0.85f, .seed = 30, .dynamic_temperature = 0.4f, .logit_bias = {{7, -1.0f}}},
       {add(7, -1.0), entropy_scale(1, 0.4f, 1), nucleus(0.85f)}},
  };
}

TEST(Distribution, EachStageAndPipelinesOfThree) {
  const std::vector<float> logits = random_logits(60, 5);
  for (const Case& test : all_cases()) {
    const std::vector<int> counts = draw_many(test, logits);
    const double score = chi_squared_score(counts, expected_probabilities(test, logits, 1));
    EXPECT_LT(score, 4.0) << test.name;
    EXPECT_GT(score, -4.0) << test.name << ": too even to be random";
    // The check can fail: the same draws against a distribution 10 % cooler.
    EXPECT_GT(chi_squared_score(counts, expected_probabilities(test, logits, 0.9)), 4.0)
        << test.name;
  }
}

TEST(Distribution, IsTheSameWhateverIsGuessed) {
  const std::vector<float> logits = random_logits(60, 5);
  for (const Case& test : all_cases()) {
    const Logits expected = expected_probabilities(test, logits, 1);
    const auto best = static_cast<int32_t>(std::ranges::max_element(expected) - expected.begin());
    const std::vector<Guess> guesses = {[&](int) { return best; },
                                        [](int draw) { return draw % 60; }};
    for (const Guess& guess : guesses) {
      const double score = chi_squared_score(draw_many(test, logits, guess), expected);
      EXPECT_LT(score, 4.0) << test.name;
      EXPECT_GT(score, -4.0) << test.name << ": too even to be random";
    }
  }
}

TEST(Distribution, GuessesStayAsOftenAsTheyAreProbable) {
  const std::vector<float> logits = random_logits(60, 5);
  const Logits expected = softmax(Logits(logits.begin(), logits.end()));
  SamplerPipeline plain = SamplerPipeline::from_options({.seed = 3});
  SamplerPipeline checked = SamplerPipeline::from_options({.seed = 3});
  DrawingStage* const stage = find_drawing_stage(checked);
  double mean = 0, variance = 0;
  int kept = 0, same = 0;
  for (int i = 0; i < kDraws; ++i) {
    const auto draft = static_cast<int32_t>(i % std::ssize(logits));
    stage->set_drafts(i, {&draft, 1});
    const int32_t token = checked.sample(logits, {.seed = 3, .position = i});
    const double p = expected[static_cast<size_t>(draft)];
    mean += p;
    variance += p * (1 - p);
    kept += token == draft ? 1 : 0;
    EXPECT_FLOAT_EQ(checked.decision().probability,
                    static_cast<float>(expected[static_cast<size_t>(token)]));
    const bool is_same = plain.sample(logits, {.seed = 3, .position = i}) == token;
    same += is_same ? 1 : 0;
    if (i >= 60) continue;
    // At other positions nothing is guessed.
    EXPECT_EQ(checked.sample(logits, {.seed = 3, .position = i + 1000}),
              plain.sample(logits, {.seed = 3, .position = i + 1000}));
  }
  EXPECT_LT(std::abs(kept - mean), 4 * std::sqrt(variance));
  // A guess is kept by a random number of its own; where it goes the position's own one draws.
  EXPECT_LT(same, kDraws);
  EXPECT_GT(same, kDraws / 2);
}

TEST(Distribution, AGuessThatIsRuledOutChangesNoDraw) {
  const std::vector<float> logits = random_logits(60, 5);
  for (const SamplerOptions& options :
       {SamplerOptions{.top_k = 12, .seed = 4}, SamplerOptions{.seed = 4, .ban = {{9}}},
        SamplerOptions{.seed = 4, .mirostat = 2, .ban = {{9}}}}) {
    SamplerPipeline plain = SamplerPipeline::from_options(options);
    SamplerPipeline checked = SamplerPipeline::from_options(options);
    DrawingStage* const stage = find_drawing_stage(checked);
    stage->check_drafts();
    EXPECT_FALSE(checked.has_device_form());
    const auto worst = static_cast<int32_t>(std::ranges::min_element(logits) - logits.begin());
    const int32_t draft = options.top_k > 0 ? worst : 9;
    for (int i = 0; i < 500; ++i) {
      stage->set_drafts(i, {&draft, 1});
      const SampleContext context{.seed = 4, .position = i};
      EXPECT_EQ(checked.sample(logits, context), plain.sample(logits, context));
    }
  }
  EXPECT_EQ(find_drawing_stage(SamplerPipeline::from_options({.temperature = 0})), nullptr);
}

}  // namespace
}  // namespace vitrine
