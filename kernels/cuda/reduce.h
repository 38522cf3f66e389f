// SPDX-License-Identifier: Apache-2.0
// The CPU kernels' 16 lanes within a warp (docs/numerics.md, "Common rules"), and vectors of four.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_math.h"

namespace vitrine::kernels::cuda {

inline constexpr int kLanes = 16;  // of a dot or sum
inline constexpr int kVector = 4;  // floats of a 16-byte access

/// The tree over the 16 values of each half of a warp; every lane gets its half's sum.
VITRINE_DEVICE float add_lanes(float lane) {
  for (int width = kLanes / 2; width > 0; width /= 2) lane = lane + shuffle_xor(lane, width);
  return lane;
}

/// The 16-lane dot x * x of n floats in shared memory, in the order of the CPU kernels. Both halves
/// of the warp compute it. n / 16 dependent FMAs: 0.3 us for 2,048, which that order costs.
VITRINE_DEVICE float sum_of_squares(const float* shared_x, int64_t n) {
  float lane = 0.0f;
#pragma unroll 16
  for (int64_t i = lane_index() % kLanes; i < n; i += kLanes) {
    lane = fma_rn(shared_x[i], shared_x[i], lane);
  }
  return add_lanes(lane);
}

/// The sum of squares of a row in global memory: kAhead loads of a lane are under way at once.
VITRINE_DEVICE float sum_of_squares_far(const float* row, int64_t n) {
  constexpr int kAhead = 32;
  float lane = 0.0f;
  for (int64_t first = lane_index() % kLanes; first < n; first += kLanes * kAhead) {
    float values[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t i = first + int64_t{j} * kLanes;
      values[j] = i < n ? row[i] : 0.0f;  // 0 changes no bit of a sum of squares
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) lane = fma_rn(values[j], values[j], lane);
  }
  return add_lanes(lane);
}

VITRINE_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_float(-x)); }

/// Elements [i, i + 4) of a row of n (i a multiple of 4), zeros past its end. `whole`: n is a
/// multiple of 4 and the row begins at a multiple of 16 bytes.
VITRINE_DEVICE void load_floats(const float* row, int64_t i, int64_t n, bool whole,
                                float (&out)[kVector]) {
  if (whole && i < n) {
    const Words4 words = load16(row + i);
    out[0] = bits_float(words.x);
    out[1] = bits_float(words.y);
    out[2] = bits_float(words.z);
    out[3] = bits_float(words.w);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) out[j] = i + j < n ? row[i + j] : 0.0f;
  }
}

VITRINE_DEVICE void store_floats(float* row, int64_t i, int64_t n, bool whole,
                                 const float (&values)[kVector]) {
  if (whole && i < n) {
    store16(row + i, {float_bits(values[0]), float_bits(values[1]), float_bits(values[2]),
                      float_bits(values[3])});
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (i + j < n) row[i + j] = values[j];
    }
  }
}

/// What load_floats and store_floats may take as `whole`.
inline bool is_whole(int64_t n, const void* base) {
  return n % kVector == 0 && reinterpret_cast<uintptr_t>(base) % 16 == 0;
}

}  // namespace vitrine::kernels::cuda
