// SPDX-License-Identifier: Apache-2.0
#include "quality/distributions.h"

#include <math.h>  // lgamma_r: std::lgamma writes a global

#include <cmath>
#include <limits>
#include <string>

#include "vitrine/statistics.h"

namespace vitrine::quality {

namespace {

/// Halves an interval until no number lies between its ends. `is_below(x)` says whether the root is
/// above x.
template <typename IsBelow>
double bisect(double lower, double upper, const IsBelow& is_below) {
  for (;;) {
    const double middle = lower + (upper - lower) / 2;
    if (middle <= lower || middle >= upper) return middle;
    (is_below(middle) ? lower : upper) = middle;
  }
}

double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

/// The continued fraction of DLMF 8.17.22 by the method of Lentz, for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  constexpr int kMostTerms = 1'000'000;
  const auto not_zero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / not_zero(1 - (a + b) * x / (a + 1)), fraction = d;
  for (int term = 1; term <= kMostTerms; ++term) {
    const double m = term;
    const auto step = [&](double numerator) {
      d = 1 / not_zero(1 + numerator * d);
      c = not_zero(1 + numerator / c);
      fraction *= d * c;
    };
    step(m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)));
    step(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)));
    if (std::abs(d * c - 1) < 4 * std::numeric_limits<double>::epsilon()) break;
  }
  return fraction;
}

}  // namespace

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incomplete_beta(b, a, 1 - x);
  const double front = a * std::log(x) + b * std::log1p(-x) + log_gamma(a + b) - log_gamma(a) -
                       log_gamma(b) - std::log(a);
  return std::exp(front) * beta_fraction(a, b, x);
}

double inverse_incomplete_beta(double a, double b, double value) {
  return bisect(0, 1, [&](double x) { return incomplete_beta(a, b, x) < value; });
}

double student_above(double t, double degrees_of_freedom) {
  const double tail = incomplete_beta(degrees_of_freedom / 2, 0.5,
                                      degrees_of_freedom / (degrees_of_freedom + t * t)) /
                      2;
  return t >= 0 ? tail : 1 - tail;
}

void require_probability(const char* what, double value) {
  if (value > 0 && value < 1) return;
  throw Error(ErrorKind::kInvalidArgument, std::string(what) + " of " + std::to_string(value) +
                                               "; expected one above 0 and below 1");
}

}  // namespace vitrine::quality

namespace vitrine {

double normal_quantile(double probability) {
  quality::require_probability("a probability", probability);
  if (probability > 0.5) return -normal_quantile(1 - probability);
  return quality::bisect(
      -40, 0, [&](double z) { return std::erfc(-z / std::sqrt(2.0)) / 2 < probability; });
}

double student_quantile(double probability, double degrees_of_freedom) {
  quality::require_probability("a probability", probability);
  if (!(degrees_of_freedom > 0)) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(degrees_of_freedom) + " degrees of freedom; expected more than 0");
  }
  if (probability > 0.5) return -student_quantile(1 - probability, degrees_of_freedom);
  const double x = quality::inverse_incomplete_beta(degrees_of_freedom / 2, 0.5, 2 * probability);
  return -std::sqrt(degrees_of_freedom * (1 - x) / x);
}

double binomial_at_least(double successes, double trials, double probability) {
  if (!(successes >= 0 && successes <= trials && probability >= 0 && probability <= 1)) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(successes) + " successes in " + std::to_string(trials) +
                    " trials of probability " + std::to_string(probability) +
                    "; expected 0 up to as many as there are, and 0 to 1");
  }
  if (successes == 0) return 1;
  return quality::incomplete_beta(successes, trials - successes + 1, probability);
}

Interval binomial_interval(double successes, double trials, double confidence) {
  quality::require_probability("a confidence", confidence);
  binomial_at_least(successes, trials, 0);  // checks the numbers
  Interval interval{0, 1};
  if (successes > 0) {
    interval.lower =
        quality::inverse_incomplete_beta(successes, trials - successes + 1, 1 - confidence);
  }
  if (successes < trials) {
    interval.upper =
        quality::inverse_incomplete_beta(successes + 1, trials - successes, confidence);
  }
  return interval;
}

}  // namespace vitrine
