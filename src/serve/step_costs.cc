// SPDX-License-Identifier: Apache-2.0
#include "serve/step_costs.h"

#include <algorithm>
#include <bit>

namespace vitrine::serve {

namespace {

constexpr double kWeight = 0.2;  // of a new step in its range's mean
constexpr double kUnknownToken = 1e-3;

}  // namespace

void StepCosts::add(int64_t tokens, double seconds) {
  if (tokens < 1 || !(seconds > 0)) return;
  const auto width = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(tokens)) - 1);
  Range& range = ranges_[std::min(width, kRanges - 1)];
  if (range.tokens == 0) {
    range = {static_cast<double>(tokens), seconds};
    return;
  }
  range.tokens += kWeight * (static_cast<double>(tokens) - range.tokens);
  range.seconds += kWeight * (seconds - range.seconds);
}

double StepCosts::of(int64_t tokens) const {
  const auto at = static_cast<double>(tokens);
  const Range* below = nullptr;
  for (const Range& range : ranges_) {
    if (range.tokens == 0) continue;
    if (range.tokens >= at) {
      if (below == nullptr) return range.seconds;
      const double part = (at - below->tokens) / (range.tokens - below->tokens);
      return below->seconds + part * (range.seconds - below->seconds);
    }
    below = &range;
  }
  return below == nullptr ? 0 : below->seconds * at / below->tokens;
}

int64_t StepCosts::tokens_within(double seconds, int64_t most) const {
  if (of(most) <= seconds) return most;
  int64_t within = 0, beyond = most;
  while (beyond - within > 1) {
    const int64_t middle = within + (beyond - within) / 2;
    (of(middle) <= seconds ? within : beyond) = middle;
  }
  return within;
}

double StepCosts::of_prompt_token() const {
  const auto largest = std::find_if(ranges_.rbegin(), ranges_.rend(),
                                    [](const Range& range) { return range.tokens > 0; });
  return largest == ranges_.rend() ? kUnknownToken : largest->seconds / largest->tokens;
}

bool StepCosts::is_cheap_beside(int64_t tokens) const {
  const double alone = of(1), more = of(tokens + 8) - of(tokens);
  return alone > 0 && more < 4 * alone;
}

}  // namespace vitrine::serve
