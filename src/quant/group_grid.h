// SPDX-License-Identifier: Apache-2.0
// The numbers that a group of weights may become, as compressed-tensors' `calculate_qparams` lays
// them out, for whoever chooses among them otherwise than by rounding to nearest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vitrine/core.h"

namespace vitrine::quant {

/// Rounds |value| < 2^22 half to even, whatever rounding mode the host has set.
inline float round_half_even(float value) {
  const float below = std::floor(value);
  const float rest = value - below;  // exact: |value| is small
  if (rest < 0.5f) return below;
  if (rest > 0.5f) return below + 1.0f;
  return std::fmod(below, 2.0f) == 0.0f ? below : below + 1.0f;
}

/// The range of integers of so many bits.
struct IntegerRange {
  explicit IntegerRange(int bits)
      : lowest(static_cast<float>(-(1 << (bits - 1)))),
        highest(static_cast<float>((1 << (bits - 1)) - 1)) {}
  float lowest, highest;
};

/// The scale and zero point of one group.
struct GroupGrid {
  float scale = 1;
  float zero_point = 0;

  /// Returns the number that stands for a weight, computed in float32.
  float round(float weight, const IntegerRange& range) const {
    return round_half_even(std::clamp(weight / scale + zero_point, range.lowest, range.highest));
  }
  /// Returns what a number stands for.
  float value(float number) const { return (number - zero_point) * scale; }
};

/// Makes the grid of weights from `smallest` (at most 0) to `largest` (at least 0). Each result is
/// rounded to `dtype`, in which the scales are stored; a scale may be infinite.
GroupGrid group_grid(float smallest, float largest, int bits, bool symmetric, DType dtype);

}  // namespace vitrine::quant
