// SPDX-License-Identifier: Apache-2.0
// Device functions that make int8 records, for every kernel whose output is quantized.
#pragma once

#include "kernels/cpu/exp_constants.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/activation_rows.h"

namespace vitrine::kernels::cuda {

/// What a group's lanes agree on.
struct GroupRange {
  float max = 0.0f;  // of the magnitudes
  uint32_t has_nan = 0;
};
VITRINE_DEVICE GroupRange find_range(const float (&x)[4], int group_lanes) {
  GroupRange range;
  for (int i = 0; i < 4; ++i) {
    const float magnitude = absolute(x[i]);
    range.has_nan |= magnitude != magnitude ? 1u : 0u;
    range.max = magnitude > range.max ? magnitude : range.max;
  }
  for (int step = 1; step < 32; step *= 2) {
    const float other_max = shuffle_xor(range.max, step);
    const uint32_t other_nan = shuffle_xor(range.has_nan, step);
    if (step < group_lanes) {
      range.max = other_max > range.max ? other_max : range.max;
      range.has_nan |= other_nan;
    }
  }
  return range;
}

/// Factor 0: max is infinite. Factor infinite: max is 0, or so small that `largest` / max
/// overflows.
VITRINE_DEVICE bool is_plain_range(const GroupRange& range, float factor) {
  return range.has_nan == 0 && factor != 0.0f && factor != bits_float(0x7f800000u);
}

VITRINE_DEVICE float range_scale(const GroupRange& range, float factor, float largest) {
  if (range.has_nan != 0) return bits_float(0x7fc00000u);
  if (factor == 0.0f) return bits_float(0x7f800000u);
  return is_plain_range(range, factor) ? range.max / largest : 0.0f;
}

/// One record from 128 columns that a warp holds, four a lane (0 where there is none); lanes of one
/// group meet by shuffles. `record` is 16-byte aligned.
VITRINE_DEVICE void quantize_record(const float (&x)[4], int32_t group_size, uint8_t* record) {
  const int lane = lane_index();
  const int group_lanes = group_size / 4;
  const GroupRange range = find_range(x, group_lanes);
  const float factor = 127.0f / range.max;
  const bool is_plain = is_plain_range(range, factor);
  GroupFactor beside = {range_scale(range, factor, 127.0f), 0};
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const float rounded = (x[i] * factor + kRoundMagic) - kRoundMagic;
    const float low = rounded < -127.0f ? -127.0f : rounded;
    const float clamped = low > 127.0f ? 127.0f : low;
    const int32_t q = is_plain ? static_cast<int32_t>(clamped) : 0;
    word |= (static_cast<uint32_t>(q) & 255u) << (8 * i);
    beside.sum += q;
  }
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = shuffle_xor(beside.sum, step);
    if (step < group_lanes) beside.sum += other;
  }
  reinterpret_cast<uint32_t*>(record)[lane] = word;
  auto* factors = reinterpret_cast<GroupFactor*>(record + kRecordCols);
  if (lane % group_lanes == 0) factors[lane / group_lanes] = beside;
  if (lane >= kRecordCols / group_size && lane < 4) factors[lane] = {0.0f, 0};
}

/// Quantizes a record to E4M3 floats, all 128 columns one group.
VITRINE_DEVICE void quantize_record_e4m3(const float (&x)[4], uint8_t* record) {
  const int lane = lane_index();
  const GroupRange range = find_range(x, kWarp);
  const float factor = 448.0f / range.max;
  const bool is_plain = is_plain_range(range, factor);
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = is_plain ? narrow_e4m3(x[i] * factor) : 0;
    word |= bits << (8 * i);
  }
  reinterpret_cast<uint32_t*>(record)[lane] = word;
  auto* factors = reinterpret_cast<GroupFactor*>(record + kRecordCols);
  if (lane < 4) factors[lane] = {lane == 0 ? range_scale(range, factor, 448.0f) : 0.0f, 0};
}

}  // namespace vitrine::kernels::cuda
