// SPDX-License-Identifier: Apache-2.0
// The kernel for few tokens: it waits for weights and for nothing else. A warp takes a tile of 16
// rows (or one of gate and one of up), or a slice of its columns. Weights come by cp.async into a
// ring that is the warp's own, kStages chunks ahead; no warp waits for another one.
//
// Bytes: every byte of the matrices once for each tile of tokens (from the second one on out of the
// L2 cache), the activations once a warp (L1 and L2). 16 warps an SM with three chunks of 1 KiB
// each under way are 48 KiB, where 3.1 TB/s at 800 ns ask for 19 KiB an SM. A matrix of a decode
// step is read in a few microseconds, in which a warp cannot run many instructions: the loop over
// chunks is not unrolled, so that its code is fetched once.
//
// Where tiles do not cover the GPU, `slices` warps share a tile's columns. An output stays one
// chain over the groups in ascending order: the warps leave their terms in shared memory, meet
// once, and one thread adds them up.
#pragma once

#include "kernels/cuda/linear/epilogue.h"
#include "kernels/cuda/linear/multiply.h"
#include "kernels/cuda/linear/product_arguments.h"

namespace vitrine::kernels::cuda {

struct StreamArguments {
  ProductArguments product;
  int64_t tile_bytes = 0;
  int32_t slice_shift = 0;      // 2^slice_shift warps share a tile's columns
  int32_t slice_chunks = 0;     // chunks of a slice
  int32_t exchange_shift = 0;   // a tile has 2^exchange_shift tokens at most
  int32_t exchange_stride = 0;  // terms from one output to the next: odd, for the banks
};

/// One term of a chain.
struct alignas(8) Term {
  float x, y;
};

template <typename PackingOf, ActivationFormat kActivationsOf, int kRowTilesOf, int kTokenTilesOf,
          bool kExchangesOf>
struct StreamShape {
  using P = PackingOf;
  static constexpr ActivationFormat kActivations = kActivationsOf;
  static constexpr int kRowTiles = kRowTilesOf;  // 2: gate and up
  static constexpr int kTokenTiles = kTokenTilesOf;
  static constexpr bool kExchanges = kExchangesOf;  // more than one slice
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  // Fewer where a chunk has more bytes: as many are under way.
  static constexpr int kStages = P::kUnits <= 2 ? 4 : P::kUnits <= 4 ? 3 : 2;

  static constexpr int kMinBlocks = kTokenTiles == 2 && (kRowTiles == 2 || P::kGroups == 4) ? 1 : 2;

  static constexpr int64_t ring_bytes(const PackedLayout& layout) {
    return int64_t{kWarps} * kStages * kRowTiles * layout.chunk_bytes;
  }
  /// Terms of an output, and one more where they are even.
  static constexpr int exchange_stride(const PackedLayout& layout) {
    const int terms = P::kGroups * (layout.offset_format > OffsetFormat::kZeroPoint ? 2 : 1);
    return layout.chunks * terms | 1;
  }
  static constexpr int64_t exchange_bytes(const PackedLayout& layout, int slice_shift,
                                          int exchange_shift) {
    return (int64_t{kWarps * kRowTiles * 16} << exchange_shift >> slice_shift) *
           exchange_stride(layout) * static_cast<int64_t>(sizeof(Term));
  }
};

/// A lane's part of its tokens' rows in a chunk.
template <typename Shape>
struct StreamTokens {
  Words4 wide[has_records(Shape::kActivations) ? 1 : Shape::kTokenTiles][4];
  Words2 bytes[has_records(Shape::kActivations) ? Shape::kTokenTiles : 1][4];
  GroupFactor factors[has_records(Shape::kActivations) ? Shape::kTokenTiles : 1][2]
                     [Shape::P::kGroups];

  VITRINE_DEVICE_METHOD Words2 values8(int n, int block) const { return bytes[n][block]; }
  VITRINE_DEVICE_METHOD Words4 values16(int n, int block) const { return wide[n][block]; }
  VITRINE_DEVICE_METHOD GroupFactor factor(int n, int i, int group) const {
    return factors[n][i][group];
  }
};

/// Where the rows of a lane's tokens begin; where there is no token, the first one's.
template <typename Shape>
struct StreamRows {
  const uint8_t* values[Shape::kTokenTiles];      // of token 8n + g, at the lane's columns
  const uint8_t* factors[Shape::kTokenTiles][2];  // of tokens 8n + 2t and the next
};

template <typename Shape>
VITRINE_DEVICE StreamRows<Shape> find_rows(const ProductArguments& a, const TokenTile& tile) {
  constexpr int kRowBytes = chunk_row_bytes(Shape::kActivations);
  constexpr int kLaneBytes = has_records(Shape::kActivations) ? 8 : 16;
  const auto* rows = static_cast<const uint8_t*>(a.rows.activations);
  const int64_t row_bytes = int64_t{a.layout.chunks} * kRowBytes;
  const int g = lane_index() / 4, t = lane_index() % 4;
  StreamRows<Shape> found;
  VITRINE_UNROLL
  for (int n = 0; n < Shape::kTokenTiles; ++n) {
    const int32_t row = in_row_or_first(a.rows, tile, 8 * n + g);
    found.values[n] = rows + row * row_bytes + kLaneBytes * t;
    if constexpr (has_records(Shape::kActivations)) {
      for (int i = 0; i < 2; ++i) {
        found.factors[n][i] = rows + shuffle(row, 4 * (2 * t + i)) * row_bytes + kRecordCols;
      }
    }
  }
  return found;
}

template <typename Shape>
VITRINE_DEVICE void load_tokens(const StreamRows<Shape>& rows, int chunk,
                                StreamTokens<Shape>& tokens) {
  const int at = chunk * chunk_row_bytes(Shape::kActivations);
  VITRINE_UNROLL
  for (int n = 0; n < Shape::kTokenTiles; ++n) {
    VITRINE_UNROLL
    for (int block = 0; block < 4; ++block) {
      if constexpr (has_records(Shape::kActivations)) {
        tokens.bytes[n][block] = load8(rows.values[n] + at + 32 * block);
      } else {
        tokens.wide[n][block] = load16(rows.values[n] + at + 64 * block);
      }
    }
    if constexpr (has_records(Shape::kActivations)) {
      VITRINE_UNROLL
      for (int i = 0; i < 2; ++i) {
        VITRINE_UNROLL
        for (int group = 0; group < Shape::P::kGroups; ++group) {
          const Words2 words = load8(rows.factors[n][i] + at + 8 * group);
          tokens.factors[n][i][group] = {bits_float(words.x), static_cast<int32_t>(words.y)};
        }
      }
    }
  }
}

/// Adds the terms of one output in order.
VITRINE_DEVICE float add_exchanged(const Term* terms, int count) {
  float sum = 0.0f;
  VITRINE_UNROLL_BY(4)
  for (int i = 0; i < count; ++i) sum = fma_rn(terms[i].x, terms[i].y, sum);
  return sum;
}

/// A warp's chunks on their way through its ring. Every lane starts as many groups of copies as
/// chunks were asked for, whether there are so many or not.
template <typename Shape>
struct StreamRing {
  const uint8_t* next[Shape::kRowTiles];  // the chunks that are asked for next
  uint8_t* stages;
  int chunk_bytes, left;

  VITRINE_DEVICE_METHOD uint8_t* stage(int at) const {
    return stages + at * Shape::kRowTiles * chunk_bytes;
  }
  VITRINE_DEVICE_METHOD void ask(int to) {
    if (left > 0) {
      VITRINE_UNROLL
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        uint8_t* own = stage(to) + r * chunk_bytes + 16 * lane_index();
        const uint8_t* from = next[r] + 16 * lane_index();
        VITRINE_UNROLL
        for (int unit = 0; unit < Shape::P::kUnits; ++unit) {
          copy_async16(own + kPackedUnitBytes * unit, from + kPackedUnitBytes * unit);
        }
        // Scales and offsets are 512 bytes at most: one copy a lane, two with high bits before
        // them.
        constexpr int kNumbers = kPackedUnitBytes * Shape::P::kUnits;
        constexpr int kCopies = Shape::P::kHasHighBits ? 2 : 1;
        VITRINE_UNROLL
        for (int i = 0; i < kCopies; ++i) {
          const int at = kNumbers + kPackedUnitBytes * i;
          if (16 * lane_index() < chunk_bytes - at) copy_async16(own + at, from + at);
        }
        next[r] += chunk_bytes;
      }
    }
    --left;
    copy_async_commit();
  }
};

/// What becomes of a finished dot; of gate_up of both.
template <typename Shape>
VITRINE_DEVICE void finish_output(const ProductArguments& a, int32_t expert, int row_tile,
                                  int row_in_tile, int32_t out_row, float dot, float up) {
  const int64_t row = int64_t{row_tile} * 16 + row_in_tile;
  if (out_row < 0 || row >= a.layout.rows) return;
  if constexpr (Shape::kRowTiles == 2) {
    finish_gate_up(a.epilogue, out_row, row, dot, up);
  } else {
    finish_linear(a.epilogue, expert, out_row, row, dot);
  }
}

template <typename Shape>
VITRINE_KERNEL(Shape::kThreads, Shape::kMinBlocks)
void stream_kernel(const StreamArguments arguments) {
  using P = typename Shape::P;
  constexpr int kRowTiles = Shape::kRowTiles, kTokenTiles = Shape::kTokenTiles;
  const ProductArguments& a = arguments.product;
  const PackedLayout& layout = a.layout;
  const int slice_shift = Shape::kExchanges ? arguments.slice_shift : 0;
  const int units = Shape::kWarps >> slice_shift;  // tiles of rows of the block
  const int unit = warp_index() >> slice_shift;
  const int row_tile = block_x() * units + unit;
  const int slice = warp_index() - (unit << slice_shift);
  const int begin = slice * arguments.slice_chunks;
  const int last = begin + arguments.slice_chunks;
  const int end = row_tile >= layout.tiles ? begin : last < layout.chunks ? last : layout.chunks;
  auto* shared = dynamic_shared<uint8_t>();
  const TokenTile tile = find_tile(a.rows, block_y(), Shape::kTokens);
  if (tile.expert < 0) return;

  StreamRing<Shape> ring;
  ring.chunk_bytes = layout.chunk_bytes;
  ring.stages = shared + warp_index() * Shape::kStages * kRowTiles * layout.chunk_bytes;
  ring.left = end - begin;
  const int64_t first_byte =
      tile.expert * a.expert_bytes + row_tile * arguments.tile_bytes + begin * layout.chunk_bytes;
  VITRINE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) ring.next[r] = a.matrix[r] + first_byte;
  VITRINE_UNROLL_BY(1)
  for (int s = 0; s < Shape::kStages; ++s) ring.ask(s);
  const StreamRows<Shape> rows = find_rows<Shape>(a, tile);
  StreamTokens<Shape> ahead;
  if (begin < end) load_tokens<Shape>(rows, begin, ahead);

  const int terms_of_chunk = chunk_terms(layout, P::kGroups);
  auto* exchange = reinterpret_cast<Term*>(shared + Shape::ring_bytes(layout));
  // A lane's first output: row g of the unit's first tile, token 2t. [unit][r][row][token][term]
  const int tokens_shift = arguments.exchange_shift, term_stride = arguments.exchange_stride;
  const int token = lane_index() % 4 * 2;
  Term* own_terms =
      exchange +
      (((unit * kRowTiles * 16 + lane_index() / 4) << tokens_shift) + token) * term_stride +
      begin * terms_of_chunk;
  const int half_stride = 8 * term_stride << tokens_shift;  // to row g + 8
  const bool has_first = Shape::kExchanges && token < 1 << tokens_shift;
  const bool has_second = Shape::kExchanges && token + 1 < 1 << tokens_shift;

  float sums[kRowTiles][kTokenTiles][4] = {};
  int slot = 0;
  VITRINE_UNROLL_BY(1)
  for (int chunk = begin; chunk < end; ++chunk) {
    const StreamTokens<Shape> tokens = ahead;
    copy_async_wait<Shape::kStages - 1>();
    sync_warp();
    ChunkWords<P> weights[kRowTiles];
    VITRINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      load_chunk<P>(layout, ring.stage(slot) + r * layout.chunk_bytes, weights[r]);
    }
    sync_warp();  // all lanes have read what is overwritten now
    ring.ask(slot);
    slot = slot + 1 == Shape::kStages ? 0 : slot + 1;
    if (chunk + 1 < end) load_tokens<Shape>(rows, chunk + 1, ahead);
    multiply_chunk<P, Shape::kActivations, kRowTiles, kTokenTiles>(
        layout, weights, tokens,
        [&](int term, int r, int n, const float(&x)[4], const float(&y)[4]) {
          if constexpr (!Shape::kExchanges) {
            for (int i = 0; i < 4; ++i) sums[r][n][i] = fma_rn(x[i], y[i], sums[r][n][i]);
          } else {
            Term* to = own_terms + 2 * r * half_stride + 8 * n * term_stride + term;
            const bool first = n == 0 ? has_first : token + 8 * n < 1 << tokens_shift;
            const bool second = n == 0 ? has_second : token + 8 * n + 1 < 1 << tokens_shift;
            if (first) {
              to[0] = {x[0], y[0]};
              to[half_stride] = {x[2], y[2]};
            }
            if (second) {
              to[term_stride] = {x[1], y[1]};
              to[half_stride + term_stride] = {x[3], y[3]};
            }
          }
        });
    own_terms += terms_of_chunk;
  }
  copy_async_wait<0>();

  if constexpr (!Shape::kExchanges) {
    if (row_tile >= layout.tiles) return;
    VITRINE_UNROLL
    for (int n = 0; n < kTokenTiles; ++n) {
      VITRINE_UNROLL
      for (int side = 0; side < 2; ++side) {
        const int32_t out_row = out_row_of(a.rows, tile, 8 * n + token + side);
        for (int i = side; i < 4; i += 2) {
          finish_output<Shape>(a, tile.expert, row_tile, lane_index() / 4 + i / 2 * 8, out_row,
                               sums[0][n][i], sums[kRowTiles - 1][n][i]);
        }
      }
    }
  } else {
    sync_block();
    const int outputs_shift = 4 + tokens_shift;  // of a unit: 16 rows
    const int terms = layout.chunks * terms_of_chunk;
    VITRINE_UNROLL_BY(1)
    for (int i = thread_index(); i < units << outputs_shift; i += Shape::kThreads) {
      const int own_unit = i >> outputs_shift;
      const int own_tile = block_x() * units + own_unit;
      const int output = i - (own_unit << outputs_shift);
      const int row = output >> tokens_shift;
      const int32_t out_row = out_row_of(a.rows, tile, output - (row << tokens_shift));
      if (own_tile >= layout.tiles || out_row < 0) continue;
      const Term* own = exchange + ((own_unit * kRowTiles << outputs_shift) + output) * term_stride;
      const float dot = add_exchanged(own, terms);
      const float up =
          kRowTiles == 2 ? add_exchanged(own + (term_stride << outputs_shift), terms) : 0.0f;
      finish_output<Shape>(a, tile.expert, own_tile, row, out_row, dot, up);
    }
  }
}

}  // namespace vitrine::kernels::cuda
