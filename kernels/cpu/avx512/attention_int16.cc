// SPDX-License-Identifier: Apache-2.0
// Attention over integer keys and values, of the AVX-512 table, and their writing. vpdpwssd
// multiplies two numbers a lane and adds both: twice what an FMA does.
#include "../kv_int16.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int kGroup = 4;  // queries whose sums the registers hold together

/// Quantizes a row, 16 elements at a time: put(first, integers); those behind the row are 0.
/// Returns their scale.
template <class Put>
VITRINE_INLINE float quantize(const float* x, int32_t n, int32_t largest, const Put& put) {
  __m512 magnitudes = _mm512_setzero_ps();
  __mmask16 nan = 0;
  for (int32_t i = 0; i < n; i += 16) {
    const __m512 v = _mm512_abs_ps(_mm512_maskz_loadu_ps(first_lanes(n - i), x + i));
    nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    magnitudes = _mm512_max_ps(v, magnitudes);  // the second where the first is NaN
  }
  const Int16Scale scale = int16_scale(max_lanes(magnitudes), nan != 0, largest);
  const __m512 factor = _mm512_set1_ps(scale.factor);
  for (int32_t i = 0; i < n; i += 16) {
    const __mmask16 mask = scale.factor == 0.0f ? 0 : first_lanes(n - i);
    put(i, _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor)));
  }
  return scale.scale;
}

/// What a block leaves for its values, of up to kGroup queries.
struct Weights {
  alignas(64) float values[kGroup][kAttentionBlock];
  alignas(64) int32_t pairs[kGroup][kAttentionBlock / 2];
  alignas(64) float correction[16];  // lane q: exp(old max - max)
  alignas(16) float scale[kGroup];   // what a unit of a query's integers means
};

/// A bit for each of the block's positions that the query sees.
VITRINE_INLINE uint64_t seen_positions(const Int16State& state, int32_t start) {
  const int32_t valid = state.position + 1 - start, hidden = state.first - start;
  const uint64_t behind = valid >= 64 ? ~uint64_t{0} : (uint64_t{1} << valid) - 1;
  return hidden <= 0 ? behind : behind & ~uint64_t{0} << hidden;
}
VITRINE_INLINE __mmask16 mask_of_run(uint64_t seen, int run) {
  return static_cast<__mmask16>(seen >> (16 * run));
}

/// Scores kCount runs; leaves the weights as integers, updates max and sum.
template <int kQueries, int kCount, bool kFetch>
VITRINE_INLINE void softmax_runs(const Int16Runs& block, int32_t pairs, Int16State* state,
                                 Weights* weights) {
  __m512i dot[kQueries][kCount];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) dot[q][i] = _mm512_setzero_si512();
  }
  for (int32_t d = 0; d < pairs; ++d) {
    __m512i key[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      if (kFetch) fetch(block.values[i] + 16 * d);
      key[i] = _mm512_loadu_si512(block.keys[i] + d * kKvLanes);
      if (kQueries > 1) keep_in_register(key[i]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const __m512i element = _mm512_set1_epi32(state[q].pairs[d]);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) dot[q][i] = _mm512_dpwssd_epi32(dot[q][i], key[i], element);
    }
  }
  __m512 shift = _mm512_setzero_ps();  // lane q: old max - max
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const __m512 factor = _mm512_set1_ps(state[q].factor);
    const uint64_t seen = seen_positions(state[q], block.start);
    __m512 score[kCount];
    __m512 lanes_max = minus_infinity();
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(block.key_scales[i]), factor);
      score[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[q][i]), scale);
      lanes_max = _mm512_mask_max_ps(lanes_max, mask_of_run(seen, i), score[i], lanes_max);
    }
    const float block_max = max_lanes(lanes_max);
    const float max = block_max > state[q].max ? block_max : state[q].max;
    const auto lane = static_cast<__mmask16>(1u << q);
    shift = _mm512_mask_sub_ps(shift, lane, _mm512_set1_ps(state[q].max), _mm512_set1_ps(max));
    state[q].max = max;
    const __m512 subtracted = _mm512_set1_ps(max);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      _mm512_store_ps(weights->values[q] + 16 * i, _mm512_sub_ps(score[i], subtracted));
    }
  }
  _mm512_store_ps(weights->correction, exp_lanes(shift));
  const __m512 finite = _mm512_set1_ps(__FLT_MAX__);
  __m512 most = _mm512_setzero_ps();  // lane q: the largest weight
  // One query at a time: all at once would spill registers (measured).
#pragma GCC unroll 1
  for (int q = 0; q < kQueries; ++q) {
    const uint64_t seen = seen_positions(state[q], block.start);
    __m512 sum = _mm512_setzero_ps();
    __m512 largest = _mm512_setzero_ps();
    __mmask16 infinite = 0;
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const __mmask16 mask = mask_of_run(seen, i);
      const __m512 e = exp_lanes(_mm512_load_ps(weights->values[q] + 16 * i));
      sum = _mm512_mask_add_ps(sum, mask, sum, e);
      const __m512 weight = _mm512_maskz_mul_ps(mask, e, _mm512_loadu_ps(block.value_scales[i]));
      infinite |= _mm512_cmp_ps_mask(weight, finite, _CMP_NLE_UQ);
      largest = _mm512_max_ps(weight, largest);
      _mm512_store_ps(weights->values[q] + 16 * i, weight);
    }
    state[q].sum = state[q].sum * weights->correction[q] + sum_lanes(sum);
    const float magnitude = infinite != 0 ? __builtin_nanf("") : max_lanes(largest);
    most = _mm512_mask_mov_ps(most, static_cast<__mmask16>(1u << q), _mm512_set1_ps(magnitude));
  }
  // weight_scale, of all of them: NaN stays NaN, and where the quotient overflows all are 0.
  const __m128 limit = _mm_set1_ps(static_cast<float>(kLargestValueWeight));
  const __m128 magnitudes = _mm256_castps256_ps128(_mm512_castps512_ps256(most));
  const __m128 factors = _mm_div_ps(limit, magnitudes);
  const __m128 largest_float = _mm_set1_ps(__FLT_MAX__);
  alignas(16) float factor_of[kGroup];
  _mm_store_ps(factor_of, _mm_and_ps(_mm_cmple_ps(factors, largest_float), factors));
  _mm_store_ps(weights->scale,
               _mm_andnot_ps(_mm_cmpgt_ps(factors, largest_float), _mm_div_ps(magnitudes, limit)));
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const __m512 factor = _mm512_set1_ps(factor_of[q]);
    // Where the factor is 0 a weight may be NaN, which is no integer.
    const __mmask16 mask = factor_of[q] == 0.0f ? 0 : 0xffff;
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const __m512 scaled =
          _mm512_maskz_mul_ps(mask, _mm512_load_ps(weights->values[q] + 16 * i), factor);
      const __m256i numbers = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(scaled));
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights->pairs[q] + 8 * i), numbers);
    }
  }
}

/// Adds weight * value over `pairs` pairs of positions for kVectors vectors of the head, from
/// element `first`.
template <int kQueries, int kVectors>
VITRINE_INLINE void add_values(const Int16Runs& block, const Int16Runs& next, int32_t pairs,
                               int32_t first, int32_t head_dim, const Weights& weights,
                               Int16State* state) {
  const __mmask16 last = first_lanes(head_dim - first - 16 * (kVectors - 1));
  __m512i sum[kQueries][kVectors];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[q][v] = _mm512_setzero_si512();
  }
  for (int32_t start = 0; start < pairs; start += 8) {
    const int32_t* value = block.values[start / 8] + first;
    const int32_t* ahead = next.keys[start / 8];
    if (ahead != nullptr) ahead += first / 2 * kKvLanes;
    const int32_t end = pairs - start < 8 ? pairs : start + 8;
    for (int32_t j = start; j < end; ++j, value += head_dim) {
      if (ahead != nullptr) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i, ahead += kKvLanes) fetch(ahead);
      }
      __m512i v[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        v[i] = i < kVectors - 1 ? _mm512_loadu_si512(value + 16 * i)
                                : _mm512_maskz_loadu_epi32(last, value + 16 * i);
        if (kQueries > 1) keep_in_register(v[i]);
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const __m512i weight = _mm512_set1_epi32(weights.pairs[q][j]);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sum[q][i] = _mm512_dpwssd_epi32(sum[q][i], v[i], weight);
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const __m512 correction = _mm512_set1_ps(weights.correction[q]);
    const __m512 scale = _mm512_set1_ps(weights.scale[q]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* out = state[q].out + first + 16 * v;
      const __m512 old = _mm512_mul_ps(_mm512_load_ps(out), correction);
      _mm512_store_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[q][v]), scale, old));
    }
  }
}

/// kQueries queries in the order of their positions meet a block. kFetch: values ahead of their
/// use, and the next block's keys.
template <int kQueries, bool kFetch>
__attribute__((noinline)) void take_block(const Int16Runs& block, const Int16Runs& next,
                                          const KvView& kv, Int16State* state) {
  const int32_t left = state[kQueries - 1].position + 1 - block.start;
  const int32_t valid = left < kAttentionBlock ? left : kAttentionBlock;
  const int32_t elements = element_pairs(kv.head_dim), pairs = (valid + 1) / 2;
  Weights weights;
  switch ((valid + 15) / 16) {
    case 1: softmax_runs<kQueries, 1, kFetch>(block, elements, state, &weights); break;
    case 2: softmax_runs<kQueries, 2, kFetch>(block, elements, state, &weights); break;
    case 3: softmax_runs<kQueries, 3, kFetch>(block, elements, state, &weights); break;
    default: softmax_runs<kQueries, 4, kFetch>(block, elements, state, &weights);
  }
  for (int32_t first = 0; first < kv.head_dim; first += 64) {
    const int32_t rest = kv.head_dim - first;
    if (rest > 48) {
      add_values<kQueries, 4>(block, next, pairs, first, kv.head_dim, weights, state);
    } else if (rest > 32) {
      add_values<kQueries, 3>(block, next, pairs, first, kv.head_dim, weights, state);
    } else if (rest > 16) {
      add_values<kQueries, 2>(block, next, pairs, first, kv.head_dim, weights, state);
    } else {
      add_values<kQueries, 1>(block, next, pairs, first, kv.head_dim, weights, state);
    }
  }
}

/// Takes a block for `count` queries, kGroup at a time.
template <bool kFetch>
void take_queries(const Int16Runs& block, const Int16Runs& next, const KvView& kv, int count,
                  Int16State* state) {
  for (; count > 0; count -= kGroup, state += kGroup) {
    switch (count) {
      case 1: take_block<1, kFetch>(block, next, kv, state); break;
      case 2: take_block<2, kFetch>(block, next, kv, state); break;
      case 3: take_block<3, kFetch>(block, next, kv, state); break;
      default: take_block<kGroup, kFetch>(block, next, kv, state);
    }
  }
}

struct Table {
  static float quantize(const float* x, int32_t n, int32_t largest, int32_t* pairs) {
    const auto put = [&](int32_t d, __m512i numbers) __attribute__((always_inline)) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + d / 2), _mm512_cvtepi32_epi16(numbers));
    };
    return avx512::quantize(x, n, largest, put);
  }

  static void take_block(const Int16Runs& block, const Int16Runs& next, const KvView& kv, int count,
                         Int16State* states, int all) {
    if (all <= kGroup) {
      take_queries<true>(block, next, kv, count, states);
    } else {  // these have enough to compute until the lines come
      take_queries<false>(block, {}, kv, count, states);
    }
  }

  static void divide(const Int16State& state, int32_t n, float* out) {
    const __m512 sum = _mm512_set1_ps(state.sum);
    for (int32_t d = 0; d < n; d += 16) {
      const __m512 v = _mm512_div_ps(_mm512_load_ps(state.out + d), sum);
      _mm512_mask_storeu_ps(out + d, first_lanes(n - d), v);
    }
  }
};

}  // namespace

void kv_write_i16(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                  const float* key, const float* value) {
  const Int16Run target = int16_run(kv, block, kv_head, offset);
  offset %= kKvLanes;
  write_key<Table>(kv, target, offset, key);
  int32_t* values = target.values + static_cast<int64_t>(offset / 2) * kv.head_dim;
  // The other position of a pair may be another thread's.
  const bool is_second = offset % 2 == 1;
  const auto put_value = [&](int32_t d, __m512i numbers) __attribute__((always_inline)) {
    const int32_t left = kv.head_dim - d;
    const __mmask32 mask =
        (is_second ? 0xaaaaaaaau : 0x55555555u) & (left >= 16 ? ~0u : (1u << (2 * left)) - 1);
    _mm512_mask_storeu_epi16(values + d, mask,
                             is_second ? _mm512_slli_epi32(numbers, 16) : numbers);
  };
  target.value_scales[offset] =
      quantize(value, kv.head_dim, largest_kv_number(kv.head_dim), put_value);
}

void attend_i16(const KvView& kv, const AttentionSpan& span) { attend_int16<Table>(kv, span); }

}  // namespace vitrine::kernels::avx512
