// SPDX-License-Identifier: Apache-2.0
// Absorbed latent attention (MLA; DeepSeek-V2, 2024) for every instruction set's files: heads of
// one token stand in the lanes of a vector, so that each element of a key is read once for 16 of
// them, and a lane does what docs/numerics.md says of a query. Internal linkage: each file has its
// own copy. Its Table has the vectors (lanes.h); the parts of 16 lanes that a register holds; and
// kRows, how many sums of 16 lanes registers hold together.
#pragma once

#include "cpu_kernels.h"
#include "half.h"
#include "kv_int16.h"
#include "latent_sums.h"
#include "packed.h"

namespace vitrine::kernels {
namespace {

constexpr int32_t kLatentRows = 8;    // the most sums that registers hold together
constexpr int32_t kLatentTokens = 4;  // tokens that walk the blocks together

/// One token's query heads, and their running softmax.
struct LatentState {
  alignas(64) float query[kMaxLatentKey][kLatentLanes];
  alignas(64) float out[kMaxLatentValue + kLatentRows][kLatentLanes];
  alignas(64) float weights[kAttentionBlock][kLatentLanes];
  alignas(64) float max[kLatentLanes];
  alignas(64) float sum[kLatentLanes];
};

/// Returns the place of a block's position `offset`, `bytes` to a position.
inline uint8_t* latent_place(const KvView& kv, int64_t block, int32_t offset, int64_t bytes) {
  return static_cast<uint8_t*>(kv.keys) + (block * kv.block_size + offset) * bytes;
}
/// Returns where position `position` of a sequence lies.
inline const uint8_t* latent_key(const KvView& kv, const int32_t* block_table, int32_t position,
                                 int64_t bytes) {
  return latent_place(kv, block_table[position / kv.block_size], position % kv.block_size, bytes);
}

/// Brings the heads `first` … first + heads - 1 of a token into lanes; the other lanes are 0.
inline void gather_queries(const KvView& kv, const AttentionSpan& span, int32_t token,
                           int32_t first, int32_t heads, LatentState& state) {
  __builtin_memset(state.query, 0, sizeof(float) * kLatentLanes * static_cast<size_t>(kv.head_dim));
  for (int32_t lane = 0; lane < heads; ++lane) {
    const float* query =
        span.query + token * span.query_token_stride + (first + lane) * span.query_stride;
    for (int32_t d = 0; d < kv.head_dim; ++d) state.query[d][lane] = query[d];
  }
  __builtin_memset(state.out, 0, sizeof(float) * kLatentLanes * static_cast<size_t>(kv.value_dim));
  for (int32_t lane = 0; lane < kLatentLanes; ++lane) {
    state.max[lane] = -__builtin_inff();
    state.sum[lane] = 0.0f;
  }
}

template <class Table>
inline void scatter_outputs(const KvView& kv, const AttentionSpan& span, int32_t token,
                            int32_t first, int32_t heads, LatentState& state) {
  const auto sum = Table::load(state.sum);
  for (int32_t d = 0; d < kv.value_dim; ++d) {
    Table::store(state.out[d], Table::div(Table::load(state.out[d]), sum));
  }
  for (int32_t lane = 0; lane < heads; ++lane) {
    float* out = span.out + token * span.out_token_stride + (first + lane) * span.out_stride;
    for (int32_t d = 0; d < kv.value_dim; ++d) out[d] = state.out[d][lane];
  }
}

/// Puts exp(score - max) in place of the scores in state.weights; updates max and sum. Returns
/// exp(old max - max).
template <class Table>
inline typename Table::Lanes latent_softmax(int32_t valid, LatentState& state) {
  using Lanes = typename Table::Lanes;
  Lanes block_max = Table::set(-__builtin_inff());
  for (int32_t j = 0; j < valid; ++j) {
    block_max = Table::max(Table::load(state.weights[j]), block_max);
  }
  const Lanes old_max = Table::load(state.max);
  const Lanes new_max = Table::max(block_max, old_max);
  const Lanes correction = Table::exp(Table::sub(old_max, new_max));
  Table::store(state.max, new_max);
  Lanes sums[16];  // of the positions j mod 16, one of which a lane of other files is
  for (Lanes& sum : sums) sum = Table::set(0.0f);
  for (int32_t j = 0; j < valid; ++j) {
    const Lanes e = Table::exp(Table::sub(Table::load(state.weights[j]), new_max));
    Table::store(state.weights[j], e);
    sums[j % 16] = Table::add(sums[j % 16], e);
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] = Table::add(sums[i], sums[i + width]);
  }
  Table::store(state.sum, Table::add(Table::mul(Table::load(state.sum), correction), sums[0]));
  return correction;
}

/// kRows positions' scores, as sums over the elements of their keys.
template <class Table, int kRows>
__attribute__((noinline)) void score_rows(const float* const* keys, int32_t head_dim, float scale,
                                          const LatentState& state, float (*scores)[kLatentLanes]) {
  LaneSums<Table, float, kRows> sums;
  sums.clear();
  for (int32_t d = 0; d < head_dim; ++d) {
    sums.add(state.query[d], [&](int i) { return keys[i][d]; });
  }
  sums.store(scores);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    Table::store(scores[i], Table::mul(Table::load(scores[i]), Table::set(scale)));
  }
}

/// Adds weight * value for kRows elements of the value, from `first` on.
template <class Table, int kRows>
__attribute__((noinline)) void add_rows(const float* const* keys, int32_t valid, int32_t first,
                                        typename Table::Lanes correction, LatentState& state) {
  float(*out)[kLatentLanes] = state.out + first;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    Table::store(out[i], Table::mul(Table::load(out[i]), correction));
  }
  LaneSums<Table, float, kRows> sums;
  sums.load(out);
  for (int32_t j = 0; j < valid; ++j) {
    const float* key = keys[j] + first;
    sums.add(state.weights[j], [&](int i) { return key[i]; });
  }
  sums.store(out);
}

/// Up to 64 positions as floats: in place, or widened into `wide`.
template <WeightFormat kFormat>
inline void latent_rows(const KvView& kv, const AttentionSpan& span, int32_t start, int32_t valid,
                        float (*wide)[kMaxLatentKey], const float** keys) {
  for (int32_t j = 0; j < valid; ++j) {
    const uint8_t* key =
        latent_key(kv, span.block_table, start + j, float_kv_bytes(kFormat, kv.head_dim));
    if constexpr (kFormat == WeightFormat::kF32) {
      keys[j] = reinterpret_cast<const float*>(key);
    } else {
      for (int32_t d = 0; d < kv.head_dim; ++d) wide[j][d] = load_element(kFormat, key, d);
      keys[j] = wide[j];
    }
  }
}

/// One token meets `valid` positions of a block.
template <class Table>
inline void take_latent_block(const KvView& kv, float scale, const float* const* keys,
                              int32_t valid, LatentState& state) {
  int32_t j = 0;
  for (; j + Table::kRows <= valid; j += Table::kRows) {
    score_rows<Table, Table::kRows>(keys + j, kv.head_dim, scale, state, state.weights + j);
  }
  for (; j < valid; ++j) {
    score_rows<Table, 1>(keys + j, kv.head_dim, scale, state, state.weights + j);
  }
  const auto correction = latent_softmax<Table>(valid, state);
  int32_t d = 0;
  for (; d + Table::kRows <= kv.value_dim; d += Table::kRows) {
    add_rows<Table, Table::kRows>(keys, valid, d, correction, state);
  }
  for (; d < kv.value_dim; ++d) add_rows<Table, 1>(keys, valid, d, correction, state);
}

/// The walk over the blocks, which is read once for a tile of tokens and heads: begin(token, first,
/// heads, t) of each token, the t-th of the tile; find(start, valid) of each block; take(t, valid)
/// of each token that sees so many positions of it; end(…) as begin.
template <class Begin, class Find, class Take, class End>
inline void walk_latent(const AttentionSpan& span, const Begin& begin, const Find& find,
                        const Take& take, const End& end) {
  for (int32_t head = 0; head < span.heads; head += kLatentLanes) {
    const int32_t heads = span.heads - head < kLatentLanes ? span.heads - head : kLatentLanes;
    for (int32_t first = 0; first < span.tokens; first += kLatentTokens) {
      const int32_t left = span.tokens - first;
      const int32_t tokens = left < kLatentTokens ? left : kLatentTokens;
      for (int32_t t = 0; t < tokens; ++t) begin(first + t, head, heads, t);
      const int32_t last = span.position + first + tokens - 1;
      for (int32_t start = 0; start <= last; start += kAttentionBlock) {
        const auto positions_seen = [&](int32_t position) {
          const int32_t seen = position + 1 - start;
          return seen < kAttentionBlock ? seen : kAttentionBlock;
        };
        find(start, positions_seen(last));
        for (int32_t t = 0; t < tokens; ++t) {
          const int32_t valid = positions_seen(span.position + first + t);
          if (valid > 0) take(t, valid);
        }
      }
      for (int32_t t = 0; t < tokens; ++t) end(first + t, head, heads, t);
    }
  }
}

template <class Table, WeightFormat kFormat>
inline void attend_latent_floats(const KvView& kv, const AttentionSpan& span) {
  constexpr bool kWidens = kFormat != WeightFormat::kF32;
  alignas(64) float wide[kWidens ? kAttentionBlock : 1][kMaxLatentKey];
  const float* keys[kAttentionBlock];
  LatentState states[kLatentTokens];
  walk_latent(
      span,
      [&](int32_t token, int32_t head, int32_t heads, int32_t t) {
        gather_queries(kv, span, token, head, heads, states[t]);
      },
      [&](int32_t start, int32_t valid) {
        latent_rows<kFormat>(kv, span, start, valid, wide, keys);
      },
      [&](int32_t t, int32_t valid) {
        take_latent_block<Table>(kv, span.scale, keys, valid, states[t]);
      },
      [&](int32_t token, int32_t head, int32_t heads, int32_t t) {
        scatter_outputs<Table>(kv, span, token, head, heads, states[t]);
      });
}

/// Writes n numbers, of which an odd last one has a 0 behind it; returns their scale.
inline float quantize_latent(const float* x, int32_t n, int16_t* numbers) {
  if (n % 2 != 0) numbers[n] = 0;
  return quantize_int16(x, n, numbers);
}

/// A token's state holds this besides where keys are integers.
struct LatentNumbers {
  alignas(64) int32_t query[kMaxLatentKey / 2][kLatentLanes];    // two numbers a word
  alignas(64) int32_t pairs[kAttentionBlock / 2][kLatentLanes];  // of the weights, the same
  alignas(64) float factor[kLatentLanes];  // of scores: the query's scale times that of all scores
  alignas(64) float unit[kLatentLanes];    // what a unit of a block's weights means
};

/// Up to 64 positions.
struct LatentIntegers {
  // A word has positions 2i and 2i + 1. A row is a line longer than the values: rows of 2 KiB would
  // all lie in two sets of the first-level cache.
  alignas(64) int32_t values[kAttentionBlock / 2][kMaxLatentValue + kLatentLanes];
  const int32_t* keys[kAttentionBlock];
  float scales[kAttentionBlock];
};

inline void quantize_queries(const KvView& kv, const AttentionSpan& span, int32_t token,
                             int32_t first, int32_t heads, LatentNumbers& numbers_of) {
  const int32_t words = element_pairs(kv.head_dim);
  __builtin_memset(numbers_of.query, 0,
                   sizeof(int32_t) * kLatentLanes * static_cast<size_t>(words));
  for (int32_t lane = 0; lane < kLatentLanes; ++lane) {
    numbers_of.factor[lane] = 0.0f;
    if (lane >= heads) continue;
    int16_t numbers[kMaxLatentKey + 1];
    const float* query =
        span.query + token * span.query_token_stride + (first + lane) * span.query_stride;
    numbers_of.factor[lane] = quantize_latent(query, kv.head_dim, numbers) * span.scale;
    for (int32_t d = 0; d < words; ++d) {
      __builtin_memcpy(&numbers_of.query[d][lane], numbers + 2 * d, sizeof(int32_t));
    }
  }
}

/// Finds up to 64 positions' keys, and puts their values in pairs of positions.
inline void find_integers(const KvView& kv, const AttentionSpan& span, int32_t start, int32_t valid,
                          LatentIntegers& integers) {
  const int32_t words = element_pairs(kv.head_dim);
  for (int32_t j = 0; j < valid; ++j) {
    const uint8_t* key = latent_key(kv, span.block_table, start + j, int16_kv_bytes(kv.head_dim));
    integers.keys[j] = reinterpret_cast<const int32_t*>(key);
    __builtin_memcpy(&integers.scales[j], integers.keys[j] + words, sizeof(float));
  }
  for (int32_t j = 0; j < valid; j += 2) {
    const auto* first = reinterpret_cast<const uint16_t*>(integers.keys[j]);
    const auto* second =
        reinterpret_cast<const uint16_t*>(integers.keys[j + 1 < valid ? j + 1 : j]);
    const uint32_t mask = j + 1 < valid ? 0xffffu : 0u;
    for (int32_t d = 0; d < kv.value_dim; ++d) {
      integers.values[j / 2][d] =
          static_cast<int32_t>(uint32_t{first[d]} | (uint32_t{second[d]} & mask) << 16);
    }
  }
}

template <class Table, int kRows>
__attribute__((noinline)) void score_integer_rows(int32_t first, int32_t words,
                                                  const LatentIntegers& integers,
                                                  const LatentNumbers& own, LatentState& state) {
  const int32_t* const* keys = integers.keys + first;
  LaneSums<Table, int32_t, kRows> sums;
  sums.clear();
  for (int32_t d = 0; d < words; ++d) {
    sums.add(own.query[d], [&](int i) { return keys[i][d]; });
  }
  alignas(64) int32_t dots[kRows][kLatentLanes];
  sums.store(dots);
  const auto factor = Table::load(own.factor);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const auto scale = Table::mul(Table::set(integers.scales[first + i]), factor);
    const auto dot = Table::widen(Table::load_integers(dots[i]));
    Table::store(state.weights[first + i], Table::mul(dot, scale));
  }
}

/// The block's weights, times their values' scales, as integers in pairs.
template <class Table>
inline void weigh_integers(int32_t valid, const LatentIntegers& integers, LatentNumbers& own,
                           LatentState& state) {
  auto largest = Table::set(0.0f), infinite = Table::set(0.0f);
  for (int32_t j = 0; j < valid; ++j) {
    const auto weight = Table::mul(Table::load(state.weights[j]), Table::set(integers.scales[j]));
    Table::store(state.weights[j], weight);
    largest = Table::max(weight, largest);
    infinite = Table::fma(weight, Table::set(0.0f), infinite);  // NaN, where one is not finite
  }
  alignas(64) float magnitudes[kLatentLanes], is_zero[kLatentLanes], factors[kLatentLanes];
  alignas(64) int32_t masks[kLatentLanes];
  Table::store(magnitudes, largest);
  Table::store(is_zero, infinite);
  for (int32_t lane = 0; lane < kLatentLanes; ++lane) {
    const Int16Scale scale = weight_scale(magnitudes[lane], is_zero[lane] == 0.0f);
    factors[lane] = scale.factor;
    own.unit[lane] = scale.scale;
    masks[lane] = scale.factor == 0.0f ? 0 : -1;
  }
  const auto factor = Table::load(factors);
  const auto mask = Table::load_integers(masks);
  const auto number = [&](int32_t j) {
    return Table::bit_and(Table::round(Table::mul(Table::load(state.weights[j]), factor)), mask);
  };
  for (int32_t j = 0; j < valid; j += 2) {
    const auto second = j + 1 < valid ? number(j + 1) : Table::set_integers(0);
    Table::store_integers(own.pairs[j / 2], Table::pair(number(j), second));
  }
}

template <class Table, int kRows>
__attribute__((noinline)) void add_integer_rows(int32_t pairs, int32_t first,
                                                typename Table::Lanes correction,
                                                const LatentIntegers& integers,
                                                const LatentNumbers& own, LatentState& state) {
  LaneSums<Table, int32_t, kRows> sums;
  sums.clear();
  for (int32_t j = 0; j < pairs; ++j) {
    const int32_t* value = integers.values[j] + first;
    sums.add(own.pairs[j], [&](int i) { return value[i]; });
  }
  alignas(64) int32_t dots[kRows][kLatentLanes];
  sums.store(dots);
  const auto unit = Table::load(own.unit);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const auto old = Table::mul(Table::load(state.out[first + i]), correction);
    Table::store(state.out[first + i],
                 Table::fma(Table::widen(Table::load_integers(dots[i])), unit, old));
  }
}

/// As take_latent_block.
template <class Table>
inline void take_latent_integers(const KvView& kv, const LatentIntegers& integers, int32_t valid,
                                 LatentNumbers& own, LatentState& state) {
  const int32_t words = element_pairs(kv.head_dim);
  int32_t j = 0;
  for (; j + Table::kRows <= valid; j += Table::kRows) {
    score_integer_rows<Table, Table::kRows>(j, words, integers, own, state);
  }
  for (; j < valid; ++j) score_integer_rows<Table, 1>(j, words, integers, own, state);
  const auto correction = latent_softmax<Table>(valid, state);
  weigh_integers<Table>(valid, integers, own, state);
  const int32_t pairs = (valid + 1) / 2;
  int32_t d = 0;
  for (; d + Table::kRows <= kv.value_dim; d += Table::kRows) {
    add_integer_rows<Table, Table::kRows>(pairs, d, correction, integers, own, state);
  }
  for (; d < kv.value_dim; ++d) {
    add_integer_rows<Table, 1>(pairs, d, correction, integers, own, state);
  }
}

template <class Table>
inline void attend_latent_integers(const KvView& kv, const AttentionSpan& span) {
  LatentState states[kLatentTokens];
  LatentNumbers numbers[kLatentTokens];
  LatentIntegers integers;
  walk_latent(
      span,
      [&](int32_t token, int32_t head, int32_t heads, int32_t t) {
        gather_queries(kv, span, token, head, heads, states[t]);
        quantize_queries(kv, span, token, head, heads, numbers[t]);
      },
      [&](int32_t start, int32_t valid) { find_integers(kv, span, start, valid, integers); },
      [&](int32_t t, int32_t valid) {
        take_latent_integers<Table>(kv, integers, valid, numbers[t], states[t]);
      },
      [&](int32_t token, int32_t head, int32_t heads, int32_t t) {
        scatter_outputs<Table>(kv, span, token, head, heads, states[t]);
      });
}

}  // namespace
}  // namespace vitrine::kernels
