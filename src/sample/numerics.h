// SPDX-License-Identifier: Apache-2.0
// Exponentials and logarithms that have the same bits on every machine: libm's choose another
// polynomial where the processor has FMA, and a draw at the edge of two tokens would tell.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace vitrine {

/// e^x for x <= 0, within 2 units in the last place; 0 below -708 and for -infinity.
inline double exp_nonpositive(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to a whole number in the low bits
  const double bounded = x < -708.0 ? -708.0 : x;
  const double shifted = bounded * kLog2E + kRound;
  const double whole = shifted - kRound;
  const double r = (bounded - whole * kLn2High) - whole * kLn2Low;
  // Taylor's series: |r| <= ln(2)/2, so that the first term left out is below 4e-18.
  double sum = 1.0 / 6227020800.0;
  sum = sum * r + 1.0 / 479001600.0;
  sum = sum * r + 1.0 / 39916800.0;
  sum = sum * r + 1.0 / 3628800.0;
  sum = sum * r + 1.0 / 362880.0;
  sum = sum * r + 1.0 / 40320.0;
  sum = sum * r + 1.0 / 5040.0;
  sum = sum * r + 1.0 / 720.0;
  sum = sum * r + 1.0 / 120.0;
  sum = sum * r + 1.0 / 24.0;
  sum = sum * r + 1.0 / 6.0;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const uint64_t exponent = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  const double value = sum * std::bit_cast<double>(exponent);
  return x < -708.0 ? 0.0 : value;
}

/// ln(x) for finite x > 0, within a few units in the last place.
inline double log_positive(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // [0.5, 1)
  if (mantissa < 0x1.6a09e667f3bcdp-1) {       // below sqrt(1/2)
    mantissa *= 2;
    --exponent;
  }
  // ln(m) = 2 artanh((m - 1) / (m + 1))
  const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent * kLn2 + 2 * s * sum;
}

}  // namespace vitrine
