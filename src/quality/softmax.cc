// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "sample/scan.h"
#include "vitrine/quality.h"

namespace vitrine {

namespace {

void require_as_many(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": " + std::to_string(found) +
                                               " log-probabilities; expected " +
                                               std::to_string(expected) + ", as many as tokens");
}

}  // namespace

double logprob_of(std::span<const float> logits, int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= logits.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                "token " + std::to_string(token) + " has no logit among " +
                    std::to_string(logits.size()) + "; expected an id of the vocabulary");
  }
  const float largest = *std::ranges::max_element(logits);
  return double{logits[static_cast<size_t>(token)]} - double{largest} -
         log_sum_beside(logits, largest);
}

void log_softmax(std::span<const float> logits, std::span<double> logprobs) {
  require_as_many("log_softmax", logprobs.size(), logits.size());
  if (logits.empty()) return;
  const float largest = *std::ranges::max_element(logits);
  const double log_sum = double{largest} + log_sum_beside(logits, largest);
  for (size_t id = 0; id < logits.size(); ++id) logprobs[id] = double{logits[id]} - log_sum;
}

double kl_divergence(std::span<const double> p_logprobs, std::span<const double> q_logprobs) {
  require_as_many("kl_divergence", q_logprobs.size(), p_logprobs.size());
  double divergence = 0;
  for (size_t id = 0; id < p_logprobs.size(); ++id) {
    const double p = std::exp(p_logprobs[id]);
    if (p > 0) divergence += p * (p_logprobs[id] - q_logprobs[id]);
  }
  return divergence;
}

}  // namespace vitrine
