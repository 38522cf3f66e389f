// SPDX-License-Identifier: Apache-2.0
#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
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
  if (values.empty() || resamples < 1) {
    return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  std::mt19937_64 engine(seed);
  std::vector<double> sample(values.size());
  std::vector<double> medians(static_cast<size_t>(resamples));
  for (double& result : medians) {
    for (double& value : sample) {
      // The high 32 bits scaled: the standard's distributions differ between libraries.
      value = values[static_cast<size_t>(((engine() >> 32) * values.size()) >> 32)];
    }
    result = median_in_place(sample);
  }
  return {vitrine::quantile(medians, 0.025), vitrine::quantile(medians, 0.975)};
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
