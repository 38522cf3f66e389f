// SPDX-License-Identifier: Apache-2.0
// Block attention of the AVX2 table.
#include "../fetch.h"
#include "../window.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

constexpr int kRuns = kAttentionBlock / 16;

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
    // Runs are scored several at a time: what is missing is scored twice and not looked at.
    for (int i = count; i < kRuns; ++i) {
      runs->keys[i] = runs->keys[count - 1];
      runs->values[i] = runs->values[count - 1];
    }
  }
};

/// The keys of the block behind `cursor`, of `left` positions at most. Null where it has none.
template <WeightFormat kFormat>
void find_next_keys(RunCursor<kFormat> cursor, int32_t left, const uint8_t** keys) {
  Runs next{};
  const int32_t positions = left < kAttentionBlock ? left : kAttentionBlock;
  if (left > 0) cursor.take(&next, (positions + 15) / 16);
  for (int i = 0; i < kRuns; ++i) keys[i] = next.keys[i];
}

/// The running softmax of kQueries heads. out is padded to whole vectors.
template <int kQueries>
struct State {
  float max[kQueries];
  float sum[kQueries];
  alignas(32) float out[kQueries][kMaxHeadDim];
  alignas(32) float p[kQueries][kAttentionBlock];
};

/// state->p: the dots of the queries with the keys of `count` runs of 16 positions. kFetch: their
/// values are fetched on the way.
template <WeightFormat kFormat, int kQueries, bool kFetch>
VITRINE_INLINE void score_runs(const Runs& runs, int count, int64_t stride, int32_t head_dim,
                               const float* query, int64_t query_stride, State<kQueries>* state) {
  constexpr int kAtOnce = kRuns / kQueries;  // eight running sums in either case
  for (int first = 0; first < count; first += kAtOnce) {
    Lanes score[kQueries][kAtOnce];
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) score[q][i] = set_lanes(0.0f);
    }
    for (int32_t d = 0; d < head_dim; ++d) {
      Lanes key[kAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i)
        key[i] = load_lanes<kFormat>(runs.keys[first + i] + d * stride);
      if constexpr (kFetch) {
#pragma GCC unroll 4
        for (int i = 0; i < kAtOnce; ++i) {
          fetch(runs.values[first + i] + d * 16 * element_bytes(kFormat));
        }
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const Lanes element = set_lanes(query[q * query_stride + d]);
#pragma GCC unroll 4
        for (int i = 0; i < kAtOnce; ++i) score[q][i] = fma(element, key[i], score[q][i]);
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) store(state->p[q] + 16 * (first + i), score[q][i]);
    }
  }
}

/// Turns the dots of one query into exp(score - max); updates max and sum. Returns
/// exp(old max - max).
VITRINE_INLINE float softmax_block(int32_t begin, int32_t valid, float scale, float* p,
                                   float* running_max, float* running_sum) {
  const Lanes factor = set_lanes(scale);
  Lanes lanes_max = minus_infinity();
  for (int32_t i = 0; i < valid; i += 16) {
    const Mask mask = lanes_between(begin - i, valid - i);
    const Lanes score = mul(load(p + i), factor);
    store(p + i, score);
    lanes_max = blend(lanes_max, max(score, lanes_max), mask);
  }
  const float block_max = max_lanes(lanes_max);
  const float new_max = block_max > *running_max ? block_max : *running_max;
  const float correction = _mm256_cvtss_f32(exp_8(_mm256_set1_ps(*running_max - new_max)));
  *running_max = new_max;
  const Lanes subtracted = set_lanes(new_max);
  Lanes sum = set_lanes(0.0f);
  for (int32_t i = 0; i < valid; i += 16) {
    const Lanes e = exp_lanes(sub(load(p + i), subtracted));
    store(p + i, e);
    sum = blend(sum, add(sum, e), lanes_between(begin - i, valid - i));
  }
  *running_sum = *running_sum * correction + sum_lanes(sum);
  return correction;
}

/// Adds p * value over the block for kVectors vectors of the head, from element `first`. kWhole:
/// all of their elements exist; otherwise kVectors is 1 and `left` says how many. kFetch: the next
/// block's keys, in rows of `stride` bytes, are fetched on the way.
template <WeightFormat kFormat, int kQueries, int kVectors, bool kWhole, bool kFetch>
VITRINE_INLINE void add_values(const Runs& runs, int32_t begin, int32_t valid, int32_t first,
                               int32_t left, int32_t head_dim, const float* correction,
                               const uint8_t* const* next_keys, int64_t stride,
                               State<kQueries>* state) {
  constexpr int64_t kBytes = element_bytes(kFormat);
  __m256 sum[kQueries][kVectors];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m256 old = _mm256_load_ps(state->out[q] + first + 8 * v);
      sum[q][v] = _mm256_mul_ps(old, _mm256_set1_ps(correction[q]));
    }
  }
  for (int32_t start = 0; start < valid; start += 16) {
    const uint8_t* value = runs.values[start / 16] + first * kBytes;
    const uint8_t* next = kFetch ? next_keys[start / 16] : nullptr;
    if (next != nullptr) next += first * stride;
    const int32_t end = valid - start < 16 ? valid : start + 16;
    int32_t j = start;
    if (begin > start) {
      j = begin < end ? begin : end;
      value += static_cast<int64_t>(j - start) * head_dim * kBytes;
    }
    for (; j < end; ++j, value += head_dim * kBytes) {
      if (next != nullptr) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors / 2; ++i, next += stride) fetch(next);
      }
      __m256 v[kVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        v[i] = kWhole ? load_8<kFormat>(value + 8 * i * kBytes) : load_8<kFormat>(value, left);
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const __m256 p = _mm256_set1_ps(state->p[q][j]);
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) sum[q][i] = _mm256_fmadd_ps(p, v[i], sum[q][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm256_store_ps(state->out[q] + first + 8 * v, sum[q][v]);
  }
}

/// Where a block's keys and values lie, and the next block's keys.
struct Block {
  Runs runs;
  int64_t stride;  // of a row of keys, in bytes
  const uint8_t* next_keys[kRuns] = {};
};

/// One token's queries meet the positions `begin` to `valid` - 1 of a block.
template <WeightFormat kFormat, int kQueries, bool kFetch>
__attribute__((noinline)) void take_block(const Block& block, int32_t begin, int32_t valid,
                                          int32_t head_dim, const float* query,
                                          int64_t query_stride, float scale,
                                          State<kQueries>* state) {
  constexpr int kVectors = 8 / kQueries;
  score_runs<kFormat, kQueries, kFetch>(block.runs, (valid + 15) / 16, block.stride, head_dim,
                                        query, query_stride, state);
  float correction[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    correction[q] = softmax_block(begin, valid, scale, state->p[q], &state->max[q], &state->sum[q]);
  }
  int32_t first = 0;
  for (; first + 8 * kVectors <= head_dim; first += 8 * kVectors) {
    add_values<kFormat, kQueries, kVectors, true, kFetch>(block.runs, begin, valid, first, 8,
                                                          head_dim, correction, block.next_keys,
                                                          block.stride, state);
  }
  for (; first < head_dim; first += 8) {
    const int32_t left = head_dim - first < 8 ? head_dim - first : 8;
    add_values<kFormat, kQueries, 1, false, false>(block.runs, begin, valid, first, left, head_dim,
                                                   correction, block.next_keys, block.stride,
                                                   state);
  }
}

/// Tokens that walk the blocks together, so that keys and values come from memory once for them.
constexpr int32_t kTileTokens = 8;

/// Heads head … head + kQueries - 1 of `tokens` tokens, at most kTileTokens, from `first` on.
template <WeightFormat kFormat, int kQueries>
void attend(const KvView& kv, const AttentionSpan& span, int32_t first, int32_t tokens,
            int32_t head) {
  const int32_t head_dim = kv.head_dim;
  const int32_t position = span.position + first;
  const float* query = span.query + first * span.query_token_stride + head * span.query_stride;
  State<kQueries> states[kTileTokens];
  for (int32_t t = 0; t < tokens; ++t) {
    for (int q = 0; q < kQueries; ++q) {
      states[t].max[q] = first_max(span, head + q);
      states[t].sum[q] = first_sum(span);
      for (int32_t d = 0; d < head_dim; d += 8) {
        _mm256_store_ps(states[t].out[q] + d, _mm256_setzero_ps());
      }
    }
  }
  const int32_t end = position + tokens;
  const int32_t first_block = first_block_seen(span, position);
  RunCursor<kFormat> cursor{kv, span.block_table, span.kv_head, first_block / kv.block_size,
                            first_block % kv.block_size};
  for (int32_t start = first_block; start < end; start += kAttentionBlock) {
    const int32_t left = end - start;
    Block block;
    block.stride = kv.block_size * element_bytes(kFormat);
    cursor.take(&block.runs, ((left < kAttentionBlock ? left : kAttentionBlock) + 15) / 16);
    find_next_keys(cursor, left - kAttentionBlock, block.next_keys);
    // The first token that sees the block fetches it.
    const int32_t begin = start > position ? start - position : 0;
    const int32_t above = tokens_above(span, position, tokens, start);
    for (int32_t t = begin; t < above; ++t) {
      const int32_t hidden = first_seen(span, position + t) - start;
      const int32_t seen = position + t + 1 - start;
      const int32_t valid = seen < kAttentionBlock ? seen : kAttentionBlock;
      const auto take =
          t == begin ? take_block<kFormat, kQueries, true> : take_block<kFormat, kQueries, false>;
      take(block, hidden > 0 ? hidden : 0, valid, head_dim, query + t * span.query_token_stride,
           span.query_stride, span.scale, &states[t]);
    }
  }
  for (int32_t t = 0; t < tokens; ++t) {
    float* out = span.out + (first + t) * span.out_token_stride + head * span.out_stride;
    for (int q = 0; q < kQueries; ++q) {
      const __m256 sum = _mm256_set1_ps(states[t].sum[q]);
      for (int32_t d = 0; d < head_dim; d += 8) {
        const __m256 v = _mm256_div_ps(_mm256_load_ps(states[t].out[q] + d), sum);
        _mm256_maskstore_ps(out + q * span.out_stride + d, first_lanes_8(head_dim - d), v);
      }
    }
  }
}

template <WeightFormat kFormat>
void attend_span(const KvView& kv, const AttentionSpan& span) {
  for (int32_t first = 0; first < span.tokens; first += kTileTokens) {
    const int32_t left = span.tokens - first;
    const int32_t tokens = left < kTileTokens ? left : kTileTokens;
    int32_t head = 0;
    for (; head + 4 <= span.heads; head += 4) attend<kFormat, 4>(kv, span, first, tokens, head);
    for (; head + 2 <= span.heads; head += 2) attend<kFormat, 2>(kv, span, first, tokens, head);
    for (; head < span.heads; ++head) attend<kFormat, 1>(kv, span, first, tokens, head);
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

}  // namespace vitrine::kernels::avx2
