// SPDX-License-Identifier: Apache-2.0
// Block attention of the AVX-512 table.
#include "../fetch.h"
#include "../window.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int kRuns = kAttentionBlock / 16;

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

/// Where up to 64 consecutive positions of one kv head lie, in runs of 16.
struct Runs {
  const uint8_t* keys[kRuns];    // [head_dim], stride block_size; position j at + j
  const uint8_t* values[kRuns];  // [16, head_dim]
};

/// Walks the block table 16 positions at a time.
template <WeightFormat kFormat>
struct RunCursor {
  const KvView& kv;
  const int32_t* block_table;
  int64_t kv_head;
  int32_t block_index;
  int32_t offset;

  void take(Runs* runs, int count) {
    constexpr int64_t kBytes = element_bytes(kFormat);
    const int64_t block_elements = static_cast<int64_t>(kv.head_dim) * kv.block_size;
    const auto* keys = static_cast<const uint8_t*>(kv.keys);
    const auto* values = static_cast<const uint8_t*>(kv.values);
    for (int i = 0; i < count; ++i) {
      const int64_t block = block_table[block_index];
      const int64_t base = (block * kv.kv_heads + kv_head) * block_elements;
      runs->keys[i] = keys + (base + offset) * kBytes;
      runs->values[i] = values + (base + static_cast<int64_t>(offset) * kv.head_dim) * kBytes;
      offset += 16;
      if (offset == kv.block_size) {
        offset = 0;
        ++block_index;
      }
    }
  }
};

/// The running softmax of one query. out is padded to whole vectors.
struct State {
  float max;
  float sum;
  alignas(64) float out[kMaxHeadDim];
};

/// What a block leaves for its values, of up to four queries.
struct Weights {
  alignas(64) float p[4][kAttentionBlock];
  alignas(64) float correction[16];  // lane q: exp(old max - max)
};

/// Scores kCount runs of 16 positions, leaves exp(score - max) in weights->p, updates max and sum.
template <WeightFormat kFormat, int kQueries, int kCount>
VITRINE_INLINE void softmax_runs(const Runs& runs, uint64_t seen, int64_t stride, int32_t head_dim,
                                 bool fetches_values, const float* const* query, float scale,
                                 State* state, Weights* weights) {
  // Lanes behind the last position may lie behind the memory.
  const auto last =
      static_cast<__mmask16>(~0u >> __builtin_clz(seen >> (16 * (kCount - 1)) & 0xffff));
  __m512 score[kQueries][kCount];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) score[q][i] = _mm512_setzero_ps();
  }
  for (int32_t d = 0; d < head_dim; ++d) {
    if (fetches_values) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) fetch(runs.values[i] + d * 16 * element_bytes(kFormat));
    }
    __m512 key[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount - 1; ++i) {
      key[i] = load_lanes<kFormat>(runs.keys[i] + d * stride);
      if (kQueries > 1) keep_in_register(key[i]);
    }
    key[kCount - 1] = load_lanes<kFormat>(runs.keys[kCount - 1] + d * stride, last);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const __m512 element = _mm512_set1_ps(query[q][d]);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) score[q][i] = _mm512_fmadd_ps(element, key[i], score[q][i]);
    }
  }
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 shift = _mm512_setzero_ps();  // lane q: old max - max
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    __m512 lanes_max = minus_infinity();
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const auto mask = static_cast<__mmask16>(seen >> (16 * i));
      score[q][i] = _mm512_mul_ps(score[q][i], factor);
      lanes_max = _mm512_mask_max_ps(lanes_max, mask, score[q][i], lanes_max);
    }
    const float block_max = max_lanes(lanes_max);
    const float max = block_max > state[q].max ? block_max : state[q].max;
    const auto lane = static_cast<__mmask16>(1u << q);
    shift = _mm512_mask_sub_ps(shift, lane, _mm512_set1_ps(state[q].max), _mm512_set1_ps(max));
    state[q].max = max;
    const __m512 subtracted = _mm512_set1_ps(max);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      _mm512_store_ps(weights->p[q] + 16 * i, _mm512_sub_ps(score[q][i], subtracted));
    }
  }
  _mm512_store_ps(weights->correction, exp_lanes(shift));
  // One query at a time: all at once would spill registers (measured).
#pragma GCC unroll 1
  for (int q = 0; q < kQueries; ++q) {
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const auto mask = static_cast<__mmask16>(seen >> (16 * i));
      const __m512 p = exp_lanes(_mm512_load_ps(weights->p[q] + 16 * i));
      _mm512_store_ps(weights->p[q] + 16 * i, p);
      sum = _mm512_mask_add_ps(sum, mask, sum, p);
    }
    state[q].sum = state[q].sum * weights->correction[q] + sum_lanes(sum);
  }
}

/// Adds p * value over the block for kVectors vectors of the head, from element `first`.
template <WeightFormat kFormat, int kQueries, int kVectors>
VITRINE_INLINE void add_values(const Runs& runs, int32_t begin, int32_t valid, int32_t first,
                               int32_t head_dim, const uint8_t* const* next_keys, int64_t stride,
                               const Weights& weights, State* state) {
  const __mmask16 last = first_lanes(head_dim - first - 16 * (kVectors - 1));
  constexpr int64_t kBytes = element_bytes(kFormat);
  __m512 sum[kQueries][kVectors];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 old = _mm512_load_ps(state[q].out + first + 16 * v);
      sum[q][v] = _mm512_mul_ps(old, _mm512_set1_ps(weights.correction[q]));
    }
  }
  for (int32_t start = 0; start < valid; start += 16) {
    const uint8_t* value = runs.values[start / 16] + first * kBytes;
    const int32_t end = valid - start < 16 ? valid : start + 16;
    const uint8_t* next = next_keys[start / 16];
    if (next != nullptr) next += first * stride;
    int32_t j = start;
    if (begin > start) {
      j = begin < end ? begin : end;
      value += static_cast<int64_t>(j - start) * head_dim * kBytes;
    }
    for (; j < end; ++j, value += head_dim * kBytes) {
      if (next != nullptr) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i, next += stride) fetch(next);
      }
      __m512 v[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors - 1; ++i) {
        v[i] = load_lanes<kFormat>(value + 16 * i * kBytes);
        if (kQueries > 1) keep_in_register(v[i]);
      }
      v[kVectors - 1] = load_lanes<kFormat>(value + 16 * (kVectors - 1) * kBytes, last);
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const __m512 p = _mm512_set1_ps(weights.p[q][j]);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sum[q][i] = _mm512_fmadd_ps(p, v[i], sum[q][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(state[q].out + first + 16 * v, sum[q][v]);
  }
}

/// Up to 64 positions of one kv head.
struct Block {
  Runs runs;
  bool fetches;  // values ahead of their use, and the next block's keys
  const uint8_t* next_keys[kRuns];
  int64_t stride;  // bytes from one element of the keys to the next
  int32_t head_dim;
  float scale;
};

/// The block's positions `begin` to `valid` - 1, for kQueries queries.
template <WeightFormat kFormat, int kQueries>
__attribute__((noinline)) void take_block(const Block& block, int32_t begin, int32_t valid,
                                          const float* const* query, State* state) {
  const Runs& runs = block.runs;
  const int32_t head_dim = block.head_dim;
  const int count = (valid + 15) / 16;
  const uint64_t seen = ~uint64_t{0} >> (64 - valid) & ~uint64_t{0} << begin;
  Weights weights;
  const auto softmax = [&](auto runs_of_16) __attribute__((always_inline)) {
    softmax_runs<kFormat, kQueries, decltype(runs_of_16)::value>(
        runs, seen, block.stride, head_dim, block.fetches, query, block.scale, state, &weights);
  };
  switch (count) {
    case 1: softmax(Count<1>{}); break;
    case 2: softmax(Count<2>{}); break;
    case 3: softmax(Count<3>{}); break;
    default: softmax(Count<4>{});
  }
  for (int32_t first = 0; first < head_dim; first += 64) {
    const int32_t rest = head_dim - first;
    if (rest > 48) {
      add_values<kFormat, kQueries, 4>(runs, begin, valid, first, head_dim, block.next_keys,
                                       block.stride, weights, state);
    } else if (rest > 32) {
      add_values<kFormat, kQueries, 3>(runs, begin, valid, first, head_dim, block.next_keys,
                                       block.stride, weights, state);
    } else if (rest > 16) {
      add_values<kFormat, kQueries, 2>(runs, begin, valid, first, head_dim, block.next_keys,
                                       block.stride, weights, state);
    } else {
      add_values<kFormat, kQueries, 1>(runs, begin, valid, first, head_dim, block.next_keys,
                                       block.stride, weights, state);
    }
  }
}

/// Takes a block for `count` queries, four at a time.
template <WeightFormat kFormat>
void take_block(const Block& block, int32_t begin, int32_t valid, int count,
                const float* const* query, State* state) {
  for (; count > 0; count -= 4, query += 4, state += 4) {
    switch (count) {
      case 1: take_block<kFormat, 1>(block, begin, valid, query, state); break;
      case 2: take_block<kFormat, 2>(block, begin, valid, query, state); break;
      case 3: take_block<kFormat, 3>(block, begin, valid, query, state); break;
      default: take_block<kFormat, 4>(block, begin, valid, query, state);
    }
  }
}

/// Finds the keys of the next block, of which `left` positions are to be seen; null where there is
/// none.
template <WeightFormat kFormat>
void find_next_keys(RunCursor<kFormat> cursor, int32_t left, const uint8_t** keys) {
  Runs next{};
  const int32_t positions = left < kAttentionBlock ? left : kAttentionBlock;
  if (left > 0) cursor.take(&next, (positions + 15) / 16);
  for (int i = 0; i < kRuns; ++i) keys[i] = next.keys[i];
}

/// `tokens` tokens from the span's token `first` on, heads `head` … head + heads - 1; at most
/// kQueriesAtOnce queries. Each block of positions is read once for all of them.
template <WeightFormat kFormat>
void attend(const KvView& kv, const AttentionSpan& span, int32_t first, int32_t tokens,
            int32_t head, int32_t heads) {
  State states[kQueriesAtOnce];
  const float* queries[kQueriesAtOnce];
  const int count = tokens * heads;
  for (int i = 0; i < count; ++i) {
    queries[i] = span.query + (first + i / heads) * span.query_token_stride +
                 (head + i % heads) * span.query_stride;
    states[i].max = first_max(span, head + i % heads);
    states[i].sum = first_sum(span);
    for (int32_t d = 0; d < kv.head_dim; d += 16) {
      _mm512_store_ps(states[i].out + d, _mm512_setzero_ps());
    }
  }
  const int32_t position = span.position + first;  // of the first of these tokens
  const int32_t end = position + tokens;
  const int32_t first_block = first_block_seen(span, position);
  const int32_t last_first = first_seen(span, end - 1);
  RunCursor<kFormat> cursor{kv, span.block_table, span.kv_head, first_block / kv.block_size,
                            first_block % kv.block_size};
  // More queries have enough to compute until the lines come.
  Block block{{}, count <= 4, {}, kv.block_size * element_bytes(kFormat), kv.head_dim, span.scale};
  for (int32_t start = first_block; start < end; start += kAttentionBlock) {
    const int32_t left = end - start < kAttentionBlock ? end - start : kAttentionBlock;
    cursor.take(&block.runs, (left + 15) / 16);
    if (block.fetches) find_next_keys(cursor, end - start - kAttentionBlock, block.next_keys);
    // All of them see all of it.
    if (start + kAttentionBlock <= position + 1 && last_first <= start) {
      take_block<kFormat>(block, 0, kAttentionBlock, count, queries, states);
      continue;
    }
    const int32_t above = tokens_above(span, position, tokens, start);
    for (int32_t t = start > position ? start - position : 0; t < above; ++t) {
      const int32_t hidden = first_seen(span, position + t) - start;
      const int32_t seen = position + t + 1 - start;
      take_block<kFormat>(block, hidden > 0 ? hidden : 0, seen < left ? seen : left, heads,
                          queries + t * heads, states + t * heads);
    }
  }
  for (int i = 0; i < count; ++i) {
    float* out = span.out + (first + i / heads) * span.out_token_stride +
                 (head + i % heads) * span.out_stride;
    const __m512 sum = _mm512_set1_ps(states[i].sum);
    for (int32_t d = 0; d < kv.head_dim; d += 16) {
      const __m512 v = _mm512_div_ps(_mm512_load_ps(states[i].out + d), sum);
      _mm512_mask_storeu_ps(out + d, first_lanes(kv.head_dim - d), v);
    }
  }
}

template <WeightFormat kFormat>
void attend_span(const KvView& kv, const AttentionSpan& span) {
  for (int32_t head = 0; head < span.heads; head += kQueriesAtOnce) {
    const int32_t heads = span.heads - head < kQueriesAtOnce ? span.heads - head : kQueriesAtOnce;
    const int32_t at_once = kQueriesAtOnce / heads;
    for (int32_t first = 0; first < span.tokens; first += at_once) {
      const int32_t left = span.tokens - first;
      attend<kFormat>(kv, span, first, left < at_once ? left : at_once, head, heads);
    }
  }
}

}  // namespace

void attend_f32(const KvView& kv, const AttentionSpan& span) {
  attend_span<WeightFormat::kF32>(kv, span);
}
void attend_f16(const KvView& kv, const AttentionSpan& span) {
  attend_span<WeightFormat::kF16>(kv, span);
}
void attend_bf16(const KvView& kv, const AttentionSpan& span) {
  attend_span<WeightFormat::kBF16>(kv, span);
}

}  // namespace vitrine::kernels::avx512
