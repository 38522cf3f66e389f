// Device functions that make int8 records, for every kernel whose output is quantized.
#pragma once

#include "kernels/cpu/exp_constants.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/activation_rows.h"

namespace vitrine::kernels::cuda {

/// One record from 128 columns that a warp holds, four a lane (0 where there is none); lanes of one
/// group meet by shuffles. `record` is 16-byte aligned.
VITRINE_DEVICE void quantize_record(const float (&x)[4], int32_t group_size, uint8_t* record) {
  const int lane = lane_index();
  const int group_lanes = group_size / 4;
  float max = 0.0f;
  uint32_t has_nan = 0;
  for (int i = 0; i < 4; ++i) {
    const float magnitude = absolute(x[i]);
    has_nan |= magnitude != magnitude ? 1u : 0u;
    max = magnitude > max ? magnitude : max;
  }
  for (int step = 1; step < 32; step *= 2) {
    const float other_max = shuffle_xor(max, step);
    const uint32_t other_nan = shuffle_xor(has_nan, step);
    if (step < group_lanes) {
      max = other_max > max ? other_max : max;
      has_nan |= other_nan;
    }
  }
  const float infinity = bits_float(0x7f800000u);
  const float factor = 127.0f / max;
  // Factor 0: max is infinite. Factor infinite: max is 0, or so small that 127 / max overflows.
  const bool is_plain = has_nan == 0 && factor != 0.0f && factor != infinity;
  GroupFactor beside = {is_plain ? max / 127.0f : 0.0f, 0};
  if (factor == 0.0f) beside.scale = infinity;
  if (has_nan != 0) beside.scale = bits_float(0x7fc00000u);
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

}  // namespace vitrine::kernels::cuda
