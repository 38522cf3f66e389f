// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernel. Of many tokens each warp has 16 query rows, and all warps share the
// block's positions. Of one, 4 warps have the same 16 rows (kSplit): each makes the scores of a
// quarter of a block's positions and adds up a quarter of the elements, so that a block is a
// quarter as long, and two blocks are under way. An output is the same chain of operations in both.
//
// Bytes: as attention_block.h. Operations: 4 * head_dim multiply-adds a query row and position, of
// which a group of 8 uses half of the 16 rows in decode. Prefill of 4,096 tokens at 32 heads of 128
// is 69 GMAC a layer, 0.2 ms at half of an H200's bf16 rate by mma.sync; decode should be bound by
// memory, 60 % or more of its bandwidth where ranges times kv heads cover the SMs.
#pragma once

#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/attention/attention_out.h"
#include "kernels/cuda/attention/window.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/linear/words.h"

namespace vitrine::kernels::cuda {

template <FloatFormat kFormatOf, int kHeadDimOf, int kWarpsOf, int kSplitOf>
struct MmaShape {
  static constexpr FloatFormat kFormat = kFormatOf;
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kSplit = kSplitOf;  // warps that share their rows: 1 or all 4
  static_assert(kSplit == 1 || kSplit == kWarps);
  static constexpr int kOwnDims = kHeadDim / kSplit;
  static constexpr int kBuffers = kSplit == 1 ? 1 : 2;
  static constexpr int kThreads = 32 * kWarpsOf;
  // Rows 16 bytes longer than their elements: ldmatrix meets no bank twice.
  static constexpr int kStride = 2 * kHeadDimOf + 16;
};

inline constexpr int kScoreStride = kAttentionPositions + 8;  // 8 rows begin in 8 banks apart

template <typename Shape>
struct MmaMemory {
  uint8_t keys[Shape::kBuffers][kAttentionPositions * Shape::kStride];
  uint8_t values[Shape::kBuffers][kAttentionPositions * Shape::kStride];
  float scores[Shape::kSplit == 1 ? 4 : 16 * kScoreStride];  // [row][position]
};

/// The first of a warp's rows in the block, and of its output elements.
template <typename Shape>
VITRINE_DEVICE int first_row() {
  return Shape::kSplit == 1 ? warp_index() * 16 : 0;
}
template <typename Shape>
VITRINE_DEVICE int first_dim() {
  return Shape::kSplit == 1 ? 0 : warp_index() * Shape::kOwnDims;
}

template <typename Shape>
VITRINE_DEVICE uint32_t round_pair(float x, float y) {
  if constexpr (Shape::kFormat == FloatFormat::kBF16) {
    return narrow_bf16(x) | static_cast<uint32_t>(narrow_bf16(y)) << 16;
  } else {
    return narrow_f16(x) | static_cast<uint32_t>(narrow_f16(y)) << 16;
  }
}

template <typename Shape>
VITRINE_DEVICE void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                 uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  if constexpr (Shape::kFormat == FloatFormat::kBF16) {
    mma_bf16_m16n8k16(sum, a, b, sum);
  } else {
    mma_f16_m16n8k16(sum, a, b, sum);
  }
}

/// Where a warp's query rows come from: row i is head i % group of token i / group of the block.
struct MmaRowMap {
  AttentionTile tile;
  const int32_t* table;  // the sequence's blocks
  int32_t kv_head, group, begin, last;
  int32_t start;  // of the walk: the first block that one of the tokens sees
};

template <typename Shape>
VITRINE_DEVICE void copy_rows(const AttentionArguments& a, const MmaRowMap& map,
                              const void* storage, int32_t start, uint8_t* to) {
  constexpr int kPieces = Shape::kHeadDim / 8;
  const int64_t block = map.table[start / kKvBlock];
  const auto* from = static_cast<const uint8_t*>(storage) +
                     (block * a.kv.kv_heads + map.kv_head) * kKvBlock * 2 * Shape::kHeadDim;
  for (int i = thread_index(); i < kAttentionPositions * kPieces; i += Shape::kThreads) {
    const int j = i / kPieces, piece = i % kPieces;
    const bool valid = start + j <= map.last;
    copy_async16(to + j * Shape::kStride + 16 * piece, from + (valid ? 16 * i : 0), valid);
  }
}

/// A lane's part of a warp's state; it has rows g and g + 8, g = lane / 4, of the fragments.
template <typename Shape>
struct MmaState {
  int32_t position[2];  // -1: no such row
  float max[2];
  float sum[2];                       // this lane's columns only
  float out[Shape::kOwnDims / 8][4];  // [8 elements][fragment]
  uint32_t query[Shape::kHeadDim / 16][4];
};

template <typename Shape>
VITRINE_DEVICE void load_queries(const AttentionArguments& a, const MmaRowMap& map,
                                 MmaState<Shape>& state) {
  const int t = lane_index() % 4;
  VITRINE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first_row<Shape>() + lane_index() / 4 + 8 * half;
    const int token = row / map.group;
    const bool valid = token < map.tile.count;
    const int64_t from = (int64_t{map.tile.first_token + (valid ? token : 0)} * a.heads +
                          map.kv_head * map.group + row % map.group) *
                         Shape::kHeadDim;
    state.position[half] = valid ? a.positions[map.tile.first_token + token] : -1;
    const int head = map.kv_head * map.group + row % map.group;
    const FirstState first = first_state(a, head, state.position[half], map.begin);
    state.max[half] = first.max;
    state.sum[half] = t == 0 ? first.sum : 0.0f;  // the lanes are added up at the end
    VITRINE_UNROLL
    for (int k = 0; k < Shape::kHeadDim / 16; ++k) {
      VITRINE_UNROLL
      for (int part = 0; part < 2; ++part) {
        const float* two = a.queries + from + 16 * k + 8 * part + 2 * t;
        state.query[k][2 * part + half] = valid ? round_pair<Shape>(two[0], two[1]) : 0;
      }
    }
  }
  VITRINE_UNROLL
  for (auto& fragment : state.out) {
    for (float& x : fragment) x = 0.0f;
  }
}

/// scores[i], scores[i + 1] = fragments of positions 8n … 8n + 15, elements in steps of 16,
/// ascending.
template <typename Shape, int kCount>
VITRINE_DEVICE void score_pair(const MmaState<Shape>& state, const uint8_t* keys, int n,
                               float (&scores)[kCount][4], int i) {
  // Lane i names row i % 8 of matrix i / 8: two steps of 8 elements for each of two position tiles.
  const int row = lane_index() % 8 + lane_index() / 16 * 8, step = lane_index() / 8 % 2;
  for (int j = 0; j < 4; ++j) scores[i][j] = scores[i + 1][j] = 0.0f;
  VITRINE_UNROLL
  for (int k = 0; k < Shape::kHeadDim / 16; ++k) {
    uint32_t b[4];
    load_matrix<4>(b, keys + (8 * n + row) * Shape::kStride + 32 * k + 16 * step);
    multiply_add<Shape>(scores[i], state.query[k], b[0], b[1]);
    multiply_add<Shape>(scores[i + 1], state.query[k], b[2], b[3]);
  }
}

/// Scores of all 64 positions; where warps share rows, each makes 16 of them and gets the others
/// from shared memory (whose last readers have met since).
template <typename Shape>
VITRINE_DEVICE void score_block(const MmaState<Shape>& state, const uint8_t* keys, float* shared,
                                float (&scores)[8][4]) {
  if constexpr (Shape::kSplit == 1) {
    VITRINE_UNROLL
    for (int n = 0; n < 8; n += 2) score_pair<Shape>(state, keys, n, scores, n);
  } else {
    static_assert(Shape::kSplit == 4);
    float own[2][4];
    score_pair<Shape>(state, keys, 2 * warp_index(), own, 0);
    float* at = shared + lane_index() / 4 * kScoreStride + lane_index() % 4 * 2;
    VITRINE_UNROLL
    for (int i = 0; i < 8; ++i) {
      at[i % 4 / 2 * 8 * kScoreStride + 16 * warp_index() + 8 * (i / 4) + i % 2] =
          own[i / 4][i % 4];
    }
    sync_block();
    VITRINE_UNROLL
    for (int i = 0; i < 32; ++i) {
      scores[i / 4][i % 4] = at[i % 4 / 2 * 8 * kScoreStride + 8 * (i / 4) + i % 2];
    }
  }
}

/// Scores become exponentials (0 where a row does not see the position); the state is corrected.
template <typename Shape>
VITRINE_DEVICE void soften(const AttentionArguments& a, int32_t start, MmaState<Shape>& state,
                           float (&scores)[8][4]) {
  const int t = lane_index() % 4;
  VITRINE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const SeenPositions seen = seen_positions(a.window, state.position[half], start);
    float block_max = bits_float(0xff800000u);
    VITRINE_UNROLL
    for (int n = 0; n < 8; ++n) {
      VITRINE_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = scores[n][i] * a.scale;
        if (seen.has(8 * n + 2 * t + i % 2)) {
          block_max = scores[n][i] > block_max ? scores[n][i] : block_max;
        }
      }
    }
    for (int width = 1; width < 4; width *= 2) {
      const float other = shuffle_xor(block_max, width);
      block_max = other > block_max ? other : block_max;
    }
    const float max = block_max > state.max[half] ? block_max : state.max[half];
    // A block that the row does not see leaves its state as it is.
    const float correction = seen.any() ? exp_float(state.max[half] - max) : 1.0f;
    state.max[half] = max;
    state.sum[half] = state.sum[half] * correction;
    VITRINE_UNROLL
    for (int n = 0; n < 8; ++n) {
      VITRINE_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        const bool is_seen = seen.has(8 * n + 2 * t + i % 2);
        scores[n][i] = is_seen ? exp_float(scores[n][i] - max) : 0.0f;
        state.sum[half] = state.sum[half] + scores[n][i];
      }
    }
    VITRINE_UNROLL
    for (int d = 0; d < Shape::kOwnDims / 8; ++d) {
      VITRINE_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) state.out[d][i] = state.out[d][i] * correction;
    }
  }
}

/// Adds exponentials times values, positions in steps of 16, ascending.
template <typename Shape>
VITRINE_DEVICE void add_block(const float (&scores)[8][4], const uint8_t* values,
                              MmaState<Shape>& state) {
  const int row = lane_index() % 16, part = lane_index() / 16;
  VITRINE_UNROLL
  for (int k = 0; k < 4; ++k) {
    const uint32_t p[4] = {round_pair<Shape>(scores[2 * k][0], scores[2 * k][1]),
                           round_pair<Shape>(scores[2 * k][2], scores[2 * k][3]),
                           round_pair<Shape>(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                           round_pair<Shape>(scores[2 * k + 1][2], scores[2 * k + 1][3])};
    VITRINE_UNROLL
    for (int d = 0; d < Shape::kOwnDims / 8; d += 2) {
      uint32_t b[4];
      load_matrix<4, true>(
          b, values + (16 * k + row) * Shape::kStride + 2 * first_dim<Shape>() + 16 * (d + part));
      multiply_add<Shape>(state.out[d], p, b[0], b[1]);
      multiply_add<Shape>(state.out[d + 1], p, b[2], b[3]);
    }
  }
}

template <typename Shape>
VITRINE_DEVICE void write_fragments(const AttentionArguments& a, const MmaRowMap& map,
                                    MmaState<Shape>& state) {
  const int t = lane_index() % 4;
  VITRINE_UNROLL
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half];
    for (int width = 1; width < 4; width *= 2) sum = sum + shuffle_xor(sum, width);
    const int32_t position = state.position[half];
    // No such row, or it sees nothing of this range.
    if (!sees_range(a.window, position, map.begin)) continue;
    const int row = first_row<Shape>() + lane_index() / 4 + 8 * half;
    const int64_t at = int64_t{map.tile.first_token + row / map.group} * a.heads +
                       map.kv_head * map.group + row % map.group;
    const bool is_all = position < kAttentionRange;
    float* to =
        is_all ? nullptr
               : a.scratch + (at * a.ranges + map.begin / kAttentionRange) * (Shape::kHeadDim + 2);
    VITRINE_UNROLL
    for (int d = 0; d < Shape::kOwnDims / 8; ++d) {
      for (int i = 0; i < 2; ++i) {
        const float value = state.out[d][2 * half + i];
        const int element = first_dim<Shape>() + 8 * d + 2 * t + i;
        if (is_all) {
          store_attention(a, at * Shape::kHeadDim + element, value / sum);
        } else {
          to[element] = value;
        }
      }
    }
    if (!is_all && t == 0 && first_dim<Shape>() == 0) {
      to[Shape::kHeadDim] = state.max[half];
      to[Shape::kHeadDim + 1] = sum;
    }
  }
}

/// One block of positions after the other, its keys and values in one buffer: those of the next one
/// come as soon as they are used.
template <typename Shape>
VITRINE_DEVICE void walk_blocks(const AttentionArguments& a, const MmaRowMap& map, int32_t end,
                                MmaMemory<Shape>& memory, MmaState<Shape>& state) {
  copy_rows<Shape>(a, map, a.kv.keys, map.start, memory.keys[0]);
  copy_async_commit();
  copy_rows<Shape>(a, map, a.kv.values, map.start, memory.values[0]);
  copy_async_commit();
  load_queries(a, map, state);
  for (int32_t start = map.start; start < end; start += kAttentionPositions) {
    const int32_t next = start + kAttentionPositions;
    float scores[8][4];
    copy_async_wait<1>();
    sync_block();  // the keys are here
    score_block(state, memory.keys[0], memory.scores, scores);
    sync_block();
    if (next < end) copy_rows<Shape>(a, map, a.kv.keys, next, memory.keys[0]);
    copy_async_commit();
    soften(a, start, state, scores);
    copy_async_wait<1>();
    sync_block();  // the values are here
    add_block(scores, memory.values[0], state);
    sync_block();
    if (next < end) copy_rows<Shape>(a, map, a.kv.values, next, memory.values[0]);
    copy_async_commit();
  }
  copy_async_wait<0>();
}

/// Walks the blocks with two buffers: two blocks are under way while one is used.
template <typename Shape>
VITRINE_DEVICE void walk_blocks_ahead(const AttentionArguments& a, const MmaRowMap& map,
                                      int32_t end, MmaMemory<Shape>& memory,
                                      MmaState<Shape>& state) {
  const auto start_copy = [&](int32_t start, int buffer) {
    if (start < end) {
      copy_rows<Shape>(a, map, a.kv.keys, start, memory.keys[buffer]);
      copy_rows<Shape>(a, map, a.kv.values, start, memory.values[buffer]);
    }
    copy_async_commit();
  };
  start_copy(map.start, 0);
  start_copy(map.start + kAttentionPositions, 1);
  load_queries(a, map, state);
  int buffer = 0;
  for (int32_t start = map.start; start < end; start += kAttentionPositions) {
    float scores[8][4];
    copy_async_wait<1>();
    sync_block();
    score_block(state, memory.keys[buffer], memory.scores, scores);
    soften(a, start, state, scores);
    add_block(scores, memory.values[buffer], state);
    sync_block();
    start_copy(start + 2 * kAttentionPositions, buffer);
    buffer = 1 - buffer;
  }
  copy_async_wait<0>();
}

// Grid: (tile, kv head, range).
template <typename Shape>
VITRINE_KERNEL(Shape::kThreads, 2)
void attention_mma_kernel(const AttentionArguments a) {
  MmaRowMap map;
  map.tile = a.tiles[block_x()];
  map.kv_head = block_y();
  map.group = a.heads / a.kv.kv_heads;
  map.begin = block_z() * kAttentionRange;
  map.last = -1;
  int32_t first = 0x7fffffff;
  for (int i = 0; i < map.tile.count; ++i) {
    const int32_t position = a.positions[map.tile.first_token + i];
    map.last = position > map.last ? position : map.last;
    first = position < first ? position : first;
  }
  if (map.last < map.begin || first_seen(a.window, first) >= map.begin + kAttentionRange) return;
  map.start = walk_start(a.window, first, map.begin);
  map.table = a.blocks.tables + a.blocks.sequences[map.tile.first_token] * a.blocks.stride;
  const int32_t end =
      map.last + 1 < map.begin + kAttentionRange ? map.last + 1 : map.begin + kAttentionRange;
  auto& memory = *dynamic_shared<MmaMemory<Shape>>();
  MmaState<Shape> state;
  if constexpr (Shape::kSplit == 1) {
    walk_blocks(a, map, end, memory, state);
  } else {
    walk_blocks_ahead(a, map, end, memory, state);
  }
  write_fragments(a, map, state);
}

template <FloatFormat kFormat>
Status launch_attention_mma(const AttentionArguments& a, MmaRows rows, Stream stream) {
  const auto start = [&]<int kHeadDim, int kSplit>() {
    using Shape = MmaShape<kFormat, kHeadDim, 4, kSplit>;
    const Dim3 grid = {static_cast<uint32_t>(a.tile_count), static_cast<uint32_t>(a.kv.kv_heads),
                       static_cast<uint32_t>(a.ranges)};
    return launch(attention_mma_kernel<Shape>, grid, Shape::kThreads, sizeof(MmaMemory<Shape>),
                  stream, a);
  };
  const bool one = rows == MmaRows::k16;
  if (a.kv.head_dim == 64) {
    return one ? start.template operator()<64, 4>() : start.template operator()<64, 1>();
  }
  return one ? start.template operator()<128, 4>() : start.template operator()<128, 1>();
}

}  // namespace vitrine::kernels::cuda
