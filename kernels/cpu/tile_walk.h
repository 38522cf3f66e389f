// SPDX-License-Identifier: Apache-2.0
// Attention over the tiles of a sequence, for every instruction set's files: which blocks are read
// open, closed or not at all. Internal linkage: each file has its own copy.
#pragma once

#include "tile_query.h"

namespace vitrine::kernels {
namespace {

/// Where tiles are decoded to.
struct TileMemory {
  alignas(64) float keys[kAttentionBlock * kMaxHeadDim];
  alignas(64) float values[kAttentionBlock * kMaxHeadDim];
  alignas(64) float key_scales[kAttentionBlock * kMaxTileGroups];
  alignas(64) float value_scales[kAttentionBlock * kMaxTileGroups];
};

/// The blocks of one kv head of a sequence, as tiles.
struct TileReader {
  const KvView& kv;
  const AttentionSpan& span;
  TileMemory& memory;

  const TileCodec& codec() const { return *kv.tiles; }
  /// A query at or behind this position reads block `index` of the sequence closed.
  int64_t closed_from(int32_t index) const {
    if (codec().closed_bytes == 0) return INT64_MAX;
    return (int64_t{index} + 1) * kv.block_size + codec().lag;
  }
  int64_t block_bytes(bool is_closed) const {
    return is_closed ? codec().closed_bytes : codec().open_bytes;
  }
  const std::byte* block(int32_t index, bool is_closed) const {
    const int64_t number = is_closed ? span.block_table[index] : span.open_table[index];
    return static_cast<const std::byte*>(is_closed ? kv.keys : kv.values) +
           (number * kv.kv_heads + span.kv_head) * block_bytes(is_closed);
  }
  /// What a query at `position` reads of the tile from `start` on, if its form is the whole one.
  TileAhead ahead(int32_t start, int32_t position) const {
    if (start > position) return {};
    const int32_t index = start / kv.block_size;
    const bool is_closed = position >= closed_from(index);
    const int64_t share = block_bytes(is_closed) * kAttentionBlock / kv.block_size;
    const std::byte* first =
        block(index, is_closed) + share * (start % kv.block_size / kAttentionBlock);
    return {first, first + share};
  }
  Tile read(int32_t start, int32_t positions, bool is_closed, TileReading reading) const {
    const std::byte* const of = block(start / kv.block_size, is_closed);
    const TileSource source{is_closed ? nullptr : of,
                            is_closed ? of : nullptr,
                            reading,
                            span.kv_head,
                            start % kv.block_size,
                            positions};
    const TileRoom room{memory.keys, memory.values, memory.key_scales, memory.value_scales};
    Tile tile{room.keys, room.values, room.key_scales, room.value_scales};
    codec().decode(codec(), source, room, tile);
    return tile;
  }
};

/// Asks the codec which closed blocks a query reads, and how.
template <class Table>
inline void choose_readings(const TileReader& reader, const TileState& state,
                            TileReading* readings) {
  const TileCodec& codec = reader.codec();
  const KvView& kv = reader.kv;
  const int32_t behind = state.position - codec.lag;
  const int32_t blocks = behind > 0 ? behind / kv.block_size : 0;
  for (int32_t i = 0; i < blocks; ++i) readings[i] = TileReading::kClosed;
  BlockChoice choice{
      reader.span.kv_head,
      state.position,
      reader.span.scale,
      state.query,
      blocks,
      readings,
      nullptr,
      static_cast<const std::byte*>(kv.keys) + reader.span.kv_head * codec.closed_bytes,
      reader.span.block_table,
      kv.kv_heads * codec.closed_bytes};
  if (codec.choose != nullptr) codec.choose(codec, choice);
  if (codec.refine == nullptr) return;
  BlockMass masses[kMaxChosenBlocks];
  for (int32_t i = 0; i < blocks; ++i) {
    masses[i] = {0.0f, 0.0f};
    if (readings[i] == TileReading::kSkip) continue;
    float max = -__builtin_inff(), sum = 0.0f;
    for (int32_t start = i * kv.block_size; start < (i + 1) * kv.block_size;
         start += kAttentionBlock) {
      const Tile tile = reader.read(start, kAttentionBlock, true, TileReading::kClosed);
      typename Table::Lanes score[kTileRuns];
      TileAhead none;
      score_tile<Table>(codec.closed, tile, kv.head_dim, reader.span.scale, state, none, score);
      softmax_tile<Table>(seen_in_tile(state, start), score, &max, &sum);
    }
    masses[i] = {max, sum};
  }
  choice.masses = masses;
  codec.refine(codec, choice);
}

/// `tokens` tokens from the span's token `first` on, heads `head` … head + heads - 1; at most
/// kQueriesAtOnce queries, and one where the codec chooses blocks.
template <class Table>
inline void attend_tiles(const KvView& kv, const AttentionSpan& span, int32_t first, int32_t tokens,
                         int32_t head, int32_t heads) {
  const TileCodec& codec = *kv.tiles;
  TileState states[kQueriesAtOnce];
  TileMemory memory;
  TileReading readings[kMaxChosenBlocks];
  const TileReader reader{kv, span, memory};
  const int32_t n = kv.head_dim, row = tile_row(n), count = tokens * heads;
  for (int32_t i = 0; i < count; ++i) {
    TileState& state = states[i];
    const float* query = span.query + (first + i / heads) * span.query_token_stride +
                         (head + i % heads) * span.query_stride;
    for (int32_t d = 0; d < row; ++d) state.query[d] = d < n ? query[d] : 0.0f;
    state.factor = quantize_pairs<Table>(state.query, n, state.pairs) * span.scale;
    state.max = first_max(span, head + i % heads);
    state.sum = first_sum(span);
    state.position = span.position + first + i / heads;
    state.first = first_seen(span, state.position);
    for (int32_t d = 0; d < row; d += 16) Table::store(state.out + d, Table::set(0.0f));
  }
  const bool chooses = codec.choose != nullptr || codec.refine != nullptr;
  if (chooses) choose_readings<Table>(reader, states[0], readings);
  const int32_t last = span.position + first + tokens - 1;
  constexpr int32_t kFewQueries = 4;
  int32_t begin = 0;
  for (int32_t start = first_block_seen(span, span.position + first); start <= last;
       start += kAttentionBlock) {
    // Queries in the order of their positions: those before `begin` do not reach the tile, those
    // from `end` on see only what is behind it, and those from `closed` on read the block closed.
    while (begin < count && states[begin].position < start) ++begin;
    int32_t end = begin;
    while (end < count && states[end].first < start + kAttentionBlock) ++end;
    const TileAhead ahead =
        count <= kFewQueries ? reader.ahead(start + kAttentionBlock, last) : TileAhead{};
    const int32_t index = start / kv.block_size;
    const int64_t closed_from = reader.closed_from(index);
    int32_t closed = begin;
    while (closed < end && states[closed].position < closed_from) ++closed;
    if (begin < closed) {
      const int32_t left = states[closed - 1].position + 1 - start;
      const Tile tile = reader.read(start, left < kAttentionBlock ? left : kAttentionBlock, false,
                                    TileReading::kClosed);
      for (int32_t i = begin; i < closed; ++i) {
        take_tile<Table>(codec.open, tile, n, span.scale, start, i == begin ? ahead : TileAhead{},
                         states[i]);
      }
    }
    if (closed < end) {
      const TileReading reading = chooses ? readings[index] : TileReading::kClosed;
      if (reading == TileReading::kSkip) continue;
      const Tile tile = reader.read(start, kAttentionBlock, true, reading);
      const TileForm& form = reading == TileReading::kFine ? codec.fine : codec.closed;
      for (int32_t i = closed; i < end; ++i) {
        take_tile<Table>(form, tile, n, span.scale, start, i == closed ? ahead : TileAhead{},
                         states[i]);
      }
    }
  }
  for (int32_t i = 0; i < count; ++i) {
    TileState& state = states[i];
    const auto sum = Table::set(state.sum);
    for (int32_t d = 0; d < row; d += 16) {
      Table::store(state.out + d, Table::div(Table::load(state.out + d), sum));
    }
    __builtin_memcpy(span.out + (first + i / heads) * span.out_token_stride +
                         (head + i % heads) * span.out_stride,
                     state.out, static_cast<size_t>(n) * sizeof(float));
  }
}

template <class Table>
inline void attend_tiles(const KvView& kv, const AttentionSpan& span) {
  const bool is_alone = kv.tiles->choose != nullptr || kv.tiles->refine != nullptr;
  const int32_t most = is_alone ? 1 : kQueriesAtOnce;
  for (int32_t head = 0; head < span.heads; head += most) {
    const int32_t heads = span.heads - head < most ? span.heads - head : most;
    const int32_t at_once = most / heads;
    for (int32_t first = 0; first < span.tokens; first += at_once) {
      const int32_t left = span.tokens - first;
      attend_tiles<Table>(kv, span, first, left < at_once ? left : at_once, head, heads);
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels
