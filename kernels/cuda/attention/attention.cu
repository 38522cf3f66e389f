// SPDX-License-Identifier: Apache-2.0
// Checks, the merge of ranges, and the choice of a kernel.
#include "kernels/cuda/attention/attention_block.h"
#include "kernels/cuda/attention/attention_shapes.h"
#include "kernels/cuda/attention/window.h"

namespace vitrine::kernels::cuda {
namespace {

// Grid: (tile, head, token of the tile). Bytes: head_dim + 2 floats for each range that the token
// sees; nothing for a token of one range. All threads carry the same maximum and sum.
VITRINE_KERNEL(kAttentionThreads)
void merge_ranges_kernel(const AttentionArguments a) {
  const int64_t token = a.tiles[block_x()].first_token + block_z();
  if (block_z() >= a.tiles[block_x()].count) return;
  const int head = block_y(), head_dim = a.kv.head_dim;
  const int32_t position = a.positions[token];
  if (position < kAttentionRange) return;
  const int begin = first_seen(a.window, position) / kAttentionRange;
  const int ranges = position / kAttentionRange + 1;
  const int64_t at = (token * a.heads + head) * head_dim;
  for (int d = thread_index(); d < head_dim; d += kAttentionThreads) {
    const float* first = partial_at(a, token, head, begin);
    float value = first[d], max = first[head_dim], sum = first[head_dim + 1];
    for (int range = begin + 1; range < ranges; ++range) {
      const float* next = partial_at(a, token, head, range);
      const float new_max = next[head_dim] > max ? next[head_dim] : max;
      const float own = exp_float(max - new_max);
      const float other = exp_float(next[head_dim] - new_max);
      sum = sum * own + next[head_dim + 1] * other;
      value = value * own + next[d] * other;
      max = new_max;
    }
    store_attention(a, at + d, value / sum);
  }
}

const char* problem_of(const AttentionArguments& a) {
  if (a.kv.kv_heads <= 0 || a.heads <= 0 || a.heads % a.kv.kv_heads != 0) {
    return "attention: heads, expected a multiple of kv_heads";
  }
  if (a.kv.head_dim <= 0 || a.kv.head_dim > kMaxHeadDim ||
      a.kv.head_dim * kv_element_bytes(a.kv) % 16 != 0) {
    return "attention: head_dim, expected at most 256 and whole vectors of 16 bytes";
  }
  if (a.window < 0) return "attention: window, expected 0 or more";
  if (a.tile_count <= 0 || a.ranges <= 0) return "attention: no tiles";
  if (a.ranges > 1 && a.scratch == nullptr) return "attention: several ranges need scratch";
  return nullptr;
}

}  // namespace

Status attention(const AttentionArguments& a, AttentionQueries queries, Stream stream) {
  if (const char* problem = problem_of(a)) return refuse(problem);
  Status status;
  if (a.kv.is_integers) {
    status = launch_attention_i16(a, queries, stream);
    if (!status.ok()) return status;
    return merge_attention_ranges(a, attention_tile_tokens(a.heads, a.kv.kv_heads, queries),
                                  stream);
  }
  switch (a.kv.format) {
    case FloatFormat::kF32: status = launch_attention<FloatFormat::kF32>(a, queries, stream); break;
    case FloatFormat::kF16: status = launch_attention<FloatFormat::kF16>(a, queries, stream); break;
    case FloatFormat::kBF16:
      status = launch_attention<FloatFormat::kBF16>(a, queries, stream);
      break;
    case FloatFormat::kE4M3: return refuse("attention: keys in float32, float16 or bf16");
  }
  if (!status.ok()) return status;
  return merge_attention_ranges(a, attention_tile_tokens(a.heads, a.kv.kv_heads, queries), stream);
}

Status attention_mma(const AttentionArguments& a, MmaRows rows, Stream stream) {
  if (const char* problem = problem_of(a)) return refuse(problem);
  if (a.kv.is_integers || a.kv.format == FloatFormat::kF32) {
    return refuse("attention_mma: keys in 16 bits of a float");
  }
  if (!takes_attention_mma(a.heads, a.kv.kv_heads, a.kv.head_dim)) {
    return refuse(
        "attention_mma: heads, expected a head_dim of 64 or 128 and a group of 1, 2, 4, 8 or 16 "
        "query heads");
  }
  const Status status = a.kv.format == FloatFormat::kF16
                            ? launch_attention_mma<FloatFormat::kF16>(a, rows, stream)
                            : launch_attention_mma<FloatFormat::kBF16>(a, rows, stream);
  if (!status.ok()) return status;
  return merge_attention_ranges(a, attention_mma_tile_tokens(a.heads, a.kv.kv_heads, rows), stream);
}

Status merge_attention_ranges(const AttentionArguments& a, int32_t tile_tokens, Stream stream) {
  if (a.ranges == 1) return {};
  const Dim3 grid = {static_cast<uint32_t>(a.tile_count), static_cast<uint32_t>(a.heads),
                     static_cast<uint32_t>(tile_tokens)};
  return launch(merge_ranges_kernel, grid, kAttentionThreads, 0, stream, a);
}

}  // namespace vitrine::kernels::cuda
