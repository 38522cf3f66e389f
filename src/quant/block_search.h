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

/// Sizes below this are none: their inverses are no numbers.
inline constexpr float kLeastSize = 1e-30F;

/// Returns the bits of the finite half next to a value; 0 for what is no number.
inline uint16_t finite_half(float value) {
  constexpr float kMost = 65504;
  return std::isnan(value) ? 0 : float_to_f16(std::clamp(value, -kMost, kMost));
}

inline float rounded_half(float value) { return f16_to_float(finite_half(value)); }

inline void put_half(float value, std::byte* out) {
  const uint16_t bits = finite_half(value);
  out[0] = static_cast<std::byte>(bits & 255);
  out[1] = static_cast<std::byte>(bits >> 8);
}

/// Returns the whole number nearest to a value, within [low, high], whose sizes are below 2^22; low
/// for what is no number.
inline float nearest_whole(float value, float low, float high) {
  constexpr float kShift = 12582912;  // 1.5 * 2^23: behind it a float32 has no fraction left
  return (std::min(high, std::max(low, value)) + kShift) - kShift;
}
inline int nearest_level(float value, int low, int high) {
  return static_cast<int>(nearest_whole(value, static_cast<float>(low), static_cast<float>(high)));
}

/// Writes how much each value's squared error counts: its importance, more for a large value, which
/// is more often the one that counts; without importances its size alone.
inline void error_weights(const float* values, int64_t count, const float* importance,
                          float* weights) {
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += static_cast<double>(values[i]) * values[i];
  // Twice the mean square, so that small values count, too.
  const auto mean = static_cast<float>(2 * square / static_cast<double>(count));
  // Columns that nothing came to say nothing of each other.
  if (importance != nullptr &&
      std::all_of(importance, importance + count, [](float each) { return each == 0; })) {
    importance = nullptr;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float size = std::sqrt(mean + values[i] * values[i]);
    weights[i] = importance == nullptr ? size * size : importance[i] * size;
  }
}

/// Sums over values side by side, eight at a time, so that the compiler makes vectors of them.
class LaneSum {
 public:
  static constexpr size_t kLanes = 8;

  void add(size_t lane, float value) { lanes_[lane] += value; }
  double total() const {
    double sum = 0;
    for (const float lane : lanes_) sum += static_cast<double>(lane);
    return sum;
  }

 private:
  std::array<float, kLanes> lanes_{};
};

/// x ~ scale * q - minimum, q from 0 to `levels`.
struct AffineFit {
  float scale = 0, minimum = 0;
};

/// Returns the weighted error of values, a multiple of eight, under a fit.
inline double affine_error(std::span<const float> values, const float* weights,
                           const AffineFit& fit, int levels) {
  const float inverse = fit.scale == 0 ? 0 : 1 / fit.scale;
  LaneSum sum;
  for (size_t i = 0; i < values.size(); i += LaneSum::kLanes) {
    for (size_t lane = 0; lane < LaneSum::kLanes; ++lane) {
      const float value = values[i + lane];
      const float q = nearest_whole((value + fit.minimum) * inverse, 0, static_cast<float>(levels));
      const float off = fit.scale * q - fit.minimum - value;
      sum.add(lane, weights[i + lane] * off * off);
    }
  }
  return sum.total();
}

/// Returns the fit of the levels that values have under another one; of scale 0: there is none.
inline AffineFit refit_affine(std::span<const float> values, const float* weights,
                              const AffineFit& fit, int levels) {
  const float inverse = 1 / fit.scale;
  LaneSum sum_w, sum_wq, sum_wqq, sum_wx, sum_wqx;
  for (size_t i = 0; i < values.size(); i += LaneSum::kLanes) {
    for (size_t lane = 0; lane < LaneSum::kLanes; ++lane) {
      const float value = values[i + lane], weight = weights[i + lane];
      const float q = nearest_whole((value + fit.minimum) * inverse, 0, static_cast<float>(levels));
      sum_w.add(lane, weight);
      sum_wq.add(lane, weight * q);
      sum_wqq.add(lane, weight * q * q);
      sum_wx.add(lane, weight * value);
      sum_wqx.add(lane, weight * q * value);
    }
  }
  const double w = sum_w.total(), wq = sum_wq.total(), wqq = sum_wqq.total();
  const double wx = sum_wx.total(), wqx = sum_wqx.total();
  const double determinant = w * wqq - wq * wq;
  if (!(determinant > 0)) return {};
  const double scale = (w * wqx - wq * wx) / determinant;
  const double minimum = -(wqq * wx - wq * wqx) / determinant;
  if (minimum < 0) return {static_cast<float>(wqq > 0 ? wqx / wqq : 0), 0};
  return {static_cast<float>(scale), static_cast<float>(minimum)};
}

/// Finds the fit with a minimum of at least 0.
inline AffineFit fit_affine(std::span<const float> values, const float* weights, int levels) {
  constexpr int kTrials = 24, kTurns = 2;
  constexpr float kFirst = -0.9F, kStep = 0.1F;  // of the number of levels that a trial spreads
  float smallest = 0, largest = values[0];
  for (const float value : values) {
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
  }
  if (largest - smallest < kLeastSize) return {0, -smallest};
  AffineFit best{(largest - smallest) / static_cast<float>(levels), -smallest};
  double least = affine_error(values, weights, best, levels);
  for (int trial = 0; trial <= kTrials; ++trial) {
    const float spread = static_cast<float>(levels) + kFirst + kStep * static_cast<float>(trial);
    AffineFit fit{(largest - smallest) / spread, -smallest};
    // The levels of a fit, then the fit of these levels.
    for (int turn = 0; turn < kTurns; ++turn) {
      fit = refit_affine(values, weights, fit, levels);
      if (!(fit.scale > 0)) break;
      const double found = affine_error(values, weights, fit, levels);
      if (!(found < least)) continue;
      least = found;
      best = fit;
    }
  }
  return best;
}

/// Writes the levels of values under a fit.
inline void affine_levels(std::span<const float> values, const AffineFit& fit, int levels,
                          uint8_t* out) {
  const float inverse = fit.scale == 0 ? 0 : 1 / fit.scale;
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = static_cast<uint8_t>(nearest_level((values[i] + fit.minimum) * inverse, 0, levels));
  }
}

/// Finds a fit of halves, as Q4_1 and Q5_1 have them.
inline AffineFit fit_affine_halves(std::span<const float> values, const float* weights,
                                   int levels) {
  const AffineFit fit = fit_affine(values, weights, levels);
  return {rounded_half(fit.scale), rounded_half(fit.minimum)};
}

/// Writes 32 levels of five bits as Q5_0 and Q5_1 have them: the high bits, then the nibbles.
inline void put_five_bits(const uint8_t* levels, std::byte* out) {
  for (size_t i = 0; i < 4; ++i) {
    int bits = 0;
    for (size_t bit = 0; bit < 8; ++bit) bits |= levels[8 * i + bit] >> 4 << bit;
    out[i] = static_cast<std::byte>(bits);
  }
  for (size_t i = 0; i < 16; ++i) {
    out[4 + i] = static_cast<std::byte>((levels[i] & 15) | (levels[16 + i] & 15) << 4);
  }
}

/// How the 256 values of a block of Q2_K, Q4_K or Q5_K are divided.
struct AffineShape {
  size_t width = 32;  ///< values of a group
  int levels = 15;    ///< the largest number of a value
  int most = 63;      ///< the largest whole number of a group's scale and minimum
};

/// The groups of such a block, chosen: x ~ d * scale * level - dmin * minimum.
struct AffineBlock {
  float d = 0, dmin = 0;  // halves
  std::array<int, 16> scales{}, minimums{};
  std::array<uint8_t, 256> levels{};
};

/// Chooses the numbers of a block.
AffineBlock choose_affine_block(const float* values, const float* importance,
                                const AffineShape& shape);

/// Writes d, dmin and the twelve bytes of scales and minimums of Q4_K and Q5_K.
void put_affine_head(const AffineBlock& block, std::byte* out);

/// Adds the lowest two bits of each of 256 levels to 64 bytes as Q2_K and Q3_K have them: 128
/// values share 32 bytes.
inline void put_two_bits(const uint8_t* levels, std::byte* out) {
  for (size_t i = 0; i < 64; ++i) {
    const size_t first = i / 32 * 128 + i % 32;
    int pairs = 0;
    for (size_t part = 0; part < 4; ++part) pairs |= (levels[first + 32 * part] & 3) << (2 * part);
    out[i] = static_cast<std::byte>(pairs);
  }
}

}  // namespace vitrine::quant
