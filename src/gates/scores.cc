// SPDX-License-Identifier: Apache-2.0
#include "gates/scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace vitrine::gates {

namespace {

bool has_choices(const EvaluatedItem& item) {
  return item.choice_logprobs.size() > 1 && item.right_choice >= 0 &&
         static_cast<size_t>(item.right_choice) < item.choice_logprobs.size();
}

/// The probability of one choice among all.
double share_of(std::span<const double> logprobs, size_t choice) {
  const double highest = *std::ranges::max_element(logprobs);
  double sum = 0;
  for (const double logprob : logprobs) sum += std::exp(logprob - highest);
  return std::exp(logprobs[choice] - highest) / sum;
}

std::optional<double> if_finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::optional<double> score_of(const EvaluatedItem& item) { return if_finite(item.score); }

std::optional<double> reference_of(const EvaluatedItem& item) {
  if (!item.reference_logprob || item.reference_tokens < 1) return std::nullopt;
  return if_finite(*item.reference_logprob / static_cast<double>(item.reference_tokens));
}

std::optional<double> margin_of(const EvaluatedItem& item) {
  if (!has_choices(item)) return std::nullopt;
  const auto right = static_cast<size_t>(item.right_choice);
  double wrong = -INFINITY;
  for (size_t i = 0; i < item.choice_logprobs.size(); ++i) {
    if (i != right) wrong = std::max(wrong, item.choice_logprobs[i]);
  }
  return if_finite(item.choice_logprobs[right] - wrong);
}

std::optional<double> right_probability_of(const EvaluatedItem& item) {
  if (!has_choices(item)) return std::nullopt;
  return if_finite(share_of(item.choice_logprobs, static_cast<size_t>(item.right_choice)));
}

std::optional<double> chosen_probability_of(const EvaluatedItem& item) {
  if (!has_choices(item)) return std::nullopt;
  const auto best = static_cast<size_t>(std::ranges::max_element(item.choice_logprobs) -
                                        item.choice_logprobs.begin());
  const bool is_right = best == static_cast<size_t>(item.right_choice);
  if (is_right != item.is_right) return std::nullopt;
  return if_finite(share_of(item.choice_logprobs, best));
}

std::optional<double> sureness_of(const EvaluatedItem& item) {
  if (const auto probability = right_probability_of(item)) return probability;
  const auto reference = reference_of(item);
  return reference ? std::optional(std::exp(*reference)) : std::nullopt;
}

std::optional<double> first_token_seconds_of(const EvaluatedItem& item) {
  if (item.tokens.empty() || !(item.first_token_seconds > 0)) return std::nullopt;
  return if_finite(item.first_token_seconds);
}

std::optional<double> token_seconds_of(const EvaluatedItem& item) {
  const double seconds = item.total_seconds - item.first_token_seconds;
  if (item.tokens.size() < 2 || !(item.first_token_seconds > 0) || !(seconds > 0)) {
    return std::nullopt;
  }
  return if_finite(seconds / static_cast<double>(item.tokens.size() - 1));
}

void add_values(std::span<const ItemPair> pairs, ItemValue value, PairedValues& values) {
  for (const ItemPair& pair : pairs) {
    const auto before = value(*pair.before), after = value(*pair.after);
    if (!before || !after) continue;
    values.before.push_back(*before);
    values.after.push_back(*after);
    values.clusters.push_back(pair.cluster);
  }
}

std::optional<PairedScore> compare_scores(const PairedValues& values) {
  if (values.before.empty()) return std::nullopt;
  ClusteredValues drops;
  for (size_t i = 0; i < values.before.size(); ++i) {
    drops.add(values.before[i] - values.after[i], values.clusters[i]);
  }
  drops.gather();
  return PairedScore{values.before.size(), mean_of(values.before), mean_of(values.after),
                     clustered_mean(drops.values, drops.clusters)};
}

std::optional<PairedRatio> compare_durations(const PairedValues& values, double confidence) {
  if (values.before.empty()) return std::nullopt;
  return paired_ratio(values.before, values.after, confidence);
}

}  // namespace vitrine::gates
