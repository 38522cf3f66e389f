// SPDX-License-Identifier: Apache-2.0
// A query meets a tile that a codec gives (kv_tiles.h): the orders of "Tiles" in docs/numerics.md,
// for every instruction set's files. Internal linkage: each file has its own copy.
#pragma once

#include "kv_int16.h"
#include "kv_tiles.h"

namespace vitrine::kernels {
namespace {

#define VITRINE_TILE __attribute__((always_inline)) inline

constexpr int32_t kTileRuns = kAttentionBlock / 16;
constexpr int32_t kMaxTileGroups = kMaxHeadDim / 16;

/// One query, and its running softmax. What is behind the head's elements is 0.
struct TileState {
  alignas(64) float query[kMaxHeadDim];
  alignas(64) int32_t pairs[kMaxHeadDim / 2];  // the query's integers, two a word
  alignas(64) float out[kMaxHeadDim];
  float factor;  // of integer scores: the query's scale times that of all scores
  float max;
  float sum;
  int32_t first;  // position that it sees
  int32_t position;
};

/// A block's weights of a query as integers, two positions a word, and what a unit of them means.
struct TileWeights {
  alignas(64) int32_t pairs[kAttentionBlock / 2];
  float unit;
};

/// The bytes of the block that is read next, of which a few lines are fetched with each step of a
/// tile; none where enough queries share a tile that there is something to compute until they come.
struct TileAhead {
  const std::byte* line = nullptr;
  const std::byte* end = nullptr;
  VITRINE_TILE void fetch_some() {
    if (line >= end) return;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) fetch(line + 64 * i);
    line += 4 * 64;
  }
};

/// A bit for each of the tile's positions that the query sees.
VITRINE_TILE uint64_t seen_in_tile(const TileState& state, int32_t start) {
  const int32_t valid = state.position + 1 - start, hidden = state.first - start;
  const uint64_t behind = valid >= 64 ? ~uint64_t{0} : (uint64_t{1} << valid) - 1;
  return hidden <= 0 ? behind : behind & ~uint64_t{0} << hidden;
}
VITRINE_TILE uint32_t bits_of_run(uint64_t seen, int run) {
  return static_cast<uint32_t>(seen >> (16 * run)) & 0xffff;
}

/// quantize_int16 of a row that is 0 behind its elements, as pairs.
template <class Table>
inline float quantize_pairs(const float* x, int32_t n, int32_t* pairs) {
  auto magnitudes = Table::set(0.0f), poison = Table::set(0.0f);
  for (int32_t i = 0; i < n; i += 16) {
    const auto v = Table::load(x + i);
    magnitudes = Table::max(Table::max(v, Table::sub(Table::set(0.0f), v)), magnitudes);
    poison = Table::fma(v, Table::set(0.0f), poison);
  }
  bool has_nan = false;
  if (const float spoilt = Table::sum(poison); spoilt != spoilt) {  // by a NaN or an infinity
    for (int32_t i = 0; i < n; ++i) has_nan = has_nan || x[i] != x[i];
  }
  const Int16Scale scale = int16_scale(Table::largest(magnitudes), has_nan, largest_kv_number(n));
  for (int32_t i = 0; i < n; i += 16) {
    const auto v = scale.factor == 0.0f ? Table::set(0.0f)
                                        : Table::mul(Table::load(x + i), Table::set(scale.factor));
    Table::store_narrow(pairs + i / 2, Table::round(v));
  }
  return scale.scale;
}

/// Adds the products of pairs [begin, end) of elements to `dot`.
template <class Table, class Number>
VITRINE_TILE void add_dots(const Number* keys, const int32_t* pairs, int32_t begin, int32_t end,
                           TileAhead& ahead, typename Table::Integers (&dot)[kTileRuns]) {
  for (int32_t d = begin; d < end; ++d) {
    ahead.fetch_some();
    const auto element = Table::set_integers(pairs[d]);
#pragma GCC unroll 4
    for (int i = 0; i < kTileRuns; ++i) {
      const Number* words = keys + (d * kAttentionBlock + 16 * i) * 2;
      dot[i] = Table::dot(dot[i], Table::load_words(words), element);
    }
  }
}

template <class Table>
VITRINE_TILE void score_floats(const Tile& tile, int32_t n, float scale, const TileState& state,
                               TileAhead& ahead, typename Table::Lanes (&score)[kTileRuns]) {
  const auto* keys = static_cast<const float*>(tile.keys);
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) score[i] = Table::set(0.0f);
  for (int32_t d = 0; d < n; ++d) {
    ahead.fetch_some();
    const auto element = Table::set(state.query[d]);
#pragma GCC unroll 4
    for (int i = 0; i < kTileRuns; ++i) {
      score[i] = Table::fma(element, Table::load(keys + d * kAttentionBlock + 16 * i), score[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) score[i] = Table::mul(score[i], Table::set(scale));
}

template <class Table>
VITRINE_TILE void score_int16(const Tile& tile, int32_t n, const TileState& state, TileAhead& ahead,
                              typename Table::Lanes (&score)[kTileRuns]) {
  typename Table::Integers dot[kTileRuns];
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) dot[i] = Table::set_integers(0);
  add_dots<Table>(static_cast<const int16_t*>(tile.keys), state.pairs, 0, element_pairs(n), ahead,
                  dot);
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) {
    const auto scale = Table::mul(Table::load(tile.key_scales + 16 * i), Table::set(state.factor));
    score[i] = Table::mul(Table::widen(dot[i]), scale);
  }
}

template <class Table>
VITRINE_TILE void score_int8(const Tile& tile, int32_t group, int32_t n, const TileState& state,
                             TileAhead& ahead, typename Table::Lanes (&score)[kTileRuns]) {
  const auto* keys = static_cast<const int8_t*>(tile.keys);
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) score[i] = Table::set(0.0f);
  const float* scales = tile.key_scales;
  const int32_t pairs = element_pairs(n);
  for (int32_t begin = 0; begin < pairs; begin += group / 2, scales += kAttentionBlock) {
    const int32_t end = pairs - begin < group / 2 ? pairs : begin + group / 2;
    typename Table::Integers dot[kTileRuns];
#pragma GCC unroll 4
    for (int i = 0; i < kTileRuns; ++i) dot[i] = Table::set_integers(0);
    add_dots<Table>(keys, state.pairs, begin, end, ahead, dot);
#pragma GCC unroll 4
    for (int i = 0; i < kTileRuns; ++i) {
      score[i] = Table::fma(Table::widen(dot[i]), Table::load(scales + 16 * i), score[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) score[i] = Table::mul(score[i], Table::set(state.factor));
}

/// Scores a tile whose elements each have a scale, which the query takes in.
template <class Table>
VITRINE_TILE void score_channels(const Tile& tile, int32_t n, float scale, const TileState& state,
                                 TileAhead& ahead, typename Table::Lanes (&score)[kTileRuns]) {
  alignas(64) float query[kMaxHeadDim];
  alignas(64) int32_t pairs[kMaxHeadDim / 2];
  for (int32_t d = 0; d < n; d += 16) {
    Table::store(query + d,
                 Table::mul(Table::load(state.query + d), Table::load(tile.key_scales + d)));
  }
  for (int32_t d = n; d < tile_row(n); ++d) query[d] = 0.0f;
  const auto factor = Table::set(quantize_pairs<Table>(query, n, pairs) * scale);
  typename Table::Integers dot[kTileRuns];
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) dot[i] = Table::set_integers(0);
  add_dots<Table>(static_cast<const int8_t*>(tile.keys), pairs, 0, element_pairs(n), ahead, dot);
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) score[i] = Table::mul(Table::widen(dot[i]), factor);
}

template <class Table>
VITRINE_TILE void score_tile(const TileForm& form, const Tile& tile, int32_t n, float scale,
                             const TileState& state, TileAhead& ahead,
                             typename Table::Lanes (&score)[kTileRuns]) {
  if (form.kind == TileKind::kFloat)
    return score_floats<Table>(tile, n, scale, state, ahead, score);
  if (form.kind == TileKind::kInt16) return score_int16<Table>(tile, n, state, ahead, score);
  if (form.key_group == 0) return score_channels<Table>(tile, n, scale, state, ahead, score);
  score_int8<Table>(tile, form.key_group, n, state, ahead, score);
}

/// Puts exp(score - max) in place of the scores, 0 where nothing is seen; updates max and sum.
/// Returns exp(old max - max).
template <class Table>
VITRINE_TILE float softmax_tile(uint64_t seen, typename Table::Lanes (&score)[kTileRuns],
                                float* running_max, float* running_sum) {
  auto largest = Table::set(-__builtin_inff());
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) {
    score[i] = Table::select(bits_of_run(seen, i), score[i], Table::set(-__builtin_inff()));
    largest = Table::max(score[i], largest);
  }
  const float tile_max = Table::largest(largest);
  const float max = tile_max > *running_max ? tile_max : *running_max;
  alignas(64) float shifted[16];
  Table::store(shifted, Table::exp(Table::set(*running_max - max)));
  auto sum = Table::set(0.0f);
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) {
    const auto e = Table::exp(Table::sub(score[i], Table::set(max)));
    score[i] = Table::select(bits_of_run(seen, i), e, Table::set(0.0f));
    sum = Table::add(sum, score[i]);
  }
  *running_sum = *running_sum * shifted[0] + Table::sum(sum);
  *running_max = max;
  return shifted[0];
}

/// Makes integers of a tile's weights, each times its value's scale where there are scales.
template <class Table>
VITRINE_TILE void weigh_tile(const typename Table::Lanes (&e)[kTileRuns], const float* scales,
                             uint64_t seen, TileWeights* weights) {
  typename Table::Lanes weight[kTileRuns];
  auto largest = Table::set(0.0f), poison = Table::set(0.0f);
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) {
    weight[i] = e[i];
    if (scales != nullptr) {
      weight[i] = Table::select(bits_of_run(seen, i),
                                Table::mul(e[i], Table::load(scales + 16 * i)), Table::set(0.0f));
    }
    largest = Table::max(weight[i], largest);
    poison = Table::fma(weight[i], Table::set(0.0f), poison);
  }
  const float spoilt = Table::sum(poison);
  const Int16Scale scale = weight_scale(Table::largest(largest), spoilt == spoilt);
#pragma GCC unroll 4
  for (int i = 0; i < kTileRuns; ++i) {
    const auto scaled =
        scale.factor == 0.0f ? Table::set(0.0f) : Table::mul(weight[i], Table::set(scale.factor));
    Table::store_narrow(weights->pairs + 8 * i, Table::round(scaled));
  }
  weights->unit = scale.scale;
}

template <class Table, int kVectors>
VITRINE_TILE void add_float_values(const float* values, int32_t row, int32_t first, int32_t begin,
                                   int32_t end, const float* e, float correction, TileAhead& ahead,
                                   float* out) {
  typename Table::Lanes sum[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    sum[v] = Table::mul(Table::load(out + first + 16 * v), Table::set(correction));
  }
  for (int32_t j = begin; j < end; ++j) {
    ahead.fetch_some();
    const auto weight = Table::set(e[j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[v] = Table::fma(weight, Table::load(values + j * row + first + 16 * v), sum[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) Table::store(out + first + 16 * v, sum[v]);
}

/// Adds values to kVectors vectors of the head, from element `first`. Weights are those of the
/// groups of so many elements; group 0: one for all.
template <class Table, class Number, int kVectors>
VITRINE_TILE void add_values(const Number* values, int32_t row, int32_t first, int32_t begin,
                             int32_t end, int32_t group, const TileWeights* weights,
                             const float* channels, float correction, TileAhead& ahead,
                             float* out) {
  typename Table::Integers sum[kVectors];
  const int32_t* pairs[kVectors];
  float unit[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const TileWeights& own = weights[group == 0 ? 0 : (first + 16 * v) / group];
    pairs[v] = own.pairs;
    unit[v] = own.unit;
    sum[v] = Table::set_integers(0);
  }
  for (int32_t j = begin; j < end; ++j) {
    ahead.fetch_some();
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Number* words = values + (j * row + first + 16 * v) * 2;
      sum[v] = Table::dot(sum[v], Table::load_words(words), Table::set_integers(pairs[v][j]));
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int32_t d = first + 16 * v;
    auto scale = Table::set(unit[v]);
    if (channels != nullptr) scale = Table::mul(scale, Table::load(channels + d));
    const auto old = Table::mul(Table::load(out + d), Table::set(correction));
    Table::store(out + d, Table::fma(Table::widen(sum[v]), scale, old));
  }
}

template <class Table, class Number>
VITRINE_TILE void add_all_values(const Tile& tile, int32_t n, int32_t begin, int32_t end,
                                 int32_t group, const TileWeights* weights, const float* channels,
                                 float correction, TileAhead& ahead, float* out) {
  const auto* values = static_cast<const Number*>(tile.values);
  const int32_t row = tile_row(n);
  int32_t first = 0;
  for (; first + 64 <= row; first += 64) {
    add_values<Table, Number, 4>(values, row, first, begin, end, group, weights, channels,
                                 correction, ahead, out);
  }
  for (; first < row; first += 16) {
    add_values<Table, Number, 1>(values, row, first, begin, end, group, weights, channels,
                                 correction, ahead, out);
  }
}

/// A query meets a tile, of which it sees something.
template <class Table>
inline void take_tile(const TileForm& form, const Tile& tile, int32_t n, float scale, int32_t start,
                      TileAhead ahead, TileState& state) {
  const uint64_t seen = seen_in_tile(state, start);
  typename Table::Lanes e[kTileRuns];
  score_tile<Table>(form, tile, n, scale, state, ahead, e);
  const float correction = softmax_tile<Table>(seen, e, &state.max, &state.sum);
  const int32_t begin = __builtin_ctzll(seen), end = 64 - __builtin_clzll(seen);
  if (form.kind == TileKind::kFloat) {
    alignas(64) float weights[kAttentionBlock];
    for (int i = 0; i < kTileRuns; ++i) Table::store(weights + 16 * i, e[i]);
    const auto* values = static_cast<const float*>(tile.values);
    const int32_t row = tile_row(n);
    int32_t first = 0;
    for (; first + 128 <= row; first += 128) {
      add_float_values<Table, 8>(values, row, first, begin, end, weights, correction, ahead,
                                 state.out);
    }
    for (; first < row; first += 16) {
      add_float_values<Table, 1>(values, row, first, begin, end, weights, correction, ahead,
                                 state.out);
    }
    return;
  }
  const bool is_wide = form.kind == TileKind::kInt16,
             by_channel = !is_wide && form.value_group == 0;
  const int32_t group = is_wide ? 0 : form.value_group;
  TileWeights weights[kMaxTileGroups];
  const int32_t groups = group == 0 ? 1 : (n + group - 1) / group;
  for (int32_t g = 0; g < groups; ++g) {
    const float* scales = by_channel ? nullptr : tile.value_scales + g * kAttentionBlock;
    weigh_tile<Table>(e, scales, seen, weights + g);
  }
  const float* channels = by_channel ? tile.value_scales : nullptr;
  if (is_wide) {
    add_all_values<Table, int16_t>(tile, n, begin / 2, (end + 1) / 2, 0, weights, nullptr,
                                   correction, ahead, state.out);
  } else {
    add_all_values<Table, int8_t>(tile, n, begin / 2, (end + 1) / 2, group, weights, channels,
                                  correction, ahead, state.out);
  }
}

#undef VITRINE_TILE

}  // namespace
}  // namespace vitrine::kernels
