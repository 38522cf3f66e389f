// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "vitrine/speculate.h"

namespace vitrine {

PassCosts::PassCosts(std::vector<PassCost> costs) : costs_(std::move(costs)) {
  std::ranges::sort(costs_, {}, &PassCost::tokens);
  for (size_t i = 0; i < costs_.size(); ++i) {
    const PassCost& cost = costs_[i];
    const bool is_twice = i > 0 && costs_[i - 1].tokens == cost.tokens;
    if (cost.tokens >= 1 && cost.seconds > 0 && std::isfinite(cost.seconds) && !is_twice) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "the table of passes has one of " + std::to_string(cost.tokens) +
                    " tokens that costs " + std::to_string(cost.seconds) +
                    "; expected counts from 1 on, each once, and finite costs above 0");
  }
  if (!costs_.empty() && costs_.front().tokens == 1) return;
  throw Error(ErrorKind::kInvalidArgument,
              "the table of passes has none of one token; expected one, which the others are "
              "measured by");
}

double PassCosts::of(int32_t tokens) const {
  if (costs_.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double one = costs_.front().seconds;
  if (costs_.size() == 1) return std::max(1, tokens);
  const auto found = std::ranges::lower_bound(costs_, tokens, {}, &PassCost::tokens);
  const auto upper = std::clamp(found, costs_.begin() + 1, costs_.end() - 1);
  const PassCost &low = *(upper - 1), &high = *upper;
  const double slope = (high.seconds - low.seconds) / (high.tokens - low.tokens);
  return std::max(1.0, (low.seconds + slope * (tokens - low.tokens)) / one);
}

}  // namespace vitrine
