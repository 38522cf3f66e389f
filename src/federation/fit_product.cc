// SPDX-License-Identifier: Apache-2.0
// The weights of a product of experts by maximum likelihood. The mean of
//   log p(t) = sum_i w_i l_i(t) - log sum_v exp(sum_i w_i l_i(v))
// is concave in w; its gradient is l_i(t) less the joint's mean of l_i (Hinton 2002).
#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "federation/lbfgs.h"
#include "federation/row_math.h"
#include "federation/spec_limits.h"
#include "vitrine/federation.h"

namespace vitrine {

namespace {

using federation::exp_float;

constexpr size_t kLanes = 16;

// to[v] += weight * from[v]
VITRINE_ROW_LOOP void add_weighted(const float* from, float weight, size_t count, float* to) {
  for (size_t v = 0; v < count; ++v) to[v] += weight * from[v];
}

// values[v] = exp(values[v] - most); below -87 as for -87. Two loops, so that both are vectors.
VITRINE_ROW_LOOP void exponentials(float most, size_t count, float* values) {
  for (size_t v = 0; v < count; ++v) values[v] = std::max(values[v] - most, -87.0F);
  for (size_t v = 0; v < count; ++v) values[v] = exp_float(values[v]);
}

// By lanes, each in double: the order is the same whatever the vectors' width.
VITRINE_ROW_LOOP double sum_of(const float* values, size_t count) {
  double sums[kLanes] = {};
  size_t v = 0;
  for (; v + kLanes <= count; v += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += double{values[v + lane]};
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  for (; v < count; ++v) sum += double{values[v]};
  return sum;
}

VITRINE_ROW_LOOP double dot_float(const float* a, const float* b, size_t count) {
  double sums[kLanes] = {};
  size_t v = 0;
  for (; v + kLanes <= count; v += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += double{a[v + lane]} * double{b[v + lane]};
    }
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  for (; v < count; ++v) sum += double{a[v]} * double{b[v]};
  return sum;
}

/// The mean negative log-likelihood and its gradient, over two halves at once: each sum has a fixed
/// order whatever the threads do.
class ProductObjective {
 public:
  explicit ProductObjective(const ProductFitData& data) : data_(data) {}

  double operator()(const std::vector<double>& weights, std::vector<double>& gradient) const {
    const size_t tokens = data_.tokens.size();
    gradient.assign(weights.size(), 0.0);
    std::vector<double> other(weights.size());
    double value = 0, other_value = 0;
    {
      const std::jthread helper([&] { other_value = sum(weights, tokens / 2, tokens, other); });
      value = sum(weights, 0, tokens / 2, gradient);
    }
    const auto count = static_cast<double>(tokens);
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = (gradient[i] + other[i]) / count;
    return (value + other_value) / count;
  }

 private:
  double sum(const std::vector<double>& weights, size_t begin, size_t end,
             std::vector<double>& gradient) const {
    const size_t count = data_.num_specialists, vocabulary = data_.vocab_size;
    std::vector<float> scores(vocabulary);
    double total = 0;
    for (size_t token = begin; token < end; ++token) {
      const float* rows = data_.logprobs.data() + token * count * vocabulary;
      const auto seen = static_cast<size_t>(data_.tokens[token]);
      std::ranges::fill(scores, 0.0F);
      double own = 0;
      for (size_t i = 0; i < count; ++i) {
        add_weighted(rows + i * vocabulary, static_cast<float>(weights[i]), vocabulary,
                     scores.data());
        own += weights[i] * double{rows[i * vocabulary + seen]};
      }
      const float most = *std::ranges::max_element(scores);
      exponentials(most, vocabulary, scores.data());
      const double normaliser = sum_of(scores.data(), vocabulary);
      total += double{most} + std::log(normaliser) - own;
      for (size_t i = 0; i < count; ++i) {
        const float* row = rows + i * vocabulary;
        gradient[i] += dot_float(scores.data(), row, vocabulary) / normaliser - double{row[seen]};
      }
    }
    return total;
  }

  const ProductFitData& data_;
};

// A token that came has a likelihood; -infinity times a weight would be none.
void check_seen(const ProductFitData& data) {
  const size_t count = data.num_specialists;
  for (size_t token = 0; token < data.tokens.size(); ++token) {
    for (size_t i = 0; i < count; ++i) {
      const float* row = data.logprobs.data() + (token * count + i) * data.vocab_size;
      if (std::isfinite(row[data.tokens[token]])) continue;
      throw Error(ErrorKind::kInvalidArgument, "specialist " + std::to_string(i) +
                                                   " has no finite log-probability of token " +
                                                   std::to_string(token) + "; expected numbers");
    }
  }
}

void check(const CombinerSpec& spec, const ProductFitData& data) {
  const auto vocabulary = static_cast<int64_t>(data.vocab_size);
  const bool is_whole =
      !data.tokens.empty() && data.num_specialists > 0 &&
      data.logprobs.size() == data.tokens.size() * data.num_specialists * data.vocab_size &&
      std::ranges::all_of(data.tokens, [&](int32_t id) { return id >= 0 && id < vocabulary; });
  if (is_whole && spec.weights.size() == data.num_specialists) return check_seen(data);
  throw Error(ErrorKind::kInvalidArgument,
              "a product is fitted on every specialist's whole row for each of one or more tokens; "
              "expected them, and a weight for each of " +
                  std::to_string(data.num_specialists) + " specialists");
}

}  // namespace

double mean_log_likelihood(const CombinerSpec& spec, const ProductFitData& data) {
  check(spec, data);
  std::vector<double> gradient;
  return -ProductObjective(data)(spec.weights, gradient);
}

CombinerSpec fit_product(const ProductFitData& data, const CombinerSpec& start,
                         int max_iterations) {
  check(start, data);
  constexpr double kGain = 1e-9;
  CombinerSpec fitted;
  fitted.kind = CombinerSpec::Kind::kProduct;
  fitted.weights = start.weights;
  federation::minimize(ProductObjective(data), fitted.weights, max_iterations, kGain);
  for (double& weight : fitted.weights) {
    weight = std::clamp(weight, -federation::kLargestExponent, federation::kLargestExponent);
  }
  return fitted;
}

}  // namespace vitrine
