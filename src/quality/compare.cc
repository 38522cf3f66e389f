// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "quality/windows.h"

namespace vitrine {

namespace {

void check_pair(Stepper& first, Stepper& second, size_t first_vocabulary,
                size_t second_vocabulary) {
  if (&first == &second) {
    throw Error(ErrorKind::kInvalidArgument,
                "one model is compared with itself; expected two (load it twice)");
  }
  if (first_vocabulary == second_vocabulary) return;
  throw Error(ErrorKind::kInvalidArgument,
              "a vocabulary of " + std::to_string(first_vocabulary) + " is compared with one of " +
                  std::to_string(second_vocabulary) + "; expected models of one tokenizer");
}

/// The text's sums, in the order of its tokens and of the vocabulary.
struct ComparedSums {
  double first = 0, second = 0, kl = 0;
};

size_t best_of(std::span<const double> logprobs) {
  return static_cast<size_t>(std::ranges::max_element(logprobs) - logprobs.begin());
}

ComparedToken compare_rows(std::span<const double> first, std::span<const double> second,
                           int32_t token, ComparedSums& sums) {
  ComparedToken compared;
  compared.first_logprob = first[static_cast<size_t>(token)];
  compared.second_logprob = second[static_cast<size_t>(token)];
  compared.is_same_best = best_of(first) == best_of(second);
  sums.first += compared.first_logprob;
  sums.second += compared.second_logprob;
  for (size_t id = 0; id < first.size(); ++id) {
    const double p = std::exp(first[id]);
    const double term = p > 0 ? p * (first[id] - second[id]) : 0;
    compared.kl += term;
    sums.kl += term;  // not the tokens' sums: what manifests tell stays the same to the bit
  }
  return compared;
}

template <typename Value>
Estimate mean_over_tokens(std::span<const ComparedToken> tokens, const Value& value) {
  std::vector<double> values;
  std::vector<size_t> windows;
  for (const ComparedToken& token : tokens) {
    values.push_back(value(token));
    windows.push_back(token.window);
  }
  return clustered_mean(values, windows);
}

}  // namespace

ModelComparison compare_models(Stepper& first, Stepper& second, std::span<const int32_t> ids,
                               const WindowOptions& options) {
  quality::Reader first_reader(first), second_reader(second);
  check_pair(first, second, first_reader.vocab_size(), second_reader.vocab_size());
  quality::check_windows(first_reader, ids, options);
  quality::check_windows(second_reader, ids, options);
  std::vector<double> first_logprobs(first_reader.vocab_size()),
      second_logprobs(second_reader.vocab_size());
  ModelComparison comparison;
  ComparedSums sums;
  const size_t together = std::min(first_reader.step_tokens(), second_reader.step_tokens());
  quality::walk_windows(ids, options, together, [&](const quality::WindowStep& step) {
    if (step.first == 0) {
      first_reader.begin();
      second_reader.begin();
    }
    const auto first_outputs = first_reader.step(step.tokens, step.next);
    const auto second_outputs = second_reader.step(step.tokens, step.next);
    for (size_t i = 0; i < first_outputs.size(); ++i) {
      first_reader.logprobs(first_outputs[i], first_logprobs);
      second_reader.logprobs(second_outputs[i], second_logprobs);
      comparison.tokens.push_back(
          compare_rows(first_logprobs, second_logprobs, step.behind(i), sums));
      comparison.tokens.back().window = step.window;
    }
  });
  const auto count = static_cast<double>(comparison.tokens.size());
  comparison.first_perplexity = std::exp(-sums.first / count);
  comparison.second_perplexity = std::exp(-sums.second / count);
  comparison.mean_kl = sums.kl / count;
  return comparison;
}

Estimate ModelComparison::logprob_change() const {
  return mean_over_tokens(tokens, [](const ComparedToken& token) {
    return token.second_logprob - token.first_logprob;
  });
}

Estimate ModelComparison::kl() const {
  return mean_over_tokens(tokens, [](const ComparedToken& token) { return token.kl; });
}

double ModelComparison::kl_quantile(double fraction) const {
  std::vector<double> values;
  for (const ComparedToken& token : tokens) values.push_back(token.kl);
  return quantile(values, fraction);
}

Estimate ModelComparison::agreement() const {
  return mean_over_tokens(
      tokens, [](const ComparedToken& token) { return token.is_same_best ? 1.0 : 0.0; });
}

}  // namespace vitrine
