// Fits find what made the data.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "vitrine/federation.h"

namespace vitrine {
namespace {

class Random {
 public:
  double uniform() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 11) / 9007199254740992.0;
  }
  size_t choose(std::span<const double> weights) {
    double left = uniform();
    for (size_t i = 0; i + 1 < weights.size(); ++i) {
      if ((left -= weights[i]) < 0) return i;
    }
    return weights.size() - 1;
  }

 private:
  uint64_t state_ = 1;
};

// Specialist i gives token i most of its probability, and the others the rest.
FitData draw(size_t tokens, size_t specialists,
             const std::function<std::vector<double>(std::span<const float>)>& weights_at) {
  FitData data;
  data.num_specialists = specialists;
  data.hidden_size = 3;
  Random random;
  const double rest = 0.2 / static_cast<double>(specialists - 1);
  for (size_t token = 0; token < tokens; ++token) {
    std::vector<float> hidden;
    for (int i = 0; i < 3; ++i) hidden.push_back(static_cast<float>(2 * random.uniform() - 1));
    const std::vector<double> weights = weights_at(hidden);
    const size_t specialist = random.choose(weights);
    std::vector<double> tokens_of(specialists, rest);
    tokens_of[specialist] = 0.8;
    const size_t chosen = random.choose(tokens_of);
    for (size_t i = 0; i < specialists; ++i) {
      data.logprobs.push_back(static_cast<float>(std::log(i == chosen ? 0.8 : rest)));
    }
    data.hidden_states.insert(data.hidden_states.end(), hidden.begin(), hidden.end());
  }
  return data;
}

TEST(FitMixture, FindsTheWeights) {
  const std::vector<double> truth = {0.6, 0.3, 0.1};
  const FitData data = draw(60000, 3, [&](std::span<const float>) { return truth; });
  const CombinerSpec fitted = fit_mixture(data);
  ASSERT_EQ(fitted.weights.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(fitted.weights[i], truth[i], 0.015);
  EXPECT_NEAR(std::accumulate(fitted.weights.begin(), fitted.weights.end(), 0.0), 1.0, 1e-12);
  CombinerSpec other;
  other.weights = truth;
  EXPECT_GE(mean_log_likelihood(fitted, data), mean_log_likelihood(other, data) - 1e-9);
  other.weights = {1.0 / 3, 1.0 / 3, 1.0 / 3};
  EXPECT_GT(mean_log_likelihood(fitted, data), mean_log_likelihood(other, data) + 0.01);
}

TEST(FitGate, FindsTheGate) {
  const std::vector<std::vector<double>> rows = {{2, 0, -1}, {-1, 1.5, 0}};
  const auto truth = [&](std::span<const float> hidden) {
    std::vector<double> weights(2);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t j = 0; j < 3; ++j) weights[i] += rows[i][j] * double{hidden[j]};
      weights[i] = std::exp(weights[i]);
    }
    const double sum = weights[0] + weights[1];
    return std::vector<double>{weights[0] / sum, weights[1] / sum};
  };
  const FitData data = draw(60000, 2, truth);
  CombinerSpec start;
  start.gate.assign(6, 0.0F);
  start.bias.assign(2, 0.0F);
  const CombinerSpec fitted = fit_gate(data, start, 0.0);
  EXPECT_EQ(fitted.kind, CombinerSpec::Kind::kGate);
  // Only the difference of the rows matters.
  for (size_t j = 0; j < 3; ++j) {
    EXPECT_NEAR(double{fitted.gate[j]} - double{fitted.gate[3 + j]}, rows[0][j] - rows[1][j], 0.25);
  }
  EXPECT_GT(mean_log_likelihood(fitted, data), mean_log_likelihood(fit_mixture(data), data) + 0.02);
  // A large penalty leaves the start as it is.
  const CombinerSpec held = fit_gate(data, start, 1e6);
  for (const float weight : held.gate) EXPECT_NEAR(weight, 0.0F, 1e-4F);
}

TEST(Fit, RefusesWhatIsNotThere) {
  EXPECT_THROW(fit_mixture({}), Error);
  FitData data = draw(10, 2, [](std::span<const float>) { return std::vector<double>{0.5, 0.5}; });
  CombinerSpec start;
  EXPECT_THROW(fit_gate(data, start, 0.0), Error);
  data.hidden_states.pop_back();
  start.gate.assign(6, 0.0F);
  start.bias.assign(2, 0.0F);
  EXPECT_THROW(fit_gate(data, start, 0.0), Error);
}

}  // namespace
}  // namespace vitrine
