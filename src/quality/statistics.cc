// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "vitrine/quality.h"

namespace vitrine {

namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

void require_pairs(const char* what, size_t first, size_t second) {
  if (first == second) return;
  throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": " + std::to_string(first) +
                                               " and " + std::to_string(second) +
                                               " of them; expected as many of both");
}

}  // namespace

Estimate clustered_mean(std::span<const double> values, std::span<const size_t> clusters) {
  require_pairs("values and their clusters", values.size(), clusters.size());
  if (values.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "a mean of no values; expected at least one");
  }
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  Estimate estimate{sum / count, kNoNumber};
  double squares = 0, num_clusters = 0, residual = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    residual += values[i] - estimate.mean;
    if (i + 1 < values.size() && clusters[i + 1] == clusters[i]) continue;
    squares += residual * residual;
    ++num_clusters;
    residual = 0;
  }
  if (num_clusters > 1) {
    estimate.standard_error = std::sqrt(num_clusters / (num_clusters - 1) * squares) / count;
  }
  return estimate;
}

Estimate paired_difference(std::span<const double> first, std::span<const double> second,
                           std::span<const size_t> clusters) {
  require_pairs("measurements", first.size(), second.size());
  std::vector<double> differences(first.size());
  for (size_t i = 0; i < first.size(); ++i) differences[i] = second[i] - first[i];
  return clustered_mean(differences, clusters);
}

double quantile(std::span<const double> values, double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) {
    throw Error(ErrorKind::kInvalidArgument,
                "a quantile at " + std::to_string(fraction) + "; expected 0 to 1");
  }
  if (values.empty()) return kNoNumber;
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
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

PairedAnswers compare_answers(std::span<const uint8_t> first_is_right,
                              std::span<const uint8_t> second_is_right) {
  require_pairs("answers", first_is_right.size(), second_is_right.size());
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
