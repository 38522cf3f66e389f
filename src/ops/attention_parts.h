// SPDX-License-Identifier: Apache-2.0
// What every form of attention does with its tokens.
#pragma once

#include <algorithm>

#include "ops/op.h"

namespace vitrine::ops {

/// Rotates the first `rotary` elements of a head: halves, or neighbours.
inline void rotate_head(const kernels::CpuKernels& kernel, float* head, const float* cos,
                        const float* sin, int64_t rotary, bool rotates_neighbours) {
  if (!rotates_neighbours) return kernel.rope(head, cos, sin, static_cast<int32_t>(rotary));
  for (int64_t i = 0; i < rotary / 2; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1];
    head[2 * i] = x * cos[i] - y * sin[i];
    head[2 * i + 1] = y * cos[i] + x * sin[i];
  }
}

/// Returns where the tokens from `begin` on that follow each other in one sequence end, at `end`
/// at most.
inline int64_t end_of_sequence(const StepState& step, int64_t begin, int64_t end) {
  int64_t next = begin + 1;
  while (next < end && step.block_tables[next] == step.block_tables[begin] &&
         step.positions[next] == step.positions[next - 1] + 1) {
    ++next;
  }
  return next;
}

/// Calls `write(block, offset)` for each place where the token's key and value go.
template <typename Write>
void for_each_place(const StepState& step, int64_t token, const KvLayer& kv, const Write& write) {
  const int32_t position = step.positions[token], offset = position % kv.view.block_size;
  const int64_t entry = kv.table_offset + position / kv.view.block_size;
  write(step.block_tables[token][entry], offset);
  if (step.kv_copies.empty()) return;
  const auto copies =
      std::ranges::equal_range(step.kv_copies, static_cast<int32_t>(token), {}, &KvCopy::token);
  for (const KvCopy& copy : copies) write(copy.block_table[entry], offset);
}

}  // namespace vitrine::ops
