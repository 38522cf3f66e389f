// SPDX-License-Identifier: Apache-2.0
// Statistics of `bench audit`.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cli {

/// The middle value; the mean of the two middle ones for an even count. NaN for none.
double median(std::span<const double> values);

struct Interval {
  double low = 0, high = 0;
};

/// 95 % percentile interval of the median from `resamples` bootstrap samples (drawn with
/// replacement, by a fixed seed: the same values give the same interval). NaN for none.
Interval bootstrap_median_interval(std::span<const double> values, int resamples = 10000,
                                   uint64_t seed = 1);

/// The sum of `dividends` over that of `divisors`, which belong together one by one, and the same
/// interval of it, drawn from the pairs. NaN for none.
double ratio_of_sums(std::span<const double> dividends, std::span<const double> divisors);
Interval bootstrap_ratio_interval(std::span<const double> dividends,
                                  std::span<const double> divisors, int resamples = 10000,
                                  uint64_t seed = 1);

/// What an overhead (a fraction) comes to: STRICT (< 1 %), LENIENT (< 5 %), FAIL (5 to 10 %),
/// CATASTROPHIC (> 10 %), INCONCLUSIVE where the two ends of its interval disagree.
std::string_view overhead_verdict(const Interval& interval);

}  // namespace cli
