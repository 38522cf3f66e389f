// SPDX-License-Identifier: Apache-2.0
// Private to the room: values as entries of a book times a scale, found by the least weighted sum
// of squared errors. A book has
//
//     kWidth                       values that share a scale
//     kLeast, kMost                the whole numbers that stand for a scale
//     kHasSign                     whether a scale may be negative
//     kBeginnings, beginning(i)    what the value of the largest size is taken for, to begin with
//     multiplier(whole)            what a whole number stands for
//     whole_of(multiplier)         the whole number next to it
//     nearest(values, weights, scale, entries)
//                                  writes the entries of the least error, kWidth of them
//
// Books of blocks with one scale (Q4_0) need neither whole numbers nor multipliers.
#pragma once

#include <limits>

#include "block_search.h"

namespace vitrine::quant {

/// A scale, and how much the error grows with the square of a step away from it.
struct ScaleFit {
  float scale = 0;
  double growth = 0;
};

/// Finds the scale of a group.
template <typename Book>
ScaleFit fit_scale(const float* values, const float* weights) {
  constexpr int kTurns = 4;
  float largest = 0;
  for (int64_t i = 0; i < Book::kWidth; ++i) {
    if (std::fabs(values[i]) > std::fabs(largest)) largest = values[i];
  }
  if (std::fabs(largest) < kLeastSize) return {};
  if constexpr (!Book::kHasSign) largest = std::fabs(largest);
  ScaleFit best;
  double best_gain = -1;  // what a fit explains: (sum w x e)^2 / sum w e^2
  const auto take = [&](float scale) {
    std::array<float, static_cast<size_t>(Book::kWidth)> entries;
    Book::nearest(values, weights, scale, entries.data());
    LaneSum sum_wxe, sum_wee;
    for (size_t i = 0; i < entries.size(); i += LaneSum::kLanes) {
      for (size_t lane = 0; lane < LaneSum::kLanes; ++lane) {
        const float weighted = weights[i + lane] * entries[i + lane];
        sum_wxe.add(lane, weighted * values[i + lane]);
        sum_wee.add(lane, weighted * entries[i + lane]);
      }
    }
    const double wxe = sum_wxe.total(), wee = sum_wee.total();
    if (!(wee > 0) || (!Book::kHasSign && wxe <= 0) || !(wxe * wxe > best_gain * wee)) return false;
    best_gain = wxe * wxe / wee;
    best = {static_cast<float>(wxe / wee), wee};
    return true;
  };
  for (int i = 0; i < Book::kBeginnings; ++i) take(largest / Book::beginning(i));
  // The entries of a scale, then the scale of these entries.
  for (int turn = 0; turn < kTurns && best.scale != 0 && take(best.scale); ++turn) {
  }
  return best;
}

/// The error of a group under a scale.
template <typename Book>
double scale_error(const float* values, const float* weights, float scale) {
  std::array<float, static_cast<size_t>(Book::kWidth)> entries;
  Book::nearest(values, weights, scale, entries.data());
  LaneSum sum;
  for (size_t i = 0; i < entries.size(); i += LaneSum::kLanes) {
    for (size_t lane = 0; lane < LaneSum::kLanes; ++lane) {
      const float off = scale * entries[i + lane] - values[i + lane];
      sum.add(lane, weights[i + lane] * off * off);
    }
  }
  return sum.total();
}

/// Returns the half whose group has the least error: that next to the fit, or the other one.
template <typename Book>
float fit_half(const float* values, const float* weights) {
  const float scale = fit_scale<Book>(values, weights).scale;
  const float near = rounded_half(scale);
  const uint16_t bits = finite_half(scale);
  if (near == 0 || near == scale) return near;
  const bool is_beyond = std::fabs(near) > std::fabs(scale);
  const float other = f16_to_float(static_cast<uint16_t>(is_beyond ? bits - 1 : bits + 1));
  if (!std::isfinite(other)) return near;
  return scale_error<Book>(values, weights, other) < scale_error<Book>(values, weights, near)
             ? other
             : near;
}

/// The scales of a block: x ~ d * multiplier(whole) * entry.
template <typename Book>
struct ScaledBlock {
  static constexpr size_t kGroups = static_cast<size_t>(256 / Book::kWidth);
  float d = 0;  // a half
  std::array<int, kGroups> wholes{};

  float scale(size_t group) const { return d * Book::multiplier(wholes[group]); }
};

/// Chooses the scales of a block of 256 values.
template <typename Book>
class ScaleChooser {
 public:
  using Block = ScaledBlock<Book>;
  static constexpr size_t kGroups = Block::kGroups;

  ScaleChooser(const float* values, const float* weights) : values_(values), weights_(weights) {}

  Block run() {
    constexpr int kTurns = 3;
    Block best;
    best.d = first_unit();
    if (best.d == 0) return best;
    double least = choose_wholes(best);
    // The unit that suits the entries best, then the entries that suit it.
    for (int turn = 0; turn < kTurns; ++turn) {
      Block next;
      next.d = fit_unit(best);
      if (next.d == 0 || next.d == best.d) break;
      const double error = choose_wholes(next);
      if (!(error < least)) break;
      least = error;
      best = next;
    }
    return best;
  }

 private:
  const float* values(size_t group) const {
    return values_ + group * static_cast<size_t>(Book::kWidth);
  }
  const float* weights(size_t group) const {
    return weights_ + group * static_cast<size_t>(Book::kWidth);
  }

  /// The unit whose multiples the groups' scales are, by what leaving a scale costs.
  float first_unit() {
    constexpr int kFirst = -16, kLast = 12;
    constexpr float kStep = 0.01F;
    float largest = 0;
    for (size_t g = 0; g < kGroups; ++g) {
      fits_[g] = fit_scale<Book>(values(g), weights(g));
      if (std::fabs(fits_[g].scale) > std::fabs(largest)) largest = fits_[g].scale;
    }
    if (largest == 0) return 0;
    float best = 0;
    double least = std::numeric_limits<double>::infinity();
    const auto take = [&](float unit) {
      double wtm = 0, wmm = 0, wtt = 0;
      for (const ScaleFit& fit : fits_) {
        const double m = Book::multiplier(Book::whole_of(fit.scale / unit));
        wtm += fit.growth * m * fit.scale;
        wmm += fit.growth * m * m;
        wtt += fit.growth * fit.scale * fit.scale;
      }
      const double error = wtt - wtm * wtm / wmm;
      if (!(wmm > 0) || !(error < least)) return;
      least = error;
      best = static_cast<float>(wtm / wmm);
    };
    for (int trial = kFirst; trial <= kLast; ++trial) {
      const float part = 1 + kStep * static_cast<float>(trial);
      take(largest / (part * Book::multiplier(Book::kMost)));
      if constexpr (Book::kHasSign) take(largest / (part * Book::multiplier(Book::kLeast)));
    }
    return rounded_half(best);
  }

  /// Chooses each group's whole number under a block's unit; returns the error.
  double choose_wholes(Block& block) const {
    double sum = 0;
    for (size_t g = 0; g < kGroups; ++g) {
      const int near = Book::whole_of(fits_[g].scale / block.d);
      double least = -1;
      // The nearest whole number, and its neighbours, which may suit the entries better.
      for (int whole = std::max(Book::kLeast, near - 1); whole <= std::min(Book::kMost, near + 1);
           ++whole) {
        const double error =
            scale_error<Book>(values(g), weights(g), block.d * Book::multiplier(whole));
        if (least >= 0 && error >= least) continue;
        least = error;
        block.wholes[g] = whole;
      }
      sum += least;
    }
    return sum;
  }

  float fit_unit(const Block& block) const {
    double wxe = 0, wee = 0;
    for (size_t g = 0; g < kGroups; ++g) {
      std::array<float, static_cast<size_t>(Book::kWidth)> entries;
      Book::nearest(values(g), weights(g), block.scale(g), entries.data());
      const double m = Book::multiplier(block.wholes[g]);
      for (size_t i = 0; i < entries.size(); ++i) {
        wxe += weights(g)[i] * m * entries[i] * values(g)[i];
        wee += weights(g)[i] * m * entries[i] * m * entries[i];
      }
    }
    return wee > 0 ? rounded_half(static_cast<float>(wxe / wee)) : 0;
  }

  const float* values_;
  const float* weights_;
  std::array<ScaleFit, kGroups> fits_{};
};

/// Whole numbers of 2 * `levels` steps, as Q4_0, Q5_0, Q3_K and Q6_K have them: from -levels to
/// levels - 1; the beginnings take the largest size for either end.
template <int64_t width, int levels>
struct WholeNumbers {
  static constexpr int64_t kWidth = width;
  static constexpr bool kHasSign = true;
  static constexpr int kBeginnings = 30;
  static float beginning(int i) {
    constexpr int kOfLower = 19;
    const int step = i < kOfLower ? i - kOfLower / 2 : i - kOfLower - 5;
    const auto end = static_cast<float>(i < kOfLower ? -levels : levels - 1);
    return end + 0.1F * static_cast<float>(step);
  }
  static void nearest(const float* values, const float*, float scale, float* entries) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (int64_t i = 0; i < kWidth; ++i) {
      entries[i] = nearest_whole(values[i] * inverse, -levels, levels - 1);
    }
  }
};

/// Scales of signed whole numbers, from -half to half - 1.
template <typename Entries, int half>
struct WithWholeScales : Entries {
  static constexpr int kLeast = -half, kMost = half - 1;
  static float multiplier(int whole) { return static_cast<float>(whole); }
  static int whole_of(float multiplier) { return nearest_level(multiplier, kLeast, kMost); }
};

}  // namespace vitrine::quant
