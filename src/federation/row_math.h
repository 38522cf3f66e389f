// SPDX-License-Identifier: Apache-2.0
// Exponentials and logarithms of whole rows in float32: plain arithmetic that compilers turn into
// vector instructions and that gives the same bits whatever their width (the polynomials of
// Moshier's Cephes library; about one unit in the last place).
#pragma once

#include <bit>
#include <cstdint>

// For a function over a row: one version for each width of vectors; the arithmetic, and so the
// bits, are the same.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VITRINE_ROW_LOOP __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VITRINE_ROW_LOOP
#endif

namespace vitrine::federation {

/// exp(x) for -87 <= x <= 0, where float32 has normal results.
inline float exp_float(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const float n = (x * 1.44269504088896341F + kRound) - kRound;
  x -= n * 0.693359375F;
  x -= n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * x + 1.3981999507e-3F;
  p = p * x + 8.3334519073e-3F;
  p = p * x + 4.1665795894e-2F;
  p = p * x + 1.6666665459e-1F;
  p = p * x + 5.0000001201e-1F;
  p = p * (x * x) + x + 1.0F;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

/// log(x) for a normal x above 0, or NaN. The exponent is that of x / sqrt(1/2). Without a branch,
/// which would keep the compiler from making vectors of it: x - x is 0, or NaN.
inline float log_float(float x) {
  constexpr int32_t kRootHalf = 0x3F3504F3;
  const int32_t bits = std::bit_cast<int32_t>(x) - kRootHalf;
  const float m = std::bit_cast<float>((bits & 0x007FFFFF) + kRootHalf) - 1.0F;
  const auto e = static_cast<float>(bits >> 23);
  const float z = m * m;
  float p = 7.0376836292e-2F;
  p = p * m - 1.1514610310e-1F;
  p = p * m + 1.1676998740e-1F;
  p = p * m - 1.2420140846e-1F;
  p = p * m + 1.4249322787e-1F;
  p = p * m - 1.6668057665e-1F;
  p = p * m + 2.0000714765e-1F;
  p = p * m - 2.4999993993e-1F;
  p = p * m + 3.3333331174e-1F;
  float y = p * m * z;
  y += -2.12194440e-4F * e;
  y -= 0.5F * z;
  return ((m + y) + 0.693359375F * e) + (x - x);
}

}  // namespace vitrine::federation
