// SPDX-License-Identifier: Apache-2.0
// The kernel for many tokens: one block, a tile of rows by a tile of tokens, all of K.
//
// Bytes: every byte of the matrices once for each tile of tokens (from the second one on out of the
// L2 cache), the activations once for each block of rows (L2), the outputs once. Each step's bytes
// come by cp.async, kStages - 1 steps ahead. Operations: a warp multiplies 32 rows with all tokens,
// so that a fragment of activations out of shared memory serves two products: at 32 tokens 8
// cycles of shared memory for 13 of tensor cores. Tiles of 64 tokens were no faster on an H100: the
// sums of a group beside those of a row leave no registers for more than two blocks an SM. What a
// product by mma.sync can reach is about 60 % of the rate that wgmma has on sm_90.
//
// Order of an output's sum: groups ascending, one chain of fma(x, y, sum) from +0.
#pragma once

#include "kernels/cuda/linear/epilogue.h"
#include "kernels/cuda/linear/multiply.h"
#include "kernels/cuda/linear/product_arguments.h"

namespace vitrine::kernels::cuda {

/// The layout of a kind that takes most of it.
template <typename P>
constexpr PackedLayout largest_layout() {
  PackedLayout layout;
  layout.group_size = kChunkCols / P::kGroups;
  layout.offset_format = P::kIsInteger ? OffsetFormat::kF32 : OffsetFormat::kNone;
  layout.chunk_bytes = P::kNumberBytes;
  if (P::kKind != PackedKind::kBF16) layout.chunk_bytes += P::kGroups * (64 + 64);  // float32 pairs
  return layout;
}

/// One shape of a block: 4 warps along the rows, each with kRowTiles tiles of 16 rows and kTokens
/// tokens. A step is 128 columns.
template <typename PackingOf, ActivationFormat kActivationsOf, int kTokensOf, int kRowTilesOf,
          int kStagesOf>
struct ProductShape {
  using P = PackingOf;
  static constexpr ActivationFormat kActivations = kActivationsOf;
  static constexpr int kTokens = kTokensOf;
  static constexpr int kTokenTiles = kTokensOf / 8;
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowBytes = chunk_row_bytes(kActivations);
  // A token's step in shared memory: rows begin 32 (records) or 64 (bf16) bytes apart modulo 128,
  // so that the 8- or 16-byte loads of eight tokens meet no bank twice.
  static constexpr int kTokenStride = kRowBytes + (has_records(kActivations) ? 0 : 64);
  static_assert(kTokenStride % 128 == (has_records(kActivations) ? 32 : 64));
  static_assert(kTokens <= kThreads);

  static constexpr int stage_bytes(const PackedLayout& layout) {
    return kWarps * kRowTiles * layout.chunk_bytes + kTokens * kTokenStride;
  }
  static constexpr int shared_bytes(const PackedLayout& layout) {
    return 4 * kThreads + kStages * stage_bytes(layout);
  }
};

template <typename Shape>
VITRINE_DEVICE int tile_index(const ProductArguments& a, int r) {
  const int column = block_x() * Shape::kWarps + warp_index();
  return a.gated ? column : column * Shape::kRowTiles + r;
}

/// Starts the copies of a step: the warp's own chunks, and the block's part of the tokens.
template <typename Shape>
VITRINE_DEVICE void fill_stage(const ProductArguments& a,
                               const uint8_t* const (&tiles)[Shape::kRowTiles],
                               const int32_t* token_rows, int step, uint8_t* stage) {
  const int pieces = a.layout.chunk_bytes / 16;
  VITRINE_UNROLL
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const uint8_t* from = tiles[r] + int64_t{step} * a.layout.chunk_bytes;
    uint8_t* to = stage + (warp_index() * Shape::kRowTiles + r) * a.layout.chunk_bytes;
    for (int i = lane_index(); i < pieces; i += kWarp) {
      copy_async16(to + 16 * i, from + 16 * i);
    }
  }
  uint8_t* tokens = stage + Shape::kWarps * Shape::kRowTiles * a.layout.chunk_bytes;
  const auto* rows = static_cast<const uint8_t*>(a.rows.activations) + step * Shape::kRowBytes;
  constexpr int kPieces = Shape::kRowBytes / 16;
  const int64_t row_bytes = int64_t{a.layout.chunks} * Shape::kRowBytes;
  VITRINE_UNROLL
  for (int first = 0; first < Shape::kTokens * kPieces; first += Shape::kThreads) {
    const int i = first + thread_index();
    if (Shape::kTokens * kPieces % Shape::kThreads != 0 && i >= Shape::kTokens * kPieces) break;
    const int token = i / kPieces, piece = i % kPieces;
    copy_async16(tokens + token * Shape::kTokenStride + 16 * piece,
                 rows + token_rows[token] * row_bytes + 16 * piece);
  }
}

/// A lane's part of the tokens of a step in shared memory.
template <typename Shape>
struct StagedTokens {
  const uint8_t* values;   // of token g, at the lane's columns
  const uint8_t* factors;  // of token 2t

  VITRINE_DEVICE_METHOD Words2 values8(int n, int block) const {
    return load8(values + 8 * n * Shape::kTokenStride + 32 * block);
  }
  VITRINE_DEVICE_METHOD Words4 values16(int n, int block) const {
    return load16(values + 8 * n * Shape::kTokenStride + 64 * block);
  }
  VITRINE_DEVICE_METHOD GroupFactor factor(int n, int i, int group) const {
    const Words2 words = load8(factors + (8 * n + i) * Shape::kTokenStride + 8 * group);
    return {bits_float(words.x), static_cast<int32_t>(words.y)};
  }
};

template <typename Shape>
VITRINE_KERNEL(Shape::kThreads, 3)
void product_kernel(const ProductArguments a) {
  using P = typename Shape::P;
  constexpr int kRowTiles = Shape::kRowTiles, kTokenTiles = Shape::kTokenTiles;
  auto* shared = dynamic_shared<uint8_t>();
  auto* token_rows = reinterpret_cast<int32_t*>(shared);
  const TokenTile tile = find_tile(a.rows, block_y(), Shape::kTokens);
  if (tile.expert < 0) return;
  if (thread_index() < Shape::kTokens) {
    token_rows[thread_index()] = in_row_or_first(a.rows, tile, thread_index());
  }
  sync_block();
  uint8_t* stages = shared + 4 * Shape::kThreads;
  const int stage_bytes = Shape::stage_bytes(a.layout);
  // Behind the last tile or token a block reads another one again, and drops what comes of it.
  const uint8_t* tiles[kRowTiles];
  VITRINE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    const int index = tile_index<Shape>(a, r);
    const uint8_t* matrix = a.matrix[a.gated ? r : 0] + tile.expert * a.expert_bytes;
    const int last = a.layout.tiles - 1;
    tiles[r] = matrix + (index < last ? index : last) * a.layout.tile_bytes();
  }
  const int steps = a.layout.chunks;
  for (int step = 0; step < Shape::kStages - 1; ++step) {
    if (step < steps) fill_stage<Shape>(a, tiles, token_rows, step, stages + step * stage_bytes);
    copy_async_commit();
  }
  float sums[kRowTiles][kTokenTiles][4] = {};
  const int g = lane_index() / 4, t = lane_index() % 4;
  int slot = 0;
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<Shape::kStages - 2>();
    sync_block();  // everyone's copies are here, and the slot before this one is free
    const int next = step + Shape::kStages - 1;
    const int next_slot = slot == 0 ? Shape::kStages - 1 : slot - 1;
    if (next < steps)
      fill_stage<Shape>(a, tiles, token_rows, next, stages + next_slot * stage_bytes);
    copy_async_commit();
    const uint8_t* stage = stages + slot * stage_bytes;
    const uint8_t* rows = stage + Shape::kWarps * kRowTiles * a.layout.chunk_bytes;
    constexpr int kLaneBytes = has_records(Shape::kActivations) ? 8 : 16;
    const StagedTokens<Shape> tokens = {rows + g * Shape::kTokenStride + kLaneBytes * t,
                                        rows + 2 * t * Shape::kTokenStride + kRecordCols};
    ChunkWords<P> weights[kRowTiles];
    VITRINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      load_chunk<P>(a.layout, stage + (warp_index() * kRowTiles + r) * a.layout.chunk_bytes,
                    weights[r]);
    }
    multiply_chunk<P, Shape::kActivations, kRowTiles, kTokenTiles>(
        a.layout, weights, tokens, [&](int, int r, int n, const float(&x)[4], const float(&y)[4]) {
          for (int i = 0; i < 4; ++i) sums[r][n][i] = fma_rn(x[i], y[i], sums[r][n][i]);
        });
    slot = slot + 1 == Shape::kStages ? 0 : slot + 1;
  }
  copy_async_wait<0>();

  VITRINE_UNROLL
  for (int n = 0; n < kTokenTiles; ++n) {
    VITRINE_UNROLL
    for (int side = 0; side < 2; ++side) {
      const int32_t out_row = out_row_of(a.rows, tile, 8 * n + 2 * t + side);
      if (out_row < 0) continue;
      VITRINE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = 2 * half + side;
        if (a.gated) {
          const int64_t row = int64_t{tile_index<Shape>(a, 0)} * 16 + g + 8 * half;
          if (row < a.layout.rows) {
            finish_gate_up(a.epilogue, out_row, row, sums[0][n][i], sums[kRowTiles - 1][n][i]);
          }
          continue;
        }
        VITRINE_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          const int64_t row = int64_t{tile_index<Shape>(a, r)} * 16 + g + 8 * half;
          if (row < a.layout.rows) {
            finish_linear(a.epilogue, tile.expert, out_row, row, sums[r][n][i]);
          }
        }
      }
    }
  }
}

}  // namespace vitrine::kernels::cuda
