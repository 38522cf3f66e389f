// SPDX-License-Identifier: Apache-2.0
// Softmax attention over paged keys and values, for decode, prefill chunks and checks alike.
#pragma once

#include <cstdint>

#include "kernels/cuda/kv/kv_cache.h"

namespace vitrine::kernels::cuda {

/// Positions that are walked at once, in order.
inline constexpr int kAttentionPositions = kKvBlock;
/// Positions of a range: ranges are computed side by side, and merged in ascending order.
inline constexpr int kAttentionRange = 1024;
inline constexpr int kMaxHeadDim = 256;

/// Consecutive tokens of the batch that belong to one sequence.
struct AttentionTile {
  int32_t first_token;
  int32_t count;  // at most attention_tile_tokens(); 0: nothing
};

struct AttentionArguments {
  KvCache kv = {};    // head_dim at most kMaxHeadDim, a multiple of 16 bytes
  int32_t heads = 0;  // query heads, a multiple of kv_heads
  float scale = 0;
  int32_t window = 0;  // positions that a token sees at most, its own the last; 0: all
  /// [heads] a score each that has no value: a token's walk begins from it. Null: none.
  const float* sinks = nullptr;
  const float* queries = nullptr;      // [tokens, heads, head_dim] float32
  const int32_t* positions = nullptr;  // [tokens]; token t sees no position behind its own
  BlockTables blocks = {};
  const AttentionTile* tiles = nullptr;  // on the device
  int32_t tile_count = 0;                // tiles of the launch; the last may have count 0
  int32_t tokens = 0;                    // of the batch at most
  /// Ranges of the longest sequence at most: of a context that fits 1,024 positions, 1.
  int32_t ranges = 1;
  float* out = nullptr;          // [tokens, heads, head_dim] float32
  uint16_t* out_bf16 = nullptr;  // the same rounded to bf16, in place of `out` where not null
  float* scratch = nullptr;      // attention_scratch_floats(), where ranges > 1
};

/// Query rows (token, head) of a block: 8 for decode, 16 where tokens come in chunks. The choice
/// changes no result.
enum class AttentionQueries : int { k8 = 8, k16 = 16 };

/// Tokens of a tile at most: a block takes all query heads of a kv head, for as many tokens as fit.
constexpr int32_t attention_tile_tokens(int32_t heads, int32_t kv_heads, AttentionQueries queries) {
  const int32_t group = heads / kv_heads;
  const int32_t rows = static_cast<int32_t>(queries);
  return group >= rows ? 1 : rows / group;
}

/// Floats of scratch: for each token, head and range the unnormalised output, its maximum and sum.
constexpr int64_t attention_scratch_floats(const AttentionArguments& a) {
  return int64_t{a.tokens} * a.heads * a.ranges * (a.kv.head_dim + 2);
}

/// Attention of every token of the tiles, in the order of docs/numerics.md: the CPU kernels' bits
/// for positions below 1,024. Behind that, ranges of 1,024 positions are walked apart, each from an
/// empty state but for a sink in the first one that a token sees, and added in ascending order ("On
/// CUDA" there). What a token gets depends on its position and the ones that it sees, not on its
/// tile, the batch or `ranges`. Blocks wholly before the windows of a tile are not read.
Status attention(const AttentionArguments& arguments, AttentionQueries queries, Stream stream);

}  // namespace vitrine::kernels::cuda
