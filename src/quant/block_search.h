// SPDX-License-Identifier: Apache-2.0
// Private to the room: the numbers of a group and what they are multiplied with, found by the least
// weighted sum of squared errors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "vitrine/quant.h"

namespace vitrine::quant {

inline void put_half(float value, std::byte* out) {
  const uint16_t bits = float_to_f16(value);
  out[0] = static_cast<std::byte>(bits & 255);
  out[1] = static_cast<std::byte>(bits >> 8);
}

/// Returns the whole number nearest to a value, within [low, high].
inline int nearest_level(float value, int low, int high) {
  return static_cast<int>(
      std::clamp(std::nearbyint(value), static_cast<float>(low), static_cast<float>(high)));
}

/// Writes how much each value's squared error counts: its importance, more for a large value, which
/// is more often the one that counts; without importances its size alone.
inline void error_weights(const float* values, int64_t count, const float* importance,
                          float* weights) {
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += static_cast<double>(values[i]) * values[i];
  // Twice the mean square, so that small values count, too.
  const auto mean = static_cast<float>(2 * square / static_cast<double>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float size = std::sqrt(mean + values[i] * values[i]);
    weights[i] = importance == nullptr ? size * size : importance[i] * size;
  }
}

/// x ~ scale * q - minimum, q from 0 to `levels`.
struct AffineFit {
  float scale = 0, minimum = 0;
};

/// Finds the fit with a minimum of at least 0.
inline AffineFit fit_affine(std::span<const float> values, const float* weights, int levels) {
  constexpr int kTrials = 24;
  constexpr float kFirst = -0.9F, kStep = 0.1F;  // of the number of levels that a trial spreads
  float smallest = 0, largest = values[0];
  for (const float value : values) {
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
  }
  if (largest <= smallest) return {0, -smallest};
  AffineFit best{(largest - smallest) / static_cast<float>(levels), -smallest};
  const auto error_of = [&](const AffineFit& fit) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const int q = nearest_level((values[i] + fit.minimum) / fit.scale, 0, levels);
      const float off = fit.scale * static_cast<float>(q) - fit.minimum - values[i];
      sum += static_cast<double>(weights[i]) * off * off;
    }
    return sum;
  };
  double least = error_of(best);
  for (int trial = 0; trial <= kTrials; ++trial) {
    const float spread = static_cast<float>(levels) + kFirst + kStep * static_cast<float>(trial);
    AffineFit fit{(largest - smallest) / spread, -smallest};
    // The levels of a fit, then the fit of these levels, twice.
    for (int turn = 0; turn < 2 && fit.scale > 0; ++turn) {
      double w = 0, wq = 0, wqq = 0, wx = 0, wqx = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const double q = nearest_level((values[i] + fit.minimum) / fit.scale, 0, levels);
        const double weight = weights[i];
        w += weight;
        wq += weight * q;
        wqq += weight * q * q;
        wx += weight * values[i];
        wqx += weight * q * values[i];
      }
      const double determinant = w * wqq - wq * wq;
      if (determinant <= 0) break;
      double scale = (w * wqx - wq * wx) / determinant;
      double minimum = -(wqq * wx - wq * wqx) / determinant;
      if (minimum < 0) {
        minimum = 0;
        scale = wqq > 0 ? wqx / wqq : 0;
      }
      if (!(scale > 0)) break;
      fit = {static_cast<float>(scale), static_cast<float>(minimum)};
      const double found = error_of(fit);
      if (found >= least) continue;
      least = found;
      best = fit;
    }
  }
  return best;
}

/// Finds the scale of x ~ scale * q, q from -levels to levels - 1; it may be negative.
inline float fit_symmetric(std::span<const float> values, const float* weights, int levels) {
  constexpr int kTrials = 18;
  float largest = 0;
  for (const float value : values) {
    if (std::fabs(value) > std::fabs(largest)) largest = value;
  }
  if (largest == 0) return 0;
  float best = 0;
  double best_gain = -1;  // what the fit explains: (sum w x q)² / sum w q²
  for (int trial = -kTrials / 2; trial <= kTrials / 2; ++trial) {
    const float inverse =
        -(static_cast<float>(levels) + 0.1F * static_cast<float>(trial)) / largest;
    double wqx = 0, wqq = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double q = nearest_level(values[i] * inverse, -levels, levels - 1);
      wqx += weights[i] * q * values[i];
      wqq += weights[i] * q * q;
    }
    if (wqq <= 0 || wqx * wqx / wqq <= best_gain) continue;
    best_gain = wqx * wqx / wqq;
    best = static_cast<float>(wqx / wqq);
  }
  return best;
}

/// The eight groups of 32 of a block of Q4_K or Q5_K, chosen.
struct AffineBlock {
  float d = 0, dmin = 0;  // halves
  std::array<int, 8> scales{}, minimums{};
  std::array<uint8_t, 256> levels{};
};

/// Chooses the numbers of a block whose levels go from 0 to `levels`.
AffineBlock choose_affine_block(const float* values, const float* importance, int levels);

/// Writes d, dmin and the twelve bytes of scales and minimums.
void put_affine_head(const AffineBlock& block, std::byte* out);

}  // namespace vitrine::quant
