// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "vitrine/perplexity.h"

namespace vitrine {

namespace {

constexpr float kLeastLogprob = -16;  // of the base: what is stored as less is not known

/// Sums over tokens of two values and of their products.
struct PairSums {
  double count = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0;

  void add(double first, double second) {
    ++count;
    a += first;
    b += second;
    aa += first * first;
    bb += second * second;
    ab += first * second;
  }
  /// Returns the covariance of the two means: that of the values, divided by the count less one.
  double covariance() const { return (ab / count - a / count * (b / count)) / (count - 1); }
  Estimate first() const { return mean(a, aa); }
  Estimate second() const { return mean(b, bb); }

 private:
  Estimate mean(double sum, double squares) const {
    const double value = sum / count;
    return {value, std::sqrt(std::max(0.0, squares / count - value * value) / (count - 1))};
  }
};

Estimate exponential(const Estimate& logarithm) {
  const double value = std::exp(logarithm.mean);
  return {value, value * logarithm.standard_error};
}

double error_of_difference(double first, double second, double covariance) {
  return std::sqrt(std::max(0.0, first * first + second * second - 2 * covariance));
}

}  // namespace

DivergedToken compare_with_base(std::span<const float> logits, std::span<const float> base_logprobs,
                                int32_t token) {
  if (logits.size() != base_logprobs.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                "a row of " + std::to_string(logits.size()) + " logits is compared with one of " +
                    std::to_string(base_logprobs.size()) + "; expected models of one tokenizer");
  }
  DivergedToken diverged;
  diverged.logprob = logprob_of(logits, token);
  const auto at = static_cast<size_t>(token);
  diverged.base_logprob = double{base_logprobs[at]};
  const double log_sum = double{logits[at]} - diverged.logprob;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (base_logprobs[id] <= kLeastLogprob) continue;
    const double base = double{base_logprobs[id]};
    diverged.kl += std::exp(base) * (base - (double{logits[id]} - log_sum));
  }
  diverged.is_same_best = std::ranges::max_element(logits) - logits.begin() ==
                          std::ranges::max_element(base_logprobs) - base_logprobs.begin();
  return diverged;
}

DivergenceReport divergence_report(std::span<const DivergedToken> tokens) {
  if (tokens.size() < 2) {
    throw Error(ErrorKind::kInvalidArgument, "a report on " + std::to_string(tokens.size()) +
                                                 " compared tokens; expected at least two");
  }
  PairSums losses, kls_and_deltas, squares;
  DivergenceReport report;
  report.num_tokens = tokens.size();
  double same = 0;
  for (const DivergedToken& token : tokens) {
    const double delta = std::exp(token.logprob) - std::exp(token.base_logprob);
    losses.add(-token.logprob, -token.base_logprob);
    kls_and_deltas.add(token.kl, delta);
    squares.add(delta * delta, 0);
    same += token.is_same_best ? 1 : 0;
    report.kls.push_back(token.kl);
    report.delta_ps.push_back(delta);
  }
  const Estimate loss = losses.first(), base_loss = losses.second();
  const double covariance = losses.covariance();
  report.perplexity = exponential(loss);
  report.base_perplexity = exponential(base_loss);
  report.correlation = covariance / (loss.standard_error * base_loss.standard_error);
  report.log_ratio = {
      loss.mean - base_loss.mean,
      error_of_difference(loss.standard_error, base_loss.standard_error, covariance)};
  report.ratio = exponential(report.log_ratio);
  report.difference = {
      report.perplexity.mean - report.base_perplexity.mean,
      error_of_difference(report.perplexity.standard_error, report.base_perplexity.standard_error,
                          report.perplexity.mean * report.base_perplexity.mean * covariance)};
  report.kl = kls_and_deltas.first();
  report.delta_p = kls_and_deltas.second();
  const Estimate square = squares.first();
  const double root = std::sqrt(square.mean);
  report.rms_delta_p = {root, root > 0 ? 0.5 / root * square.standard_error : 0};
  const auto count = static_cast<double>(tokens.size());
  const double share = same / count;
  report.same_best = {share, std::sqrt(share * (1 - share) / (count - 1))};
  std::ranges::sort(report.kls);
  std::ranges::sort(report.delta_ps);
  return report;
}

}  // namespace vitrine
