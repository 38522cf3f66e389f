// SPDX-License-Identifier: Apache-2.0
// Fits find what made the data.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
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

FitData ten() {
  return draw(10, 2, [](std::span<const float>) { return std::vector<double>{0.5, 0.5}; });
}

TEST(Fit, RefusesWhatIsNotThere) {
  EXPECT_THROW(fit_mixture({}), Error);
  FitData data = ten();
  CombinerSpec start;
  EXPECT_THROW(fit_gate(data, start, 0.0), Error);
  data.hidden_states.pop_back();
  start.gate.assign(6, 0.0F);
  start.bias.assign(2, 0.0F);
  EXPECT_THROW(fit_gate(data, start, 0.0), Error);
  EXPECT_THROW(fit_gate(ten(), start, -1.0), Error);
  EXPECT_THROW(fit_gate(ten(), start, std::nan("")), Error);
  EXPECT_NO_THROW(fit_gate(ten(), start, 0.0));
}

TEST(Fit, RefusesWeightsOfOtherSizes) {
  const FitData data = ten();
  CombinerSpec spec;
  for (const size_t count : {0, 1, 3}) {
    spec.weights.assign(count, 0.5);
    EXPECT_THROW(mean_log_likelihood(spec, data), Error) << count;
  }
  spec.weights.assign(2, 0.5);
  EXPECT_NO_THROW(mean_log_likelihood(spec, data));
  spec.kind = CombinerSpec::Kind::kGate;
  spec.gate.assign(6, 0.0F);
  spec.bias.assign(2, 0.0F);
  EXPECT_NO_THROW(mean_log_likelihood(spec, data));
  spec.bias.pop_back();
  EXPECT_THROW(mean_log_likelihood(spec, data), Error);
  spec.bias.assign(2, 0.0F);
  spec.gate.pop_back();
  EXPECT_THROW(mean_log_likelihood(spec, data), Error);
}

TEST(Fit, RefusesWhatIsNoLogProbability) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), infinity}) {
    FitData data = ten();
    data.logprobs[7] = bad;
    EXPECT_THROW(fit_mixture(data), Error) << bad;
  }
  FitData data = ten();
  data.logprobs[7] = -infinity;  // the other specialist has one
  EXPECT_TRUE(std::isfinite(fit_mixture(data).weights[0]));
  data.logprobs[6] = -infinity;
  EXPECT_THROW(fit_mixture(data), Error);
  data = ten();
  data.logprobs.pop_back();
  EXPECT_THROW(fit_mixture(data), Error);
}

// Rows of random log-probabilities, and tokens drawn from the product that `truth` makes of them.
ProductFitData draw_product(size_t tokens, std::span<const double> truth, size_t vocabulary) {
  ProductFitData data;
  data.num_specialists = truth.size();
  data.vocab_size = vocabulary;
  Random random;
  for (size_t token = 0; token < tokens; ++token) {
    std::vector<double> joint(vocabulary);
    for (const double weight : truth) {
      std::vector<double> row;
      double sum = 0;
      for (size_t v = 0; v < vocabulary; ++v) {
        row.push_back(6 * random.uniform());
        sum += std::exp(row.back());
      }
      for (size_t v = 0; v < vocabulary; ++v) {
        data.logprobs.push_back(static_cast<float>(row[v] - std::log(sum)));
        joint[v] += weight * double{data.logprobs.back()};
      }
    }
    double sum = 0;
    for (double& value : joint) sum += value = std::exp(value);
    for (double& value : joint) value /= sum;
    data.tokens.push_back(static_cast<int32_t>(random.choose(joint)));
  }
  return data;
}

CombinerSpec product_of(std::vector<double> weights) {
  CombinerSpec spec;
  spec.kind = CombinerSpec::Kind::kProduct;
  spec.weights = std::move(weights);
  return spec;
}

TEST(FitProduct, FindsTheWeights) {
  const std::vector<double> truth = {0.9, -0.3, 0.5};
  const ProductFitData data = draw_product(8000, truth, 37);  // a multiple of nothing
  const CombinerSpec start = product_of({1.0 / 3, 1.0 / 3, 1.0 / 3});
  const CombinerSpec fitted = fit_product(data, start);
  EXPECT_EQ(fitted.kind, CombinerSpec::Kind::kProduct);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(fitted.weights[i], truth[i], 0.04) << i;
  EXPECT_GT(mean_log_likelihood(fitted, data), mean_log_likelihood(start, data) + 0.01);
  EXPECT_GE(mean_log_likelihood(fitted, data), mean_log_likelihood(product_of(truth), data));
  // No way leads up from there: what it found is the top, and from elsewhere the same.
  for (size_t i = 0; i < 3; ++i) {
    for (const double step : {-0.02, 0.02}) {
      CombinerSpec moved = fitted;
      moved.weights[i] += step;
      EXPECT_LT(mean_log_likelihood(moved, data), mean_log_likelihood(fitted, data));
    }
  }
  const CombinerSpec again = fit_product(data, product_of({-2.0, 3.0, 0.0}));
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(again.weights[i], fitted.weights[i], 2e-3);
}

// The likelihood is the one that the combiner itself gives.
TEST(FitProduct, IsTheCombinersLikelihood) {
  const ProductFitData data = draw_product(50, std::vector<double>{0.4, 0.7}, 301);
  const CombinerSpec spec = product_of({0.8, 0.6});
  const auto combiner = make_combiner(spec, 2);
  std::vector<float> joint(301);
  double sum = 0;
  for (size_t token = 0; token < 50; ++token) {
    std::vector<SpecialistRow> rows;
    for (size_t i = 0; i < 2; ++i) {
      rows.push_back({std::span(data.logprobs).subspan((token * 2 + i) * 301, 301), 0.0});
    }
    combiner->combine({rows, {}}, joint);
    std::vector<SpecialistShare> shares(2);
    sum += combiner->explain({rows, {}}, data.tokens[token], shares).logprob;
  }
  EXPECT_NEAR(mean_log_likelihood(spec, data), sum / 50, 1e-6);
}

TEST(FitProduct, SpecialistsThatAreTheSameShareTheWeight) {
  ProductFitData data = draw_product(3000, std::vector<double>{1.0, 0.0}, 40);
  for (size_t token = 0; token < 3000; ++token) {
    std::copy_n(data.logprobs.begin() + static_cast<int64_t>(token * 80), 40,
                data.logprobs.begin() + static_cast<int64_t>(token * 80 + 40));
  }
  const CombinerSpec fitted = fit_product(data, product_of({0.5, 0.5}));
  EXPECT_NEAR(fitted.weights[0], fitted.weights[1], 1e-9);
  EXPECT_NEAR(fitted.weights[0] + fitted.weights[1], 1.0, 0.05);
}

TEST(FitProduct, WhatDoesNotFitIsRefused) {
  const ProductFitData good = draw_product(4, std::vector<double>{1.0, 0.5}, 9);
  const CombinerSpec start = product_of({0.5, 0.5});
  EXPECT_THROW(fit_product({}, start), Error);
  EXPECT_THROW(fit_product(good, product_of({1.0})), Error);
  ProductFitData data = good;
  data.logprobs.pop_back();
  EXPECT_THROW(fit_product(data, start), Error);
  data = good;
  data.tokens[2] = 9;
  EXPECT_THROW(fit_product(data, start), Error);
  data.tokens[2] = -1;
  EXPECT_THROW(mean_log_likelihood(start, data), Error);
}

}  // namespace
}  // namespace vitrine
