// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "quality/distributions.h"
#include "vitrine/statistics.h"

namespace vitrine {

std::vector<double> holm_p_values(std::span<const double> p_values) {
  std::vector<size_t> order;
  for (size_t i = 0; i < p_values.size(); ++i) {
    if (!std::isnan(p_values[i])) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return p_values[i]; });
  std::vector<double> adjusted(p_values.begin(), p_values.end());
  double highest = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const auto others = static_cast<double>(order.size() - rank);
    highest = std::max(highest, std::min(1.0, others * p_values[order[rank]]));
    adjusted[order[rank]] = highest;
  }
  return adjusted;
}

int64_t items_to_decide(double flips, double margin, double confidence, double power) {
  quality::require_probability("a margin", margin);
  quality::require_probability("a confidence", confidence);
  quality::require_probability("a power", power);
  if (!(flips >= 0 && flips <= 1)) {
    throw Error(ErrorKind::kInvalidArgument,
                "a share of flips of " + std::to_string(flips) + "; expected 0 to 1");
  }
  // What the test takes for the variance of an item at the margin, where half of the flips are
  // gains (PairedAnswers::drop_interval).
  const double b = 2 * margin - flips, c = -flips / 2 * margin * (1 - margin);
  const double gains = (std::sqrt(b * b - 8 * c) - b) / 4;
  const double at_margin = 2 * gains + margin * (1 - margin);
  const double reach = (normal_quantile(confidence) * std::sqrt(at_margin) +
                        normal_quantile(power) * std::sqrt(flips)) /
                       margin;
  const double without = std::log(1 - confidence) / std::log1p(-margin);
  const double items = std::ceil(std::max(reach * reach, without));
  constexpr double kMost = 1e18;
  return static_cast<int64_t>(std::min(items, kMost));
}

}  // namespace vitrine
