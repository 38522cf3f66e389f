// SPDX-License-Identifier: Apache-2.0
// What a token sees where there is a window, and what a head begins from where it has a sink
// (docs/numerics.md, "Windows" and "Sinks").
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {

/// The first position that a token sees.
VITRINE_DEVICE int32_t first_seen(int32_t window, int32_t position) {
  return window == 0 || position < window ? 0 : position - window + 1;
}

/// Positions begin … end - 1 of a block, counted from its start; none where `end` is not behind
/// `begin`.
struct SeenPositions {
  int begin, end;
  VITRINE_DEVICE_METHOD bool any() const { return begin < end; }
  VITRINE_DEVICE_METHOD bool has(int j) const { return j >= begin && j < end; }
};
/// Those of the block from `start` on that a token sees; of position -1, which is no token: none.
VITRINE_DEVICE SeenPositions seen_positions(int32_t window, int32_t position, int32_t start) {
  const int32_t left = position + 1 - start;
  const int32_t before = first_seen(window, position) - start;
  return {before < 0 ? 0 : before, left < kAttentionPositions ? left : kAttentionPositions};
}

/// Whether a token sees something of the range that begins there.
VITRINE_DEVICE bool sees_range(int32_t window, int32_t position, int32_t begin) {
  return position >= begin && first_seen(window, position) < begin + kAttentionRange;
}
/// Whether it sees nothing before that range.
VITRINE_DEVICE bool begins_in_range(int32_t window, int32_t position, int32_t begin) {
  return first_seen(window, position) >= begin;
}

/// Where the walk over a range begins for tokens of which the first is at `position`: at their
/// first block.
VITRINE_DEVICE int32_t walk_start(int32_t window, int32_t position, int32_t begin) {
  const int32_t block = first_seen(window, position) / kAttentionPositions * kAttentionPositions;
  return block > begin ? block : begin;
}

/// A head's running maximum and sum, at the beginning of a range.
struct FirstState {
  float max, sum;
};
VITRINE_DEVICE FirstState first_state(const AttentionArguments& a, int head, int32_t position,
                                      int32_t begin) {
  if (a.sinks == nullptr || !begins_in_range(a.window, position, begin)) {
    return {bits_float(0xff800000u), 0.0f};
  }
  return {a.sinks[head], 1.0f};
}

}  // namespace vitrine::kernels::cuda
