// SPDX-License-Identifier: Apache-2.0
// Attention over integer keys and values, of the AVX2 table, and their writing. vpmaddwd multiplies
// two numbers a lane and adds them.
#include "../kv_int16.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

constexpr int kRuns = Int16Runs::kMax;
constexpr int kGroup = 4;  // queries whose sums the registers hold together

VITRINE_INLINE __m256i load_words(const int32_t* words) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
}

/// 16 integers that fit 16 bits, in order.
VITRINE_INLINE __m256i narrow(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}

/// Writes a row's numbers, up to a multiple of 16 of them (then 0), and returns their scale.
VITRINE_INLINE float quantize(const float* x, int32_t n, int32_t largest, void* numbers) {
  const Lanes sign = set_lanes(-0.0f);
  Lanes magnitudes = set_lanes(0.0f);
  uint32_t nan = 0;
  for (int32_t i = 0; i < n; i += 16) {
    const Lanes v = load(x + i, first_lanes(n - i));
    nan |= nan_bits(v);
    // The second of max where the first is NaN.
    magnitudes =
        max({_mm256_andnot_ps(sign.low, v.low), _mm256_andnot_ps(sign.high, v.high)}, magnitudes);
  }
  const Int16Scale scale = int16_scale(max_lanes(magnitudes), nan != 0, largest);
  const Lanes factor = set_lanes(scale.factor);
  for (int32_t i = 0; i < n; i += 16) {
    // Where the factor is 0 an element may be no number that fits.
    const Lanes v = mul(load(x + i, first_lanes(scale.factor == 0.0f ? 0 : n - i)), factor);
    _mm256_store_si256(static_cast<__m256i*>(numbers) + i / 16,
                       narrow(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)));
  }
  return scale.scale;
}

/// What a block leaves for its values, of up to kGroup queries.
struct Weights {
  alignas(32) int32_t dots[kGroup][kAttentionBlock];
  alignas(32) float values[kAttentionBlock];
  alignas(32) int32_t pairs[kGroup][kAttentionBlock / 2];
  float correction[kGroup];  // exp(old max - max)
  float scale[kGroup];       // what a unit of the integers means
};

/// weights->dots, of `count` runs of 16 positions.
template <int kQueries>
VITRINE_INLINE void score_runs(const Int16Runs& block, int count, int32_t pairs,
                               bool fetches_values, const Int16State* state, Weights* weights) {
  constexpr int kAtOnce = kRuns / kQueries;  // eight running sums in either case
  for (int first = 0; first < count; first += kAtOnce) {
    __m256i dot[kQueries][2 * kAtOnce];
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
      for (int i = 0; i < 2 * kAtOnce; ++i) dot[q][i] = _mm256_setzero_si256();
    }
    for (int32_t d = 0; d < pairs; ++d) {
      __m256i key[2 * kAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t* words = block.keys[first + i] + d * kKvLanes;
        key[2 * i] = load_words(words);
        key[2 * i + 1] = load_words(words + 8);
        if (fetches_values && first + i < count) fetch(block.values[first + i] + 16 * d);
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const __m256i element = _mm256_set1_epi32(state[q].pairs[d]);
#pragma GCC unroll 8
        for (int i = 0; i < 2 * kAtOnce; ++i) {
          dot[q][i] = _mm256_add_epi32(dot[q][i], _mm256_madd_epi16(key[i], element));
        }
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(weights->dots[q] + 16 * first + 8 * i),
                           dot[q][i]);
      }
    }
  }
}

/// Turns the dots of query q into the integer weights of the values; updates max and sum.
VITRINE_INLINE void softmax_block(const Int16Runs& block, int q, Int16State* state,
                                  Weights* weights) {
  const int32_t left = state->position + 1 - block.start;
  const int32_t valid = left < kAttentionBlock ? left : kAttentionBlock;
  const int32_t begin = state->first > block.start ? state->first - block.start : 0;
  const Lanes factor = set_lanes(state->factor);
  Lanes lanes_max = minus_infinity();
  for (int32_t i = 0; i < valid; i += 16) {
    const int32_t* dots = weights->dots[q] + i;
    const Lanes dot = {_mm256_cvtepi32_ps(load_words(dots)),
                       _mm256_cvtepi32_ps(load_words(dots + 8))};
    const Lanes score = mul(dot, mul(load(block.key_scales[i / 16]), factor));
    store(weights->values + i, score);
    lanes_max = blend(lanes_max, max(score, lanes_max), lanes_between(begin - i, valid - i));
  }
  const float block_max = max_lanes(lanes_max);
  const float new_max = block_max > state->max ? block_max : state->max;
  const float correction = _mm256_cvtss_f32(exp_8(_mm256_set1_ps(state->max - new_max)));
  state->max = new_max;
  const Lanes subtracted = set_lanes(new_max);
  const __m256 finite = _mm256_set1_ps(__FLT_MAX__);
  Lanes sum = set_lanes(0.0f), largest = set_lanes(0.0f);
  int infinite = 0;
  for (int32_t i = 0; i < valid; i += 16) {
    const Mask mask = lanes_between(begin - i, valid - i);
    const Lanes e = exp_lanes(sub(load(weights->values + i), subtracted));
    sum = blend(sum, add(sum, e), mask);
    const Lanes weight = blend(set_lanes(0.0f), mul(e, load(block.value_scales[i / 16])), mask);
    infinite |= _mm256_movemask_ps(_mm256_cmp_ps(weight.low, finite, _CMP_NLE_UQ)) |
                _mm256_movemask_ps(_mm256_cmp_ps(weight.high, finite, _CMP_NLE_UQ));
    largest = max(weight, largest);
    store(weights->values + i, weight);
  }
  state->sum = state->sum * correction + sum_lanes(sum);
  const Int16Scale scale = weight_scale(max_lanes(largest), infinite == 0);
  weights->correction[q] = correction;
  weights->scale[q] = scale.scale;
  const Lanes multiplier = set_lanes(scale.factor);
  for (int32_t i = 0; i < valid; i += 16) {
    // Where the factor is 0 a weight may be NaN, which is no integer.
    const Lanes v =
        scale.factor == 0.0f ? set_lanes(0.0f) : mul(load(weights->values + i), multiplier);
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights->pairs[q] + i / 2),
                       narrow(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)));
  }
  for (int32_t i = (valid + 15) / 16 * 8; i < kAttentionBlock / 2; ++i) weights->pairs[q][i] = 0;
}

/// Adds weight * value over `pairs` pairs of positions for kVectors vectors of the head, from
/// element `first`. kWhole: all of their elements exist; otherwise kVectors is 1.
template <int kQueries, int kVectors, bool kWhole>
VITRINE_INLINE void add_values(const Int16Runs& block, const Int16Runs& next, int32_t pairs,
                               int32_t first, int32_t head_dim, const Weights& weights,
                               Int16State* state) {
  __m256i sum[kQueries][kVectors];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[q][v] = _mm256_setzero_si256();
  }
  for (int32_t start = 0; start < pairs; start += 8) {
    const int32_t* value = block.values[start / 8] + first;
    const int32_t* ahead = next.keys[start / 8];
    if (ahead != nullptr) ahead += first / 2 * kKvLanes;
    const int32_t end = pairs - start < 8 ? pairs : start + 8;
    for (int32_t j = start; j < end; ++j, value += head_dim) {
      if (ahead != nullptr) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors / 2; ++i, ahead += kKvLanes) fetch(ahead);
      }
      __m256i v[kVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        v[i] = kWhole ? load_words(value + 8 * i)
                      : _mm256_maskload_epi32(value, first_lanes_8(head_dim - first));
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const __m256i weight = _mm256_set1_epi32(weights.pairs[q][j]);
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
          sum[q][i] = _mm256_add_epi32(sum[q][i], _mm256_madd_epi16(v[i], weight));
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const __m256 correction = _mm256_set1_ps(weights.correction[q]);
    const __m256 scale = _mm256_set1_ps(weights.scale[q]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* out = state[q].out + first + 8 * v;
      const __m256 old = _mm256_mul_ps(_mm256_load_ps(out), correction);
      _mm256_store_ps(out, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[q][v]), scale, old));
    }
  }
}

/// kQueries queries in the order of their positions meet a block. Where `next` has keys, the
/// block's values are fetched ahead of their use, and these.
template <int kQueries>
__attribute__((noinline)) void take_block(const Int16Runs& block, const Int16Runs& next,
                                          const KvView& kv, Int16State* state) {
  constexpr int kVectors = 8 / kQueries;
  const int32_t left = state[kQueries - 1].position + 1 - block.start;
  const int32_t valid = left < kAttentionBlock ? left : kAttentionBlock;
  const int32_t pairs = (valid + 1) / 2;
  Weights weights;
  score_runs<kQueries>(block, (valid + 15) / 16, element_pairs(kv.head_dim),
                       next.keys[0] != nullptr, state, &weights);
  for (int q = 0; q < kQueries; ++q) softmax_block(block, q, &state[q], &weights);
  int32_t first = 0;
  for (; first + 8 * kVectors <= kv.head_dim; first += 8 * kVectors) {
    add_values<kQueries, kVectors, true>(block, next, pairs, first, kv.head_dim, weights, state);
  }
  for (; first < kv.head_dim; first += 8) {
    add_values<kQueries, 1, false>(block, next, pairs, first, kv.head_dim, weights, state);
  }
}

/// Takes a block for `count` queries, kGroup at a time; the first of them fetch.
void take_queries(const Int16Runs& block, Int16Runs next, const KvView& kv, int count,
                  Int16State* state) {
  while (count > 0) {
    if (count >= kGroup) {
      take_block<kGroup>(block, next, kv, state);
      count -= kGroup, state += kGroup;
    } else if (count >= 2) {
      take_block<2>(block, next, kv, state);
      count -= 2, state += 2;
    } else {
      take_block<1>(block, next, kv, state);
      --count, ++state;
    }
    next = {};
  }
}

struct Table {
  static float quantize(const float* x, int32_t n, int32_t largest, int32_t* pairs) {
    return avx2::quantize(x, n, largest, pairs);
  }

  static void take_block(const Int16Runs& block, const Int16Runs& next, const KvView& kv, int count,
                         Int16State* states, int /*all*/) {
    take_queries(block, next, kv, count, states);
  }

  static void divide(const Int16State& state, int32_t n, float* out) {
    const __m256 sum = _mm256_set1_ps(state.sum);
    for (int32_t d = 0; d < n; d += 8) {
      const __m256 v = _mm256_div_ps(_mm256_load_ps(state.out + d), sum);
      _mm256_maskstore_ps(out + d, first_lanes_8(n - d), v);
    }
  }
};

}  // namespace

void kv_write_i16(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                  const float* key, const float* value) {
  const Int16Run target = int16_run(kv, block, kv_head, offset);
  offset %= kKvLanes;
  write_key<Table>(kv, target, offset, key);
  alignas(32) int16_t numbers[kMaxHeadDim];
  target.value_scales[offset] =
      quantize(value, kv.head_dim, largest_kv_number(kv.head_dim), numbers);
  // The other position of a pair may be another thread's.
  auto* values =
      reinterpret_cast<int16_t*>(target.values + static_cast<int64_t>(offset / 2) * kv.head_dim) +
      offset % 2;
  for (int32_t d = 0; d < kv.head_dim; ++d, values += 2) *values = numbers[d];
}

void attend_i16(const KvView& kv, const AttentionSpan& span) { attend_int16<Table>(kv, span); }

}  // namespace vitrine::kernels::avx2
