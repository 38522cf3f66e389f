// SPDX-License-Identifier: Apache-2.0
// Attention on tensor cores, for prefill in 16-bit keys and values: another order, and so another
// name than attention.h's.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace vitrine::kernels::cuda {

/// Blocks of the launch: 16 query rows a warp. A block takes the GQA group of one kv head for as
/// many tokens as fit. The choice changes no result.
enum class MmaRows : int { k16 = 16, k64 = 64 };

/// As attention(), with keys and values in float16 or bf16, a head_dim of 64 or 128, and groups of
/// at most 16 query heads that divide 16. Queries and the exponentials are rounded to the storage's
/// format; sums are the tensor core's float32, blocks of 64 positions and ranges of 1,024 in order.
/// A token's result depends on its position and the ones before it alone, in any tile, batch or
/// chunk, as long as keys and values are finite: an infinity or NaN at a later position of the same
/// tile reaches it, which attention() excludes. A tile holds at most
/// attention_mma_tile_tokens().
Status attention_mma(const AttentionArguments& arguments, MmaRows rows, Stream stream);

/// Whether it takes such heads.
constexpr bool takes_attention_mma(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  return (head_dim == 64 || head_dim == 128) && 16 % (heads / kv_heads) == 0;
}

constexpr int32_t attention_mma_tile_tokens(int32_t heads, int32_t kv_heads, MmaRows rows) {
  return static_cast<int32_t>(rows) / (heads / kv_heads);
}

/// The merge of ranges, of both forms; see attention().
Status merge_attention_ranges(const AttentionArguments& arguments, int32_t tile_tokens,
                              Stream stream);

}  // namespace vitrine::kernels::cuda
