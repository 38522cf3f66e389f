// SPDX-License-Identifier: Apache-2.0
// Included by attention_f32.cu, _f16.cu and _bf16.cu, each of which instantiates launch_attention.
#pragma once

#include "kernels/cuda/attention/attention_block.h"
#include "kernels/cuda/attention/attention_shapes.h"

namespace vitrine::kernels::cuda {

/// The tile's queries into shared memory, and the first state of each row.
template <typename Shape>
VITRINE_DEVICE void begin_rows(const AttentionArguments& a, const AttentionWork& work,
                               const AttentionMemory& memory) {
  const int head_dim = a.kv.head_dim;
  if (thread_index() < Shape::kQueries) begin_row(a, work, memory, thread_index());
  sync_block();
  for (int i = thread_index(); i < Shape::kQueries * head_dim; i += kAttentionThreads) {
    const int q = i / head_dim;
    memory.queries[i] = memory.position[q] < 0 ? 0.0f : query_of(a, work, q)[i % head_dim];
  }
}

// Grid: as find_work says.
template <typename Shape>
VITRINE_KERNEL(kAttentionThreads, Shape::kDims == 1 ? 4 : 3)
void attention_kernel(const AttentionArguments a) {
  AttentionWork work;
  if (!find_work<Shape>(a, work)) return;
  const AttentionMemory memory = divide_memory<Shape>(a.kv.head_dim);
  begin_rows<Shape>(a, work, memory);

  const int32_t end = work.end;
  const int key_stride = Shape::key_stride(a.kv.head_dim);
  const int value_stride = a.kv.head_dim * Shape::kBytes;
  copy_positions<Shape>(a, work, a.kv.keys, work.start, memory.keys, key_stride);
  copy_async_commit();
  copy_positions<Shape>(a, work, a.kv.values, work.start, memory.values, value_stride);
  copy_async_commit();
  float out[Shape::kQueries][Shape::kDims] = {};
  for (int32_t start = work.start; start < end; start += kAttentionPositions) {
    const int32_t next = start + kAttentionPositions;
    copy_async_wait<1>();
    sync_block();  // the keys and, at first, the queries are here
    score_positions<Shape>(a, memory);
    sync_block();
    if (next < end) copy_positions<Shape>(a, work, a.kv.keys, next, memory.keys, key_stride);
    copy_async_commit();
    update_softmax<Shape>(memory, a.window, start);
    copy_async_wait<1>();
    sync_block();  // the values and the exponentials are here
    if (work.first >= next - 1 && first_seen(a.window, work.last) <= start) {
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
  return with_attention_shape(a, queries, [&]<int kQueries, int kDims>(Dim3 grid) {
    using Shape = AttentionShape<kFormat, kQueries, kDims>;
    return launch(attention_kernel<Shape>, grid, kAttentionThreads,
                  static_cast<size_t>(Shape::shared_bytes(a.kv.head_dim)), stream, a);
  });
}

}  // namespace vitrine::kernels::cuda
