// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "federation/weights.h"
#include "vitrine/federation.h"

namespace vitrine {

namespace federation {

void check_data(const FitData& data) {
  const size_t count = data.num_specialists;
  if (data.num_tokens() == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "there is no token to fit weights on; expected a longer text");
  }
  if (data.logprobs.size() % count != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "weights are fitted on " + std::to_string(data.logprobs.size()) +
                    " log-probabilities; expected one of each of " + std::to_string(count) +
                    " specialists for every token");
  }
  for (size_t token = 0; token < data.num_tokens(); ++token) {
    const float* logprobs = &data.logprobs[token * count];
    const bool is_number = std::all_of(logprobs, logprobs + count, [](float logprob) {
      return logprob < std::numeric_limits<float>::infinity();  // NaN is not below it either
    });
    if (is_number && std::isfinite(*std::max_element(logprobs, logprobs + count))) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "the log-probabilities of token " + std::to_string(token) +
                    " are no numbers, or all of them -infinity; expected one that is finite");
  }
}

void check_gate(const CombinerSpec& spec, const FitData& data) {
  const size_t count = data.num_specialists;
  const auto hidden = static_cast<size_t>(std::max<int64_t>(data.hidden_size, 0));
  if (hidden == 0 || data.hidden_states.size() != data.num_tokens() * hidden ||
      spec.gate.size() != count * hidden || spec.bias.size() != count) {
    throw Error(ErrorKind::kInvalidArgument,
                "a gate reads the base's hidden state of every token; expected them, and weights "
                "of the same width and a bias for each of " +
                    std::to_string(count) + " specialists");
  }
}

void WeightsAt::at(size_t token, std::span<double> weights) const {
  const size_t count = data_.num_specialists;
  if (spec_.kind != CombinerSpec::Kind::kGate) {
    std::copy_n(spec_.weights.begin(), count, weights.begin());
    return;
  }
  const auto hidden = static_cast<size_t>(data_.hidden_size);
  const float* state = data_.hidden_states.data() + token * hidden;
  for (size_t i = 0; i < count; ++i) {
    const float* row = spec_.gate.data() + i * hidden;
    double sum = double{spec_.bias[i]};
    for (size_t j = 0; j < hidden; ++j) sum += double{row[j]} * double{state[j]};
    weights[i] = sum;
  }
  softmax(weights);
}

void softmax(std::span<double> values) {
  const double most = *std::ranges::max_element(values);
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - most);
  for (double& value : values) value /= sum;
}

double joint_log(std::span<const double> weights, const float* logprobs, std::span<double> shares) {
  double most = double{logprobs[0]};
  for (size_t i = 1; i < weights.size(); ++i) most = std::max(most, double{logprobs[i]});
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    shares[i] = weights[i] * std::exp(double{logprobs[i]} - most);
    sum += shares[i];
  }
  for (double& share : shares) share /= sum;
  return most + std::log(sum);
}

}  // namespace federation

double mean_log_likelihood(const CombinerSpec& spec, const FitData& data) {
  federation::check_data(data);
  if (spec.kind == CombinerSpec::Kind::kProduct) {
    throw Error(ErrorKind::kUnsupported,
                "a product's likelihood needs whole vocabularies; expected a mixture or a gate");
  }
  if (spec.kind == CombinerSpec::Kind::kGate) {
    federation::check_gate(spec, data);
  } else if (spec.weights.size() != data.num_specialists) {
    throw Error(ErrorKind::kInvalidArgument,
                "a mixture has " + std::to_string(spec.weights.size()) +
                    " weights; expected one for each of " + std::to_string(data.num_specialists) +
                    " specialists");
  }
  const federation::WeightsAt weights_at(spec, data);
  std::vector<double> weights(data.num_specialists), shares(data.num_specialists);
  double sum = 0;
  for (size_t token = 0; token < data.num_tokens(); ++token) {
    weights_at.at(token, weights);
    sum += federation::joint_log(weights, &data.logprobs[token * data.num_specialists], shares);
  }
  return sum / static_cast<double>(data.num_tokens());
}

CombinerSpec fit_mixture(const FitData& data) {
  federation::check_data(data);
  constexpr int kMaxRounds = 10000;
  constexpr double kGain = 1e-9;
  const size_t count = data.num_specialists;
  CombinerSpec spec;
  spec.weights.assign(count, 1.0 / static_cast<double>(count));
  std::vector<double> shares(count), totals(count);
  double before = -1e300;
  for (int round = 0; round < kMaxRounds; ++round) {
    std::ranges::fill(totals, 0.0);
    double likelihood = 0;
    for (size_t token = 0; token < data.num_tokens(); ++token) {
      likelihood += federation::joint_log(spec.weights, &data.logprobs[token * count], shares);
      for (size_t i = 0; i < count; ++i) totals[i] += shares[i];
    }
    likelihood /= static_cast<double>(data.num_tokens());
    const double sum = std::accumulate(totals.begin(), totals.end(), 0.0);
    for (size_t i = 0; i < count; ++i) spec.weights[i] = totals[i] / sum;
    if (likelihood - before < kGain) break;
    before = likelihood;
  }
  return spec;
}

}  // namespace vitrine
