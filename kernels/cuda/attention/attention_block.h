// SPDX-License-Identifier: Apache-2.0
// The kernel of one block: a tile of query rows over one range of positions.
//
// Bytes: keys and values of the range once for each tile, 4 * head_dim * kv_heads a position in 16
// bits. Decode reads them once in all (a tile holds the whole GQA group); FMAs are 2 * head_dim for
// each query row and position, so at a group of 8 and 16-bit keys an H200 needs 19 of its 33 TFMA/s
// to keep up with 4.8 TB/s. Expected: 40 to 60 % of the bandwidth, FMA and shared memory first;
// prefill is bound by FMAs outright (a tensor-core variant would have another order, and name).
#pragma once

#include "kernels/cuda/attention/attention_out.h"
#include "kernels/cuda/attention/window.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/floats.h"
#include "kernels/cuda/linear/words.h"

namespace vitrine::kernels::cuda {

inline constexpr int kAttentionThreads = 128;

/// The sizes of a block for one element format: kQueries query rows, and kDims elements of the
/// output for each thread.
template <FloatFormat kFormat, int kQueriesOf, int kDimsOf>
struct AttentionShape {
  static constexpr FloatFormat kElements = kFormat;
  static constexpr int kQueries = kQueriesOf;
  static constexpr int kDims = kDimsOf;
  static constexpr int kBytes = kFormat == FloatFormat::kF32 ? 4 : 2;
  static constexpr int kWide = 16 / kBytes;  // elements of a 16-byte access

  /// Rows of keys are 16 bytes longer, so that 8 threads that read 16 bytes of one column each
  /// meet no bank twice.
  static constexpr int key_stride(int head_dim) { return head_dim * kBytes + 16; }
  static constexpr int shared_bytes(int head_dim) {
    return kAttentionPositions * (key_stride(head_dim) + head_dim * kBytes) +
           4 * kQueries * (head_dim + kAttentionPositions + 4);
  }
};

/// Shared memory of a block, in this order.
struct AttentionMemory {
  uint8_t* keys;      // [64] of key_stride bytes
  uint8_t* values;    // [64, head_dim]
  float* queries;     // [kQueries, head_dim]
  float* scores;      // [kQueries, 64]: then their exponentials
  float* max;         // [kQueries]
  float* sum;         // [kQueries]
  float* correction;  // [kQueries]
  int32_t* position;  // [kQueries], -1: no such row
};

template <typename Shape>
VITRINE_DEVICE AttentionMemory divide_memory(int head_dim) {
  AttentionMemory memory;
  memory.keys = dynamic_shared<uint8_t>();
  memory.values = memory.keys + kAttentionPositions * Shape::key_stride(head_dim);
  memory.queries =
      reinterpret_cast<float*>(memory.values + kAttentionPositions * head_dim * Shape::kBytes);
  memory.scores = memory.queries + Shape::kQueries * head_dim;
  memory.max = memory.scores + Shape::kQueries * kAttentionPositions;
  memory.sum = memory.max + Shape::kQueries;
  memory.correction = memory.sum + Shape::kQueries;
  memory.position = reinterpret_cast<int32_t*>(memory.correction + Shape::kQueries);
  return memory;
}

/// What a block computes: query row q is head first_head + q % heads of token q / heads of the
/// tile.
struct AttentionWork {
  AttentionTile tile;
  const int32_t* table;                       // the sequence's blocks
  int32_t kv_head, first_head, heads, begin;  // positions begin … begin + 1,023
  int32_t last;                               // largest position of the tile's tokens
  int32_t first;                              // smallest
  int32_t start, end;                         // the walk: its first block, the one behind its last
};

/// Finds a block's work. Grid: (tile, kv head and part of its group, range). False: it has none.
template <typename Shape>
VITRINE_DEVICE bool find_work(const AttentionArguments& a, AttentionWork& work) {
  const int group = a.heads / a.kv.kv_heads;
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
  if (work.last < work.begin || first_seen(a.window, work.first) >= work.begin + kAttentionRange) {
    return false;
  }
  work.start = walk_start(a.window, work.first, work.begin);
  work.end =
      work.last + 1 < work.begin + kAttentionRange ? work.last + 1 : work.begin + kAttentionRange;
  work.table = a.blocks.tables + a.blocks.sequences[work.tile.first_token] * a.blocks.stride;
  return true;
}

/// Calls start.operator()<query rows, elements of a thread>(grid).
template <typename Start>
Status with_attention_shape(const AttentionArguments& a, AttentionQueries queries,
                            const Start& start) {
  const int group = a.heads / a.kv.kv_heads, rows = static_cast<int>(queries);
  const int parts = divide_up(group, group < rows ? group : rows);
  const Dim3 grid = {static_cast<uint32_t>(a.tile_count),
                     static_cast<uint32_t>(a.kv.kv_heads * parts), static_cast<uint32_t>(a.ranges)};
  const bool wide = a.kv.head_dim > kAttentionThreads;
  if (queries == AttentionQueries::k8) {
    return wide ? start.template operator()<8, 2>(grid) : start.template operator()<8, 1>(grid);
  }
  return wide ? start.template operator()<16, 2>(grid) : start.template operator()<16, 1>(grid);
}

/// The state of row `q` before the first position of the range.
VITRINE_DEVICE void begin_row(const AttentionArguments& a, const AttentionWork& work,
                              const AttentionMemory& memory, int q) {
  const int token = q / work.heads;
  const bool valid = token < work.tile.count && work.first_head + q % work.heads <
                                                    (work.kv_head + 1) * (a.heads / a.kv.kv_heads);
  const int32_t position = valid ? a.positions[work.tile.first_token + token] : -1;
  const int head = valid ? work.first_head + q % work.heads : 0;
  const FirstState state = first_state(a, head, position, work.begin);
  memory.position[q] = position;
  memory.max[q] = state.max;
  memory.sum[q] = state.sum;
}

/// The query of row `q`, which is one.
VITRINE_DEVICE const float* query_of(const AttentionArguments& a, const AttentionWork& work,
                                     int q) {
  const int64_t token = work.tile.first_token + q / work.heads;
  const int64_t head = work.first_head + q % work.heads;
  return a.queries + (token * a.heads + head) * a.kv.head_dim;
}

/// The first `kWide` elements at `from`, widened.
template <typename Shape>
VITRINE_DEVICE void load_vector(const uint8_t* from, float (&x)[Shape::kWide]) {
  const Words4 words = load16(from);
  const uint32_t four[4] = {words.x, words.y, words.z, words.w};
  for (int i = 0; i < 4; ++i) {
    if constexpr (Shape::kElements == FloatFormat::kF32) {
      x[i] = bits_float(four[i]);
    } else if constexpr (Shape::kElements == FloatFormat::kBF16) {
      x[2 * i] = bits_float(four[i] << 16);
      x[2 * i + 1] = bits_float(four[i] & 0xffff0000u);
    } else {
      x[2 * i] = widen_f16(static_cast<uint16_t>(four[i]));
      x[2 * i + 1] = widen_f16(static_cast<uint16_t>(four[i] >> 16));
    }
  }
}

/// Starts the copy of the keys or values of positions start … start + 63, one storage block; behind
/// the tile's last position nothing is read.
template <typename Shape>
VITRINE_DEVICE void copy_positions(const AttentionArguments& a, const AttentionWork& work,
                                   const void* storage, int32_t start, uint8_t* to, int stride) {
  const int row_bytes = a.kv.head_dim * Shape::kBytes;
  const int pieces = row_bytes / 16;
  const int64_t block = work.table[start / kKvBlock];
  const auto* from = static_cast<const uint8_t*>(storage) +
                     (block * a.kv.kv_heads + work.kv_head) * kv_head_bytes(a.kv);
  for (int i = thread_index(); i < kAttentionPositions * pieces; i += kAttentionThreads) {
    const int j = i / pieces, piece = i % pieces;
    const bool valid = start + j <= work.last;
    copy_async16(to + j * stride + 16 * piece, from + (valid ? 16 * i : 0), valid);
  }
}

/// scores[q][j] = (q . k_j) * scale, elements in ascending order. Half of the threads take half of
/// the rows, for a position each.
template <typename Shape>
VITRINE_DEVICE void score_positions(const AttentionArguments& a, const AttentionMemory& memory) {
  constexpr int kOwn = Shape::kQueries / 2;
  const int j = thread_index() % kAttentionPositions;
  const int first = thread_index() / kAttentionPositions * kOwn;
  const int head_dim = a.kv.head_dim;
  const uint8_t* key = memory.keys + j * Shape::key_stride(head_dim);
  float dot[kOwn] = {};
  for (int d = 0; d < head_dim; d += Shape::kWide) {
    float k[Shape::kWide];
    load_vector<Shape>(key + d * Shape::kBytes, k);
    for (int q = 0; q < kOwn; ++q) {
      const float* query = memory.queries + (first + q) * head_dim + d;
      for (int i = 0; i < Shape::kWide; i += 4) {
        const Words4 words = load16(query + i);
        dot[q] = fma_rn(bits_float(words.x), k[i], dot[q]);
        dot[q] = fma_rn(bits_float(words.y), k[i + 1], dot[q]);
        dot[q] = fma_rn(bits_float(words.z), k[i + 2], dot[q]);
        dot[q] = fma_rn(bits_float(words.w), k[i + 3], dot[q]);
      }
    }
  }
  for (int q = 0; q < kOwn; ++q) {
    memory.scores[(first + q) * kAttentionPositions + j] = dot[q] * a.scale;
  }
}

/// The running softmax: 16 lanes for a row, as the CPU's 16 lanes.
template <typename Shape>
VITRINE_DEVICE void update_softmax(const AttentionMemory& memory, int32_t window, int32_t start) {
  constexpr int kEach = kAttentionPositions / 16;
  const int lane = lane_index() % 16;
  for (int q = warp_index() * 2 + lane_index() / 16; q < Shape::kQueries; q += 8) {
    float* scores = memory.scores + q * kAttentionPositions;
    const SeenPositions seen = seen_positions(window, memory.position[q], start);
    const float old_max = memory.max[q];
    float block_max = bits_float(0xff800000u);
    for (int i = 0; i < kEach; ++i) {
      const int j = lane + 16 * i;
      if (seen.has(j)) block_max = scores[j] > block_max ? scores[j] : block_max;
    }
    for (int width = 8; width > 0; width /= 2) {
      const float other = shuffle_xor(block_max, width);
      block_max = other > block_max ? other : block_max;
    }
    const float max = block_max > old_max ? block_max : old_max;
    float sum = 0.0f;
    for (int i = 0; i < kEach; ++i) {
      const int j = lane + 16 * i;
      if (!seen.has(j)) continue;
      scores[j] = exp_float(scores[j] - max);
      sum = sum + scores[j];
    }
    for (int width = 8; width > 0; width /= 2) sum = sum + shuffle_xor(sum, width);
    if (lane == 0) {
      // A block that the row does not see leaves its state as it is.
      const float correction = seen.any() ? exp_float(old_max - max) : 1.0f;
      memory.correction[q] = correction;
      if (seen.any()) memory.sum[q] = memory.sum[q] * correction + sum;
      memory.max[q] = max;
    }
  }
}

/// out[q][i] for element thread + 128 * i: corrected, then the block's values in ascending order.
/// kWhole: all rows see all of the block.
template <typename Shape, bool kWhole>
VITRINE_DEVICE void add_values(const AttentionArguments& a, const AttentionMemory& memory,
                               int32_t start, float (&out)[Shape::kQueries][Shape::kDims]) {
  const int head_dim = a.kv.head_dim;
  SeenPositions seen[Shape::kQueries];
  int most = 0;
  for (int q = 0; q < Shape::kQueries; ++q) {
    seen[q] = kWhole ? SeenPositions{0, kAttentionPositions}
                     : seen_positions(a.window, memory.position[q], start);
    most = seen[q].end > most ? seen[q].end : most;
    for (int i = 0; i < Shape::kDims; ++i) out[q][i] = out[q][i] * memory.correction[q];
  }
  for (int j = 0; j < most; j += 4) {
    float v[4][Shape::kDims] = {};
    for (int k = 0; k < 4; ++k) {
      const uint8_t* row = memory.values + (j + k) * head_dim * Shape::kBytes;
      for (int i = 0; i < Shape::kDims; ++i) {
        const int d = thread_index() + kAttentionThreads * i;
        if (d < head_dim) v[k][i] = load_element<Shape::kElements>(row, d);
      }
    }
    for (int q = 0; q < Shape::kQueries; ++q) {
      const Words4 words = load16(memory.scores + q * kAttentionPositions + j);
      const float e[4] = {bits_float(words.x), bits_float(words.y), bits_float(words.z),
                          bits_float(words.w)};
      for (int k = 0; k < 4; ++k) {
        if (!kWhole && !seen[q].has(j + k)) continue;  // what it does not see may be NaN
        for (int i = 0; i < Shape::kDims; ++i) out[q][i] = fma_rn(e[k], v[k][i], out[q][i]);
      }
    }
  }
}

/// Where the state of (token, head, range) is kept: head_dim floats, then max and sum.
VITRINE_DEVICE float* partial_at(const AttentionArguments& a, int64_t token, int head, int range) {
  return a.scratch + ((token * a.heads + head) * a.ranges + range) * (a.kv.head_dim + 2);
}

template <typename Shape>
VITRINE_DEVICE void write_rows(const AttentionArguments& a, const AttentionWork& work,
                               const AttentionMemory& memory,
                               const float (&out)[Shape::kQueries][Shape::kDims]) {
  for (int q = 0; q < Shape::kQueries; ++q) {
    const int32_t position = memory.position[q];
    // No such row, or it sees nothing of this range.
    if (!sees_range(a.window, position, work.begin)) continue;
    const int64_t token = work.tile.first_token + q / work.heads;
    const int head = work.first_head + q % work.heads;
    const bool is_all = position < kAttentionRange;
    const int64_t at = (token * a.heads + head) * a.kv.head_dim;
    float* row = is_all ? nullptr : partial_at(a, token, head, work.begin / kAttentionRange);
    for (int i = 0; i < Shape::kDims; ++i) {
      const int d = thread_index() + kAttentionThreads * i;
      if (d >= a.kv.head_dim) continue;
      if (is_all) {
        store_attention(a, at + d, out[q][i] / memory.sum[q]);
      } else {
        row[d] = out[q][i];
      }
    }
    if (!is_all && thread_index() == 0) {
      row[a.kv.head_dim] = memory.max[q];
      row[a.kv.head_dim + 1] = memory.sum[q];
    }
  }
}

}  // namespace vitrine::kernels::cuda
