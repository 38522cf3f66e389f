// SPDX-License-Identifier: Apache-2.0
// Activation quantization with one scale for a row, in loops that a compiler turns into vectors.
// Each table compiles them for its own instructions.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "cpu_kernels.h"
#include "exp_constants.h"

namespace vitrine::kernels {
namespace {

/// The bits of the largest |x|, which order as their numbers do: those of a NaN are above
/// infinity's.
__attribute__((always_inline)) inline int32_t largest_bits(const float* x, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/// Rounds x * factor, and returns the sum of what that gives.
__attribute__((always_inline)) inline int32_t round_numbers(const float* x, int64_t n, float factor,
                                                            int8_t* values) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * factor;
    const float low = scaled < -127.0f ? -127.0f : scaled;
    const float within = low > 127.0f ? 127.0f : low;
    const int32_t number =
        std::bit_cast<int32_t>(within + kRoundMagic) - std::bit_cast<int32_t>(kRoundMagic);
    values[i] = static_cast<int8_t>(number);
    sum += number;
  }
  return sum;
}

/// CpuKernels::quantize_whole_row.
__attribute__((always_inline)) inline void quantize_whole(const float* x, int64_t n,
                                                          int32_t group_size, float given,
                                                          int8_t* values, float* scales,
                                                          GroupSum* sums) {
  constexpr int32_t kInfinity = 0x7f800000;
  const int64_t groups = group_count(n, group_size);
  const int32_t bits = largest_bits(x, n);
  const auto largest = std::bit_cast<float>(bits);
  const float factor = given > 0.0f ? 1.0f / given : 127.0f / largest;
  float scale = given > 0.0f ? given : largest / 127.0f;
  if (bits >= kInfinity) scale = bits > kInfinity ? NAN : INFINITY;
  if (factor == INFINITY) scale = 0.0f;
  if (bits >= kInfinity || factor == INFINITY) {
    std::memset(values, 0, static_cast<size_t>(padded_cols(n)));
    for (int64_t g = 0; g < groups; ++g) {
      scales[g] = scale;
      sums[g] = {0, 0, 0.0f * scale};
    }
    return;
  }
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = g * group_size, left = n - begin, half = group_size / 2;
    const int64_t count = left < group_size ? left : group_size;
    const int64_t firsts = count < half ? count : half;
    const int32_t first = round_numbers(x + begin, firsts, factor, values + begin);
    const int32_t whole =
        first + round_numbers(x + begin + firsts, count - firsts, factor, values + begin + firsts);
    scales[g] = scale;
    sums[g] = {static_cast<int16_t>(whole), static_cast<int16_t>(first),
               static_cast<float>(whole) * scale};
  }
  std::memset(values + n, 0, static_cast<size_t>(padded_cols(n) - n));
}

}  // namespace
}  // namespace vitrine::kernels
