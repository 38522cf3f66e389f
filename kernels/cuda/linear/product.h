// SPDX-License-Identifier: Apache-2.0
// The kernel of the family: one block, a tile of rows by a tile of tokens, all of K.
//
// Bytes: every byte of the matrices once for each tile of tokens (from the second one on out of the
// L2 cache), the activations once for each block of rows (L2), the outputs once. Each step's bytes
// come by cp.async, kStages - 1 steps ahead: 30 to 70 KiB a block under way, two blocks or more on
// an SM, where 4.8 TB/s at 700 ns ask for 25 KiB an SM. So a grid that covers all SMs should reach
// 75 % or more of the read bandwidth with few tokens; what it loses are the first step's latency
// (about 1 of 5 us for a matrix of 2 MB) and the last wave.
//
// Order of an output's sum: groups ascending, one chain of fma(x, y, sum) from +0. With slices of K
// the warps only make the terms; one thread for each output adds them in the same order.
#pragma once

#include "kernels/cuda/linear/epilogue.h"
#include "kernels/cuda/linear/multiply.h"

namespace vitrine::kernels::cuda {

/// Finds the block's expert, and where each of its tokens' input rows begins (-1: no token; those
/// are behind the others). False: the block has nothing to do.
template <typename Shape>
VITRINE_DEVICE bool find_tokens(const Rows& rows, int32_t& expert, int32_t* token_rows) {
  const int token = thread_index();
  const int place = block_y() * Shape::kTokens + token;
  if (rows.tile_experts != nullptr) {
    if (block_y() >= *rows.num_tiles) return false;
    expert = rows.tile_experts[block_y()];
    if (expert < 0) return false;
    if (token < Shape::kTokens) {
      const int32_t route = rows.row_routes[place];
      token_rows[token] = route < 0 ? -1 : route / rows.routes_per_row;
    }
  } else {
    int32_t count = rows.count;
    if (rows.device_count != nullptr && *rows.device_count < count) count = *rows.device_count;
    if (block_y() * Shape::kTokens >= count) return false;
    expert = 0;
    if (token < Shape::kTokens) token_rows[token] = place < count ? place : -1;
  }
  sync_block();
  return true;
}

/// A warp's place in the step, and the addresses that stay the same from step to step.
template <typename Shape>
struct Warp {
  int slice, row_warp;
  const uint8_t* tiles[Shape::kRowTiles];  // null: behind the last tile
};

template <typename Shape>
VITRINE_DEVICE int tile_index(const ProductArguments& a, int row_warp, int r) {
  const int column = block_x() * Shape::kRowWarps + row_warp;
  return a.gated ? column : column * Shape::kRowTiles + r;
}

template <typename Shape>
VITRINE_DEVICE Warp<Shape> make_warp(const ProductArguments& a, int32_t expert) {
  Warp<Shape> warp;
  warp.slice = warp_index() % Shape::kSlices;
  warp.row_warp = warp_index() / Shape::kSlices;
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const int tile = tile_index<Shape>(a, warp.row_warp, r);
    const uint8_t* matrix = a.matrix[a.gated ? r : 0] + expert * a.expert_bytes;
    warp.tiles[r] = tile < a.layout.tiles ? matrix + tile * a.layout.tile_bytes() : nullptr;
  }
  return warp;
}

/// Starts the copies of a step: the warp's own chunks, and the block's part of the tokens.
template <typename Shape>
VITRINE_DEVICE void fill_stage(const ProductArguments& a, const Warp<Shape>& warp,
                               const int32_t* token_rows, int step, uint8_t* stage) {
  const int chunk = step * Shape::kSlices + warp.slice;
  const int pieces = a.layout.chunk_bytes / 16;
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const bool valid = chunk < a.layout.chunks && warp.tiles[r] != nullptr;
    const uint8_t* from =
        valid ? warp.tiles[r] + int64_t{chunk} * a.layout.chunk_bytes : a.matrix[0];
    uint8_t* to = stage + (warp_index() * Shape::kRowTiles + r) * a.layout.chunk_bytes;
    for (int i = lane_index(); i < pieces; i += kWarp) {
      copy_async16(to + 16 * i, from + (valid ? 16 * i : 0), valid);
    }
  }
  uint8_t* tokens = stage + Shape::kWarps * Shape::kRowTiles * a.layout.chunk_bytes;
  const auto* rows = static_cast<const uint8_t*>(a.rows.activations);
  constexpr int kPieces = Shape::kRecord / 16;
  constexpr int kTokenPieces = Shape::kSlices * kPieces;
  const int64_t row_bytes = int64_t{a.layout.chunks} * Shape::kRecord;
  const int chunks_left = a.layout.chunks - step * Shape::kSlices;
  for (int i = thread_index(); i < Shape::kTokens * kTokenPieces; i += Shape::kThreads) {
    const int token = i / kTokenPieces, piece = i % kTokenPieces;
    const int32_t row = token_rows[token];
    const bool valid = row >= 0 && piece / kPieces < chunks_left;
    const int64_t offset =
        valid ? row * row_bytes + int64_t{step} * kTokenPieces * 16 + 16 * piece : 0;
    copy_async16(tokens + token * Shape::kTokenStride + 16 * piece, rows + offset, valid);
  }
}

/// Groups of a chunk that are the matrix's own.
VITRINE_DEVICE int chunk_groups(const PackedLayout& layout, int chunk) {
  const int all = kChunkCols / layout.group_size;
  const int left = layout.groups - chunk * all;
  return left < 0 ? 0 : left < all ? left : all;
}

/// Adds the terms that the warps left, in the order of chunks and groups: thread i has output
/// (row i / 8, token i % 8) of each row tile.
template <typename Shape>
VITRINE_DEVICE void add_exchanged(const ProductArguments& a, int step, const Term* exchange,
                                  float (&sum)[Shape::kRowTiles]) {
  const int terms_per_group = a.layout.offset_format > OffsetFormat::kZeroPoint ? 2 : 1;
  const int stride = Shape::kRowTiles * 16 * Shape::kTokens;
  for (int slice = 0; slice < Shape::kSlices; ++slice) {
    const int terms = chunk_groups(a.layout, step * Shape::kSlices + slice) * terms_per_group;
    const Term* own = exchange + slice * Shape::chunk_terms(a.layout) * stride + thread_index();
    for (int term = 0; term < terms; ++term) {
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        const Term& pair = own[term * stride + r * 16 * Shape::kTokens];
        sum[r] = fma_rn(pair.x, pair.y, sum[r]);
      }
    }
  }
}

template <typename Shape>
VITRINE_KERNEL(Shape::kThreads, 2)
void product_kernel(const ProductArguments a) {
  auto* shared = dynamic_shared<uint8_t>();
  auto* token_rows = reinterpret_cast<int32_t*>(shared);
  int32_t expert = 0;
  if (!find_tokens<Shape>(a.rows, expert, token_rows)) return;
  uint8_t* stages = shared + 4 * Shape::kThreads;
  const int stage_bytes = Shape::stage_bytes(a.layout);
  auto* exchange = reinterpret_cast<Term*>(stages + Shape::kStages * stage_bytes);
  const Warp<Shape> warp = make_warp<Shape>(a, expert);
  const int steps = divide_up(a.layout.chunks, Shape::kSlices);
  for (int step = 0; step < Shape::kStages - 1; ++step) {
    if (step < steps) fill_stage<Shape>(a, warp, token_rows, step, stages + step * stage_bytes);
    copy_async_commit();
  }
  Chains<Shape> chains;
  chains.has_token = token_rows[lane_index() % 4 * 2] >= 0;
  chains.exchange =
      exchange + warp.slice * Shape::chunk_terms(a.layout) * Shape::kRowTiles * 16 * Shape::kTokens;
  for (auto& tile : chains.sum) {
    for (auto& four : tile) {
      for (float& sum : four) sum = 0.0f;
    }
  }
  float sliced_sum[Shape::kRowTiles] = {};
  int slot = 0;
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<Shape::kStages - 2>();
    sync_block();  // everyone's copies are here, and the slot before this one is free
    const int next = step + Shape::kStages - 1;
    const int next_slot = slot == 0 ? Shape::kStages - 1 : slot - 1;
    if (next < steps)
      fill_stage<Shape>(a, warp, token_rows, next, stages + next_slot * stage_bytes);
    copy_async_commit();
    const uint8_t* stage = stages + slot * stage_bytes;
    const uint8_t* tokens = stage + Shape::kWarps * Shape::kRowTiles * a.layout.chunk_bytes +
                            warp.slice * Shape::kRecord;
    const uint8_t* chunks = stage + warp_index() * Shape::kRowTiles * a.layout.chunk_bytes;
    const int groups = chunk_groups(a.layout, step * Shape::kSlices + warp.slice);
    if constexpr (Shape::kActivations == ActivationFormat::kInt8) {
      multiply_int8<Shape>(a.layout, chunks, tokens, groups, chains);
    } else if constexpr (Shape::kActivations == ActivationFormat::kE4M3) {
      multiply_e4m3<Shape>(a.layout, chunks, tokens, groups, chains);
    } else {
      multiply_bf16<Shape>(a.layout, chunks, tokens, groups, chains);
    }
    if constexpr (Shape::kSlices > 1) {
      sync_block();
      if (token_rows[thread_index() % Shape::kTokens] >= 0) {
        add_exchanged<Shape>(a, step, exchange, sliced_sum);
      }
    }
    slot = slot + 1 == Shape::kStages ? 0 : slot + 1;
  }
  copy_async_wait<0>();

  const auto out_row = [&](int token) {
    const int place = block_y() * Shape::kTokens + token;
    return a.rows.row_routes != nullptr ? a.rows.row_routes[place] : place;
  };
  const auto finish = [&](int r, int row_in_tile, int token, float dot, float up) {
    const int64_t row = int64_t{tile_index<Shape>(a, warp.row_warp, r)} * 16 + row_in_tile;
    if (token_rows[token] < 0 || row >= a.layout.rows) return;
    if (a.gated) {
      if (r == 0) finish_gate_up(a.epilogue, out_row(token), row, dot, up);
    } else {
      finish_linear(a.epilogue, expert, out_row(token), row, dot);
    }
  };
  constexpr int kLast = Shape::kRowTiles - 1;
  VITRINE_UNROLL
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    if constexpr (Shape::kSlices > 1) {
      finish(r, thread_index() / Shape::kTokens, thread_index() % Shape::kTokens, sliced_sum[r],
             sliced_sum[kLast]);
    } else {
      VITRINE_UNROLL
      for (int n = 0; n < Shape::kTokenTiles; ++n) {
        for (int i = 0; i < 4; ++i) {
          finish(r, lane_index() / 4 + i / 2 * 8, 8 * n + lane_index() % 4 * 2 + i % 2,
                 chains.sum[r][n][i], chains.sum[kLast][n][i]);
        }
      }
    }
  }
}

/// Launches one shape; `blocks_y` is the number of token tiles at most.
template <typename Shape>
Status launch_product(const ProductArguments& arguments, uint32_t blocks_y, Stream stream) {
  static_assert(Shape::shared_bytes(largest_layout<Shape::kKind>()) <= kMaxSharedBytes);
  const int tiles_per_block = Shape::kRowWarps * (arguments.gated ? 1 : Shape::kRowTiles);
  const auto blocks_x = static_cast<uint32_t>(divide_up(arguments.layout.tiles, tiles_per_block));
  return launch(product_kernel<Shape>, {blocks_x, blocks_y}, Shape::kThreads,
                static_cast<size_t>(Shape::shared_bytes(arguments.layout)), stream, arguments);
}

}  // namespace vitrine::kernels::cuda
