// SPDX-License-Identifier: Apache-2.0
// The joint's exponentials and logarithms: src/federation/row_math.h on the device, the same
// operations in the same order (Moshier's Cephes), none of them an FMA.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/federation/joint.h"

namespace vitrine::kernels::cuda {

inline constexpr int kJointThreads = 256;
inline constexpr int kJointPerLane = 4;
static_assert(kJointBlockEntries == kJointThreads * kJointPerLane);

/// Below this exponent an exponential counts as it does there.
inline constexpr float kJointExpLow = -87.0f;

/// exp(x) for kJointExpLow <= x <= 0, or NaN.
VITRINE_DEVICE float joint_exp(float x) {
  if (x != x) return x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float n = (x * 1.44269504088896341f + kRound) - kRound;
  x -= n * 0.693359375f;
  x -= n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * x + 1.3981999507e-3f;
  p = p * x + 8.3334519073e-3f;
  p = p * x + 4.1665795894e-2f;
  p = p * x + 1.6666665459e-1f;
  p = p * x + 5.0000001201e-1f;
  p = p * (x * x) + x + 1.0f;
  return p * bits_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

/// log(x) for a normal x above 0, or NaN.
VITRINE_DEVICE float joint_log(float x) {
  constexpr int32_t kRootHalf = 0x3F3504F3;
  const int32_t bits = static_cast<int32_t>(float_bits(x)) - kRootHalf;
  const float m = bits_float(static_cast<uint32_t>((bits & 0x007FFFFF) + kRootHalf)) - 1.0f;
  const auto e = static_cast<float>(bits >> 23);
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * m * z;
  y += -2.12194440e-4f * e;
  y -= 0.5f * z;
  const float log = (m + y) + 0.693359375f * e;
  return x == x ? log : x;
}

/// std::max: of a NaN and a number the first argument.
VITRINE_DEVICE float joint_max(float a, float b) { return a < b ? b : a; }

/// exp(logit - its block's largest), 0 all over a block without one.
VITRINE_DEVICE float joint_exponential(float logit, float max) {
  if (max == bits_float(0xff800000u)) return 0.0f;
  return joint_exp(joint_max(logit - max, kJointExpLow));
}

struct JointSumShared {
  float exponentials[kJointBlockEntries];
  double lanes[8];
  float max[kJointThreads / kWarp];
  uint32_t has_nan[kJointThreads / kWarp];
};

/// All threads of a block: what its `count` entries, kJointPerLane consecutive ones a thread, come
/// to, into `out`. The sum is of eight lanes (entry mod 8), which are added in order.
VITRINE_DEVICE void sum_joint_block(JointSumShared& shared, const float (&values)[kJointPerLane],
                                    int64_t count, JointSum* out) {
  constexpr int kSumLanes = 8;
  const int64_t first = thread_index() * kJointPerLane;
  const float lowest = bits_float(0xff800000u);
  float max = lowest;
  bool has_nan = false;
#pragma unroll
  for (int j = 0; j < kJointPerLane; ++j) {
    if (first + j >= count) continue;
    has_nan = has_nan || values[j] != values[j];
    max = values[j] > max ? values[j] : max;
  }
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const float other = shuffle_xor(max, width);
    max = other > max ? other : max;  // of two zeros either: no result shows which
  }
  const uint32_t nans = ballot(has_nan);
  if (lane_index() == 0) {
    shared.max[warp_index()] = max;
    shared.has_nan[warp_index()] = nans;
  }
  sync_block();
  max = lowest;
  has_nan = false;
  for (int warp = 0; warp < kJointThreads / kWarp; ++warp) {
    max = shared.max[warp] > max ? shared.max[warp] : max;
    has_nan = has_nan || shared.has_nan[warp] != 0;
  }
#pragma unroll
  for (int j = 0; j < kJointPerLane; ++j) {
    shared.exponentials[first + j] = joint_exponential(values[j], max);
  }
  sync_block();
  if (thread_index() < kSumLanes) {
    double sum = 0;
#pragma unroll 8
    for (int64_t i = thread_index(); i < count; i += kSumLanes) {
      sum += static_cast<double>(shared.exponentials[i]);
    }
    shared.lanes[thread_index()] = sum;
  }
  sync_block();
  if (thread_index() != 0) return;
  double sum = 0;
  for (const double lane : shared.lanes) sum += lane;
  if (max == lowest) sum = has_nan ? static_cast<double>(bits_float(0x7fc00000u)) : 0.0;
  *out = {sum, max};
}

}  // namespace vitrine::kernels::cuda
