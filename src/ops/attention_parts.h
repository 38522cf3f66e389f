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

/// Calls `use(table)` for each block table that has the token's position.
template <typename Use>
void for_each_table(const StepState& step, int64_t token, const Use& use) {
  use(step.block_tables[token]);
  if (step.kv_copies.empty()) return;
  const auto copies =
      std::ranges::equal_range(step.kv_copies, static_cast<int32_t>(token), {}, &KvCopy::token);
  for (const KvCopy& copy : copies) use(copy.block_table);
}

/// Calls `write(block, offset)` for each place where the token's key and value go.
template <typename Write>
void for_each_place(const StepState& step, int64_t token, const KvLayer& kv, const Write& write) {
  const int32_t position = step.positions[token], offset = position % kv.view.block_size;
  const int64_t first = kv.view.tiles != nullptr ? kv.open_offset : kv.table_offset;
  const int64_t entry = first + position / kv.view.block_size;
  for_each_table(step, token, [&](const int32_t* table) { write(table[entry], offset); });
}

/// Closes a kv head's block that the token's position is the last of, wherever it stands.
inline void close_blocks(const StepState& step, int64_t token, const KvLayer& kv, int32_t kv_head) {
  const int64_t entry = step.positions[token] / kv.view.block_size;
  for_each_table(step, token, [&](const int32_t* table) {
    kv.kernels.close(kv.view, table[kv.open_offset + entry], table[kv.table_offset + entry],
                     kv_head);
  });
}

}  // namespace vitrine::ops
