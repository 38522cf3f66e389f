// SPDX-License-Identifier: Apache-2.0
// Rows of floats as integers and a scale, with the CPU's bits (docs/numerics.md, "Integer keys and
// values").
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/exp_constants.h"
#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {

/// Numbers are round(x * factor), and mean number * scale.
struct IntegerScale {
  float factor;  // 0: all numbers are 0
  float scale;
};

/// The scale of a row whose largest magnitude is given; `has_nan`: besides, one of its elements is
/// NaN.
VITRINE_DEVICE IntegerScale integer_scale(float magnitude, bool has_nan, int32_t largest) {
  const auto limit = static_cast<float>(largest);
  if (has_nan) return {0.0f, bits_float(0x7fc00000u)};
  const float factor = limit / magnitude;
  if (!(factor > 0.0f)) return {0.0f, magnitude};                 // an infinity
  if (!(factor <= bits_float(0x7f7fffffu))) return {0.0f, 0.0f};  // as good as nothing
  return {factor, magnitude / limit};
}

VITRINE_DEVICE int32_t number_of(float x, float factor) {
  if (factor == 0.0f) return 0;  // then x may be no number that fits
  return static_cast<int32_t>((x * factor + kRoundMagic) - kRoundMagic);
}

/// The scale of a key, value or query of n elements. A whole warp calls it, and all lanes get it.
VITRINE_DEVICE IntegerScale scale_of_row(const float* x, int32_t n) {
  float magnitude = 0.0f;
  int32_t has_nan = 0;
  for (int32_t d = lane_index(); d < n; d += kWarp) {
    const float own = absolute(x[d]);
    magnitude = own > magnitude ? own : magnitude;
    has_nan |= own != own ? 1 : 0;
  }
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const float other = shuffle_xor(magnitude, width);
    magnitude = other > magnitude ? other : magnitude;
    has_nan |= shuffle_xor(has_nan, width);
  }
  return integer_scale(magnitude, has_nan != 0, largest_kv_number(n));
}

}  // namespace vitrine::kernels::cuda
