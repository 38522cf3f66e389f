// Statistics of the output head's logits, AVX-512.
#include "../logits_hash.h"
#include "../top_list.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

/// A value that at least kTopTokens of the entries reach: the kTopTokens-th largest of the 16 lane
/// maxima. -inf where fewer lanes than that hold an entry.
float top_threshold(__m512 lanes_max) {
  alignas(64) float lane[16];
  _mm512_store_ps(lane, lanes_max);
  for (int j = 0; j < 16; ++j) {
    const __m512 v = _mm512_set1_ps(lane[j]);
    const int greater = __builtin_popcount(_mm512_cmp_ps_mask(lanes_max, v, _CMP_GT_OQ));
    const int reach = __builtin_popcount(_mm512_cmp_ps_mask(lanes_max, v, _CMP_GE_OQ));
    if (greater < kTopTokens && reach >= kTopTokens) return lane[j];
  }
  return -__builtin_inff();
}

uint64_t sum_words(__m512i words) {
  // The intrinsic that reduces adds signed numbers, which must not overflow.
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, words);
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

struct FirstPass {
  __m512 largest;  // per lane; NaN entries are left out
  __mmask16 nan = 0;
  uint64_t hash = 0;
};

/// Multiplies the logits and finds the largest.
FirstPass find_largest(float* logits, int64_t count, float multiplier) {
  FirstPass found{minus_infinity()};
  const bool scale = multiplier != 1.0f;
  const __m512 factor = _mm512_set1_ps(multiplier);
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    __m512 v = _mm512_mask_loadu_ps(minus_infinity(), mask, logits + i);
    if (scale) {
      v = _mm512_mask_mul_ps(v, mask, v, factor);
      _mm512_mask_storeu_ps(logits + i, mask, v);
    }
    found.nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    found.largest = _mm512_max_ps(v, found.largest);
  }
  return found;
}

/// The same of a whole block, with hash_whole_block on the way. (Of the latter's loop g++ 12 makes
/// 64-bit products, which take twice the time.)
FirstPass find_largest_and_hash(float* logits, float multiplier) {
  FirstPass found{minus_infinity()};
  __m512 other_largest = minus_infinity();
  __m512i even = _mm512_setzero_si512();
  __m512i odd = _mm512_setzero_si512();
  const bool scale = multiplier != 1.0f;
  const __m512 factor = _mm512_set1_ps(multiplier);
  const auto load = [&](float* at) __attribute__((always_inline)) {
    __m512 v = _mm512_loadu_ps(at);
    if (scale) {
      v = _mm512_mul_ps(v, factor);
      _mm512_storeu_ps(at, v);
    }
    return v;
  };
  const auto word = [&](__m512 v, size_t i) __attribute__((always_inline)) {
    return _mm512_add_epi32(_mm512_castps_si512(v), _mm512_load_si512(kHashKeys.data() + i));
  };
  for (size_t j = 0; j < kHashPairs; j += 16) {
    const __m512 a = load(logits + j);
    const __m512 b = load(logits + j + kHashPairs);
    found.nan |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    found.largest = _mm512_max_ps(a, found.largest);
    other_largest = _mm512_max_ps(b, other_largest);
    const __m512i first = word(a, j);
    const __m512i second = word(b, j + kHashPairs);
    even = _mm512_add_epi64(even, _mm512_mul_epu32(first, second));
    odd = _mm512_add_epi64(
        odd, _mm512_mul_epu32(_mm512_srli_epi64(first, 32), _mm512_srli_epi64(second, 32)));
  }
  found.largest = _mm512_max_ps(other_largest, found.largest);  // the earlier of equal zeros
  found.hash = sum_words(_mm512_add_epi64(even, odd));
  return found;
}

VITRINE_INLINE void take_best(BestEntries& best, __m512 v, __mmask16 mask, int64_t i) {
  const __m512 threshold = _mm512_set1_ps(best.threshold);
  take_reaching(best, _mm512_mask_cmp_ps_mask(mask, v, threshold, _CMP_GE_OQ), i);
}

/// The same of 64 entries: hardly any reach it.
VITRINE_INLINE void take_best_of_four(BestEntries& best, const __m512* v, int64_t i) {
  const __m512 largest = _mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3]));
  if (_mm512_cmp_ps_mask(largest, _mm512_set1_ps(best.threshold), _CMP_GE_OQ) == 0) [[likely]]
    return;
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) take_best(best, v[j], 0xffff, i + 16 * j);
}

/// The head's exponential of lanes from kExpStatisticsLow to 0. `words`: kExp2Words, twice.
VITRINE_INLINE __m512 exp_statistics(__m512 x, __m512 words) {
  const __m512 magic = _mm512_set1_ps(kRoundMagic8);
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  const __m512 rounded = _mm512_fmadd_ps(x, log2e, magic);
  const __m512 f = _mm512_fmsub_ps(x, log2e, _mm512_sub_ps(rounded, magic));
  const __m512i bits = _mm512_castps_si512(rounded);
  const __m512i powers = _mm512_castps_si512(_mm512_permutexvar_ps(bits, words));
  const __m512 power = _mm512_castsi512_ps(_mm512_add_epi32(powers, _mm512_slli_epi32(bits, 20)));
  __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(kExp2D3), f, _mm512_set1_ps(kExp2D2));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(kExp2D1));
  return _mm512_fmadd_ps(_mm512_mul_ps(q, f), power, power);
}

/// Sums of exp(logit - max) and exp(logit - max) * (logit - max), and the best entries where there
/// are some to find. False where a distance is below kExpStatisticsLow and kAnyDistance did not
/// provide for it, a few instructions more.
template <bool kAnyDistance>
bool add_exponentials(const float* logits, int64_t count, float max, BestEntries* best,
                      HeadBlockStats* stats) {
  const __m512 words =
      _mm512_broadcast_f32x8(_mm256_load_ps(reinterpret_cast<const float*>(kExp2Words.at)));
  const __m512 low = _mm512_set1_ps(kExpStatisticsLow);
  const __m512 largest = _mm512_set1_ps(max);
  __m512 sum_exp = _mm512_setzero_ps();
  __m512 sum_exp_logit = _mm512_setzero_ps();
  __m512i farthest = _mm512_setzero_si512();  // of numbers below zero, the bits grow with them
  const auto take = [&](__m512 logit, __mmask16 mask) __attribute__((always_inline)) {
    const __m512 distance = _mm512_sub_ps(logit, largest);
    if constexpr (kAnyDistance) {
      mask = _mm512_mask_cmp_ps_mask(mask, distance, low, _CMP_NLT_UQ);
    } else {
      farthest = _mm512_mask_max_epu32(farthest, mask, farthest, _mm512_castps_si512(distance));
    }
    const __m512 e = exp_statistics(distance, words);
    sum_exp = _mm512_mask_add_ps(sum_exp, mask, sum_exp, e);
    sum_exp_logit = _mm512_mask3_fmadd_ps(e, distance, sum_exp_logit, mask);
  };
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512 logit[4] = {_mm512_loadu_ps(logits + i), _mm512_loadu_ps(logits + i + 16),
                             _mm512_loadu_ps(logits + i + 32), _mm512_loadu_ps(logits + i + 48)};
    if constexpr (!kAnyDistance) take_best_of_four(*best, logit, i);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) take(logit[j], 0xffff);
  }
  for (; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 logit = _mm512_maskz_loadu_ps(mask, logits + i);
    if constexpr (!kAnyDistance) take_best(*best, logit, mask, i);
    take(logit, mask);
  }
  stats->sum_exp = sum_lanes(sum_exp);
  stats->sum_exp_logit = sum_lanes(sum_exp_logit);
  return _mm512_cmpgt_epu32_mask(farthest, _mm512_castps_si512(low)) == 0;
}

}  // namespace

void head_block(float* logits, int64_t begin, int64_t end, float multiplier, bool statistics,
                HeadBlockStats* stats) {
  const int64_t count = end - begin;
  logits += begin;
  FirstPass found;
  if (!statistics || count < kHeadBlock) {
    found = find_largest(logits, count, multiplier);
    if (statistics) found.hash = hash_logits(logits, count);
  } else {
    found = find_largest_and_hash(logits, multiplier);
  }
  const float max = max_lanes(found.largest);
  *stats = {.max = found.nan != 0 ? __builtin_nanf("") : max, .hash = found.hash};
  BestEntries best{stats, logits, begin, top_threshold(found.largest)};
  // -inf: nothing but masked logits.
  if (statistics && found.nan == 0 && max != -__builtin_inff()) {
    if (!add_exponentials<false>(logits, count, max, &best, stats)) {
      add_exponentials<true>(logits, count, max, nullptr, stats);
    }
    return;
  }
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    take_best(best, _mm512_maskz_loadu_ps(mask, logits + i), mask, i);
  }
  if (found.nan != 0) stats->sum_exp = stats->sum_exp_logit = stats->max;
}

}  // namespace vitrine::kernels::avx512
