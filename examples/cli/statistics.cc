// SPDX-License-Identifier: Apache-2.0
#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "vitrine/quality.h"

namespace cli {

namespace {

double median_in_place(std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

/// 95 % of what `measure` says of as many numbers below `count` as there are, drawn again and
/// again.
template <typename Measure>
Interval bootstrap_interval(size_t count, int resamples, uint64_t seed, const Measure& measure) {
  if (count == 0 || resamples < 1) {
    return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  std::mt19937_64 engine(seed);
  std::vector<size_t> drawn(count);
  std::vector<double> measured(static_cast<size_t>(resamples));
  for (double& result : measured) {
    // The high 32 bits scaled: the standard's distributions differ between libraries.
    for (size_t& number : drawn) number = static_cast<size_t>(((engine() >> 32) * count) >> 32);
    result = measure(drawn);
  }
  return {vitrine::quantile(measured, 0.025), vitrine::quantile(measured, 0.975)};
}

enum class Verdict { kStrict, kLenient, kFail, kCatastrophic };

Verdict verdict_of(double overhead) {
  if (overhead < 0.01) return Verdict::kStrict;
  if (overhead < 0.05) return Verdict::kLenient;
  if (overhead <= 0.10) return Verdict::kFail;
  return Verdict::kCatastrophic;
}

}  // namespace

double median(std::span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  return median_in_place(copy);
}

Interval bootstrap_median_interval(std::span<const double> values, int resamples, uint64_t seed) {
  std::vector<double> sample(values.size());
  return bootstrap_interval(values.size(), resamples, seed, [&](std::span<const size_t> drawn) {
    for (size_t i = 0; i < drawn.size(); ++i) sample[i] = values[drawn[i]];
    return median_in_place(sample);
  });
}

double ratio_of_sums(std::span<const double> dividends, std::span<const double> divisors) {
  if (dividends.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::reduce(dividends.begin(), dividends.end()) /
         std::reduce(divisors.begin(), divisors.end());
}

Interval bootstrap_ratio_interval(std::span<const double> dividends,
                                  std::span<const double> divisors, int resamples, uint64_t seed) {
  return bootstrap_interval(dividends.size(), resamples, seed, [&](std::span<const size_t> drawn) {
    double dividend = 0, divisor = 0;
    for (const size_t i : drawn) dividend += dividends[i], divisor += divisors[i];
    return dividend / divisor;
  });
}

std::string_view overhead_verdict(const Interval& interval) {
  if (std::isnan(interval.low) || std::isnan(interval.high)) return "INCONCLUSIVE";
  const Verdict low = verdict_of(interval.low);
  if (low != verdict_of(interval.high)) return "INCONCLUSIVE";
  switch (low) {
    case Verdict::kStrict: return "STRICT";
    case Verdict::kLenient: return "LENIENT";
    case Verdict::kFail: return "FAIL";
    case Verdict::kCatastrophic: return "CATASTROPHIC";
  }
  return "INCONCLUSIVE";
}

}  // namespace cli
