// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "quality/distributions.h"
#include "vitrine/statistics.h"

namespace vitrine {

namespace {

/// Tango's score of `lost` and `gained` of `total` answers where the true drop is `drop`: the
/// distance from what is expected, in standard deviations at the likeliest share of gains.
double drop_score(double lost, double gained, double total, double drop) {
  const double b = (2 * total - lost + gained) * drop - lost - gained;
  const double c = -gained * drop * (1 - drop);
  const double gains = (std::sqrt(std::max(0.0, b * b - 8 * total * c)) - b) / (4 * total);
  const double variance = total * (2 * gains + drop * (1 - drop));
  return (lost - gained - total * drop) / std::sqrt(variance);
}

double drop_above(int64_t lost, int64_t gained, int64_t total, double confidence) {
  if (lost == total) return 1;
  const auto b = static_cast<double>(lost), c = static_cast<double>(gained),
             n = static_cast<double>(total);
  const double z = normal_quantile(confidence);
  double lower = (b - c) / n, upper = 1;
  for (;;) {
    const double middle = lower + (upper - lower) / 2;
    if (middle <= lower || middle >= upper) break;
    (drop_score(b, c, n, middle) > -z ? lower : upper) = middle;
  }
  return gained > 0 ? upper : std::max(upper, binomial_interval(b, n, confidence).upper);
}

}  // namespace

double PairedAnswers::drop() const {
  return static_cast<double>(first_only - second_only) / static_cast<double>(total());
}

double PairedAnswers::p_value() const {
  const int64_t differing = first_only + second_only;
  const int64_t fewer = std::min(first_only, second_only);
  if (fewer == differing - fewer) return 1;
  // A fair coin is tossed: the logarithm of each probability follows from the one before.
  const auto tosses = static_cast<double>(differing);
  double log_probability = -tosses * std::log(2.0), tail = std::exp(log_probability);
  for (int64_t heads = 1; heads <= fewer; ++heads) {
    const auto at = static_cast<double>(heads);
    log_probability += std::log((tosses - at + 1) / at);
    tail += std::exp(log_probability);
  }
  return std::min(1.0, 2 * tail);
}

double PairedAnswers::p_worse() const {
  return binomial_at_least(static_cast<double>(first_only),
                           static_cast<double>(first_only + second_only), 0.5);
}

Interval PairedAnswers::drop_interval(double confidence) const {
  quality::require_probability("a confidence", confidence);
  if (total() == 0) {
    return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  return {-drop_above(second_only, first_only, total(), confidence),
          drop_above(first_only, second_only, total(), confidence)};
}

PairedAnswers compare_answers(std::span<const uint8_t> first_is_right,
                              std::span<const uint8_t> second_is_right) {
  quality::require_pairs("answers", first_is_right.size(), second_is_right.size());
  PairedAnswers answers;
  for (size_t i = 0; i < first_is_right.size(); ++i) {
    const bool first = first_is_right[i] != 0, second = second_is_right[i] != 0;
    ++(first && second ? answers.both
       : first         ? answers.first_only
       : second        ? answers.second_only
                       : answers.neither);
  }
  return answers;
}

}  // namespace vitrine
