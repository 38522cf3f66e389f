// SPDX-License-Identifier: Apache-2.0
// Scalar building blocks of the portable table; docs/numerics.md states each of them.
#pragma once

#include <cmath>
#include <cstdint>

#include "../exp_constants.h"
#include "../half.h"

namespace vitrine::kernels::portable {

/// 16 partial sums; element i of a reduction belongs to lane i mod 16.
struct Lanes {
  float lane[16] = {};

  void fma_at(int64_t i, float a, float b) { lane[i & 15] = std::fma(a, b, lane[i & 15]); }
  void add_at(int64_t i, float a) { lane[i & 15] += a; }

  /// Adds the lanes in the fixed tree: (j, j+8), (j, j+4), (j, j+2), (j, j+1).
  float sum() const {
    float tree[8];
    for (int j = 0; j < 8; ++j) tree[j] = lane[j] + lane[j + 8];
    for (int j = 0; j < 4; ++j) tree[j] = tree[j] + tree[j + 4];
    for (int j = 0; j < 2; ++j) tree[j] = tree[j] + tree[j + 2];
    return tree[0] + tree[1];
  }
};

/// The maximum of 16 running lanes; a NaN element is passed over.
struct MaxLanes {
  float lane[16];

  MaxLanes() {
    for (float& value : lane) value = -INFINITY;
  }
  void take(int64_t i, float a) { lane[i & 15] = a > lane[i & 15] ? a : lane[i & 15]; }
  float max() const {
    float tree[16];
    for (int j = 0; j < 16; ++j) tree[j] = lane[j];
    for (int width = 8; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j)
        tree[j] = tree[j] > tree[j + width] ? tree[j] : tree[j + width];
    }
    return tree[0];
  }
};

/// p * 2^exponent, rounded once: two factors, so that the first product is exact (denormals).
static inline float scale_by_power(float p, int32_t exponent) {
  const int32_t half = exponent >> 1;
  const float scaled = p * float_from_bits(static_cast<uint32_t>(half + 127) << 23);
  return scaled * float_from_bits(static_cast<uint32_t>(exponent - half + 127) << 23);
}

static inline float exp_float(float x) {
  if (x != x) return x;
  x = kExpHigh < x ? kExpHigh : x;
  x = kExpLow > x ? kExpLow : x;
  const float shifted = std::fma(x, kLog2E, kRoundMagic);
  const float n = shifted - kRoundMagic;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = std::fma(kExpC6, r, kExpC5);
  p = std::fma(p, r, kExpC4);
  p = std::fma(p, r, kExpC3);
  p = std::fma(p, r, kExpC2);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  return scale_by_power(p, static_cast<int32_t>(n));
}

/// The head's exponential, of x <= 0 or NaN.
static inline float exp_statistics(float x) {
  if (x < kExpStatisticsLow) return 0.0f;
  const float rounded = std::fma(x, kLog2E, kRoundMagic8);
  const float f = std::fma(x, kLog2E, -(rounded - kRoundMagic8));
  const uint32_t bits = bits_from_float(rounded);
  const float power = float_from_bits(kExp2Words.at[bits % 8] + (bits << 20));
  const float q = std::fma(std::fma(kExp2D3, f, kExp2D2), f, kExp2D1);
  return std::fma(q * f, power, power);
}

static inline float silu(float x) { return x / (1.0f + exp_float(-x)); }

}  // namespace vitrine::kernels::portable
