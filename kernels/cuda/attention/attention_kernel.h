// SPDX-License-Identifier: Apache-2.0
// Included by attention_f32.cu, _f16.cu and _bf16.cu, each of which instantiates launch_attention.
#pragma once

#include "kernels/cuda/attention/attention_block.h"
#include "kernels/cuda/attention/attention_shapes.h"

namespace vitrine::kernels::cuda {

/// The tile's queries into shared memory, and the empty state of each row.
template <typename Shape>
VITRINE_DEVICE void begin_rows(const AttentionArguments& a, const AttentionWork& work,
                               const AttentionMemory& memory) {
  const int head_dim = a.kv.head_dim;
  if (thread_index() < Shape::kQueries) {
    const int q = thread_index();
    const int token = q / work.heads;
    const bool valid =
        token < work.tile.count &&
        work.first_head + q % work.heads < (work.kv_head + 1) * (a.heads / a.kv.kv_heads);
    memory.position[q] = valid ? a.positions[work.tile.first_token + token] : -1;
    memory.max[q] = bits_float(0xff800000u);
    memory.sum[q] = 0.0f;
  }
  sync_block();
  for (int i = thread_index(); i < Shape::kQueries * head_dim; i += kAttentionThreads) {
    const int q = i / head_dim;
    const int64_t token = work.tile.first_token + q / work.heads;
    const int64_t head = work.first_head + q % work.heads;
    memory.queries[i] = memory.position[q] < 0
                            ? 0.0f
                            : a.queries[(token * a.heads + head) * head_dim + i % head_dim];
  }
}

// Grid: (tile, kv head and part of its group, range).
template <typename Shape>
VITRINE_KERNEL(kAttentionThreads, Shape::kDims == 1 ? 4 : 3)
void attention_kernel(const AttentionArguments a) {
  const int group = a.heads / a.kv.kv_heads;
  AttentionWork work;
  work.tile = a.tiles[block_x()];
  work.heads = group < Shape::kQueries ? group : Shape::kQueries;
  const int parts = divide_up(group, work.heads);
  work.kv_head = block_y() / parts;
  work.first_head = work.kv_head * group + block_y() % parts * work.heads;
  work.begin = block_z() * kAttentionRange;
  work.last = -1;
  work.first = 0x7fffffff;
  for (int i = 0; i < work.tile.count; ++i) {
    const int32_t position = a.positions[work.tile.first_token + i];
    work.last = position > work.last ? position : work.last;
    work.first = position < work.first ? position : work.first;
  }
  if (work.last < work.begin) return;
  work.table = a.blocks.tables + a.blocks.sequences[work.tile.first_token] * a.blocks.stride;
  const AttentionMemory memory = divide_memory<Shape>(a.kv.head_dim);
  begin_rows<Shape>(a, work, memory);

  const int32_t end =
      work.last + 1 < work.begin + kAttentionRange ? work.last + 1 : work.begin + kAttentionRange;
  const int key_stride = Shape::key_stride(a.kv.head_dim);
  const int value_stride = a.kv.head_dim * Shape::kBytes;
  copy_positions<Shape>(a, work, a.kv.keys, work.begin, memory.keys, key_stride);
  copy_async_commit();
  copy_positions<Shape>(a, work, a.kv.values, work.begin, memory.values, value_stride);
  copy_async_commit();
  float out[Shape::kQueries][Shape::kDims] = {};
  for (int32_t start = work.begin; start < end; start += kAttentionPositions) {
    const int32_t next = start + kAttentionPositions;
    copy_async_wait<1>();
    sync_block();  // the keys and, at first, the queries are here
    score_positions<Shape>(a, memory);
    sync_block();
    if (next < end) copy_positions<Shape>(a, work, a.kv.keys, next, memory.keys, key_stride);
    copy_async_commit();
    update_softmax<Shape>(memory, start);
    copy_async_wait<1>();
    sync_block();  // the values and the exponentials are here
    if (work.first >= next - 1) {
      add_values<Shape, true>(a, memory, start, out);
    } else {
      add_values<Shape, false>(a, memory, start, out);
    }
    sync_block();
    if (next < end) copy_positions<Shape>(a, work, a.kv.values, next, memory.values, value_stride);
    copy_async_commit();
  }
  copy_async_wait<0>();
  write_rows<Shape>(a, work, memory, out);
}

template <FloatFormat kFormat>
Status launch_attention(const AttentionArguments& a, AttentionQueries queries, Stream stream) {
  const int group = a.heads / a.kv.kv_heads;
  const auto start = [&]<int kQueries, int kDims>() {
    using Shape = AttentionShape<kFormat, kQueries, kDims>;
    const int parts = divide_up(group, group < kQueries ? group : kQueries);
    const Dim3 grid = {static_cast<uint32_t>(a.tile_count),
                       static_cast<uint32_t>(a.kv.kv_heads * parts),
                       static_cast<uint32_t>(a.ranges)};
    return launch(attention_kernel<Shape>, grid, kAttentionThreads,
                  static_cast<size_t>(Shape::shared_bytes(a.kv.head_dim)), stream, a);
  };
  const bool wide = a.kv.head_dim > kAttentionThreads;
  if (queries == AttentionQueries::k8) {
    return wide ? start.template operator()<8, 2>() : start.template operator()<8, 1>();
  }
  return wide ? start.template operator()<16, 2>() : start.template operator()<16, 1>();
}

}  // namespace vitrine::kernels::cuda
