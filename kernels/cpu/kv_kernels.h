// SPDX-License-Identifier: Apache-2.0
// Keys and values as kernels see them: where they lie, who asks for them, and the functions that
// write and read them. cpu_kernels.h has the tables.
#pragma once

#include <cstdint>
#include <string_view>

#include "kv_limits.h"
#include "kv_tiles.h"

namespace vitrine::kernels {

/// Positions that attention walks at once, in order.
inline constexpr int kAttentionBlock = 64;
/// Positions in one KV storage block must be a multiple of this.
inline constexpr int kKvLanes = 16;

/// The keys and values of one layer, reached through a block table.
///
/// A storage block holds `block_size` positions (a multiple of 16). Those of kv head h of block b
/// begin at (b * kv_heads + h) * block_size times a position's bytes. How they lie there is the
/// matter of the functions that write and read them (KvKernels):
///   floats, 16 bits rounded as they are written (nearest, ties to even) and widened, exactly, as
///   they are read: keys as [head_dim][block_size], values as [block_size][head_dim];
///   i16, run after run of 16 positions, in pairs that are multiplied and added at once, and a
///   float32 scale for each position, [16], behind (head_dim + 1) / 2 * 16 such pairs: keys as
///   [(head_dim + 1) / 2][16][2], values as [8][head_dim][2].
/// Where a codec gives tiles, `keys` has the closed forms of blocks and `values` the open ones,
/// (b * kv_heads + h) times a form's bytes from the beginning.
/// Any alignment works; on 64 bytes attention is up to twice as fast.
struct KvView {
  void* keys = nullptr;
  void* values = nullptr;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;
  // Latent attention: the first elements of a key that are its value; there are no others. A
  // position stands in one piece, [head_dim], of i16 as pairs with their scale behind them.
  int32_t value_dim = 0;
  const TileCodec* tiles = nullptr;  // of a codec that gives tiles
};

/// Queries over one kv head of as many consecutive tokens of one sequence; token t, at `position` +
/// t, sees the positions 0 … position + t. How many come together changes no result, only how often
/// keys and values are read: once for kQueriesAtOnce queries, where a table can.
struct AttentionSpan {
  const int32_t* block_table = nullptr;  // [i]: the storage block of positions i * block_size …
  const int32_t* open_table = nullptr;  // the same of blocks' open forms, where a codec gives tiles
  int32_t kv_head = 0;
  int32_t position = 0;
  int32_t tokens = 1;
  int32_t heads = 1;  // consecutive query heads: a GQA group, or a part of it
  float scale = 1.0f;
  int32_t window = 0;  // a token sees so many positions at most, its own the last; 0: all
  // [heads] a score each that takes part in the softmax and has no value; null: none. The walk
  // begins with it: max = sink, sum = 1, out = 0.
  const float* sinks = nullptr;
  const float* query = nullptr;  // [tokens, heads, head_dim]
  int64_t query_stride = 0;      // from head to head
  int64_t query_token_stride = 0;
  float* out = nullptr;  // as query
  int64_t out_stride = 0;
  int64_t out_token_stride = 0;
};
inline constexpr int kQueriesAtOnce = 32;

/// One instruction set's functions for keys and values that are kept in one way.
struct KvKernels {
  /// Writes one position's key and value of one kv head into its block. Other positions of the
  /// block may be written at the same time.
  void (*write)(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head, const float* key,
                const float* value) = nullptr;

  /// Softmax attention of a span's queries over one kv head. Blocks of 64 positions are walked in
  /// order. Nothing beyond a token's position or before its window is used for it, whatever it
  /// holds: such positions enter no lane, no maximum and no scale. head_dim: at most kMaxHeadDim.
  void (*attend)(const KvView& kv, const AttentionSpan& span) = nullptr;

  /// Write and attend for latent attention: a position's key [head_dim], of which the first
  /// value_dim elements are its value. One kv head, no windows and no sinks; `out` has value_dim
  /// elements a head. Null: this codec has none.
  void (*write_latent)(const KvView& kv, int32_t block, int32_t offset, const float* key) = nullptr;
  void (*attend_latent)(const KvView& kv, const AttentionSpan& span) = nullptr;

  /// Where a codec gives tiles; null: it has nothing to do. Makes the closed form of a block whose
  /// positions are all written, from open block `open`; turns a query [head_dim] before it is asked
  /// with, and an output [head_dim] back.
  void (*close)(const KvView& kv, int32_t open, int32_t block, int32_t kv_head) = nullptr;
  void (*transform_query)(const KvView& kv, int32_t kv_head, float* query) = nullptr;
  void (*transform_output)(const KvView& kv, int32_t kv_head, float* output) = nullptr;
};

/// Those that a table has itself.
struct NamedKvKernels {
  std::string_view codec;  // "f32", "f16", "bf16", "i16"
  KvKernels kernels;
};

}  // namespace vitrine::kernels
