// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <string>

#include "quality/distributions.h"
#include "vitrine/statistics.h"

namespace vitrine {

namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

/// How many independent values tell as much of a share as these do, which hang together within
/// clusters: at most as many as there are, and fewer where few clusters tell little of their own
/// spread (Korn and Graubard 1998).
double effective_count(std::span<const double> values, std::span<const size_t> clusters,
                       double bound) {
  std::vector<double> is_above(values.size());
  for (size_t i = 0; i < values.size(); ++i) is_above[i] = values[i] > bound ? 1 : 0;
  const Estimate share = clustered_mean(is_above, clusters);
  const auto count = static_cast<double>(values.size());
  if (share.num_clusters < 2 || share.num_clusters == values.size()) return count;
  constexpr double kUsual = 0.95;
  const double spread = student_quantile(kUsual, count - 1) /
                        student_quantile(kUsual, static_cast<double>(share.num_clusters - 1));
  const double alone = share.mean * (1 - share.mean) / (count - 1);
  const double together = share.standard_error * share.standard_error;
  return count * spread * spread * (together > alone ? alone / together : 1);
}

}  // namespace

namespace quality {

void require_pairs(const char* what, size_t first, size_t second) {
  if (first == second) return;
  throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": " + std::to_string(first) +
                                               " and " + std::to_string(second) +
                                               " of them; expected as many of both");
}

}  // namespace quality

Interval Estimate::interval(double confidence) const {
  quality::require_probability("a confidence", confidence);
  if (num_clusters < 2) return {kNoNumber, kNoNumber};
  const double reach =
      student_quantile(confidence, static_cast<double>(num_clusters - 1)) * standard_error;
  return {mean - reach, mean + reach};
}

double Estimate::p_above(double bound) const {
  if (num_clusters < 2) return kNoNumber;
  if (standard_error == 0) return mean > bound ? 0 : 1;
  return quality::student_above((mean - bound) / standard_error,
                                static_cast<double>(num_clusters - 1));
}

Estimate clustered_mean(std::span<const double> values, std::span<const size_t> clusters) {
  quality::require_pairs("values and their clusters", values.size(), clusters.size());
  if (values.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "a mean of no values; expected at least one");
  }
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  Estimate estimate{sum / count, kNoNumber, 0};
  double squares = 0, residual = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    residual += values[i] - estimate.mean;
    if (i + 1 < values.size() && clusters[i + 1] == clusters[i]) continue;
    squares += residual * residual;
    ++estimate.num_clusters;
    residual = 0;
  }
  if (estimate.num_clusters > 1) {
    const auto drawn = static_cast<double>(estimate.num_clusters);
    estimate.standard_error = std::sqrt(drawn / (drawn - 1) * squares) / count;
  }
  return estimate;
}

Estimate paired_difference(std::span<const double> first, std::span<const double> second,
                           std::span<const size_t> clusters) {
  quality::require_pairs("measurements", first.size(), second.size());
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

Interval quantile_interval(std::span<const double> values, std::span<const size_t> clusters,
                           double fraction, double confidence) {
  quality::require_pairs("values and their clusters", values.size(), clusters.size());
  quality::require_probability("a confidence", confidence);
  const double found = quantile(values, fraction);
  const double count = effective_count(values, clusters, found);
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Interval interval{-kInfinity, kInfinity};
  // As many of n independent values fall below the quantile as n tosses of that probability hit.
  const double scale = count / static_cast<double>(sorted.size());
  const auto at_least = [&](size_t rank) {
    return binomial_at_least(std::min(static_cast<double>(rank) * scale, count), count, fraction);
  };
  const auto ranks = std::views::iota(size_t{1}, sorted.size() + 1);
  const auto not_above = std::ranges::partition_point(
      ranks, [&](size_t rank) { return 1 - at_least(rank) < confidence; });
  const auto not_below = std::ranges::partition_point(
      ranks, [&](size_t rank) { return at_least(rank) >= confidence; });
  const auto num_not_above = static_cast<size_t>(not_above - ranks.begin());
  const auto num_below = static_cast<size_t>(not_below - ranks.begin());
  if (num_not_above < sorted.size()) interval.upper = sorted[num_not_above];
  if (num_below > 0) interval.lower = sorted[num_below - 1];
  return interval;
}

double quantile_p_above(std::span<const double> values, std::span<const size_t> clusters,
                        double fraction, double bound) {
  quality::require_pairs("values and their clusters", values.size(), clusters.size());
  quantile(values, fraction);  // checks the fraction
  const double count = effective_count(values, clusters, bound);
  const auto above = static_cast<double>(
      std::ranges::count_if(values, [&](double value) { return value > bound; }));
  const double scale = count / static_cast<double>(values.size());
  return binomial_at_least(std::min(above * scale, count), count, 1 - fraction);
}

PairedRatio paired_ratio(std::span<const double> first, std::span<const double> second,
                         double confidence) {
  quality::require_pairs("durations", first.size(), second.size());
  std::vector<double> ratios;
  std::vector<size_t> alone;
  for (size_t i = 0; i < first.size(); ++i) {
    if (!(first[i] > 0 && second[i] > 0)) {
      throw Error(ErrorKind::kInvalidArgument, "durations of " + std::to_string(first[i]) +
                                                   " and " + std::to_string(second[i]) +
                                                   "; expected both above 0");
    }
    ratios.push_back(second[i] / first[i]);
    alone.push_back(i);
  }
  return {quantile(ratios, 0.5), quantile_interval(ratios, alone, 0.5, confidence),
          quantile(second, 0.5) / quantile(first, 0.5), ratios.size()};
}

}  // namespace vitrine
