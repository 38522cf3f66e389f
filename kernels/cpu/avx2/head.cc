// Statistics of the output head's logits, AVX2.
#include "../logits_hash.h"
#include "../top_list.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

VITRINE_INLINE uint32_t compare_bits(Lanes a, Lanes b, bool or_equal) {
  if (or_equal) {
    return bits_of(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ),
                   _mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
  }
  return bits_of(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ),
                 _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ));
}

VITRINE_INLINE Mask not_below(Lanes a, Lanes b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.low, b.low, _CMP_NLT_UQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.high, b.high, _CMP_NLT_UQ))};
}
VITRINE_INLINE Mask both(Mask a, Mask b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}

/// A value that at least kTopTokens of the entries reach: the kTopTokens-th largest of the 16 lane
/// maxima. -inf where fewer lanes than that hold an entry.
float top_threshold(Lanes lanes_max) {
  float lane[16];
  store(lane, lanes_max);
  for (int j = 0; j < 16; ++j) {
    const Lanes v = set_lanes(lane[j]);
    const int greater = __builtin_popcount(compare_bits(lanes_max, v, false));
    const int reach = __builtin_popcount(compare_bits(lanes_max, v, true));
    if (greater < kTopTokens && reach >= kTopTokens) return lane[j];
  }
  return -__builtin_inff();
}

struct FirstPass {
  Lanes largest;  // per lane; NaN entries are left out
  bool has_nan = false;
  uint64_t hash = 0;
};

/// Multiplies the logits and finds the largest.
FirstPass find_largest(float* logits, int64_t count, float multiplier) {
  FirstPass found{minus_infinity()};
  const bool scale = multiplier != 1.0f;
  const Lanes factor = set_lanes(multiplier);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    Lanes v = load(logits + i);
    if (scale) {
      v = mul(v, factor);
      store(logits + i, v);
    }
    found.has_nan |= nan_bits(v) != 0;
    found.largest = max(v, found.largest);
  }
  if (i < count) {
    const Mask mask = first_lanes(count - i);
    Lanes v = load(logits + i, mask);
    if (scale) {
      v = mul(v, factor);
      store(logits + i, v, mask);
    }
    v = blend(minus_infinity(), v, mask);
    found.has_nan |= nan_bits(v) != 0;
    found.largest = max(v, found.largest);
  }
  return found;
}

/// The same of a whole block, with hash_whole_block on the way: even and odd words apart, their
/// products in 64 bits.
template <bool kScale>
FirstPass find_largest_and_hash(float* logits, float multiplier) {
  const __m256 factor = _mm256_set1_ps(multiplier);
  Lanes first_largest = minus_infinity();
  Lanes second_largest = first_largest;
  __m256 unordered = _mm256_setzero_ps();
  __m256i even = _mm256_setzero_si256();
  __m256i odd = _mm256_setzero_si256();
  const auto load_8 = [&](float* at) __attribute__((always_inline)) {
    __m256 v = _mm256_loadu_ps(at);
    if constexpr (kScale) {
      v = _mm256_mul_ps(v, factor);
      _mm256_storeu_ps(at, v);
    }
    return v;
  };
  const auto word = [](__m256 v, size_t i) __attribute__((always_inline)) {
    const auto* keys = reinterpret_cast<const __m256i*>(kHashKeys.data() + i);
    return _mm256_add_epi32(_mm256_castps_si256(v), _mm256_load_si256(keys));
  };
  const auto take = [&](size_t j, __m256 & first_max, __m256 & second_max)
      __attribute__((always_inline)) {
    const __m256 a = load_8(logits + j);
    const __m256 b = load_8(logits + j + kHashPairs);
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
    first_max = _mm256_max_ps(a, first_max);
    second_max = _mm256_max_ps(b, second_max);
    const __m256i first = word(a, j);
    const __m256i second = word(b, j + kHashPairs);
    even = _mm256_add_epi64(even, _mm256_mul_epu32(first, second));
    odd = _mm256_add_epi64(
        odd, _mm256_mul_epu32(_mm256_srli_epi64(first, 32), _mm256_srli_epi64(second, 32)));
  };
  for (size_t j = 0; j < kHashPairs; j += 16) {
    take(j, first_largest.low, second_largest.low);
    take(j + 8, first_largest.high, second_largest.high);
  }
  alignas(32) uint64_t sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_add_epi64(even, odd));
  // The earlier of equal zeros stays.
  return {max(second_largest, first_largest), _mm256_movemask_ps(unordered) != 0,
          sums[0] + sums[1] + sums[2] + sums[3]};
}

/// Takes the entries of v that reach the threshold, of the lanes that `valid` has.
VITRINE_INLINE void take_best(BestEntries& best, Lanes v, uint32_t valid, int64_t i) {
  take_reaching(best, compare_bits(v, set_lanes(best.threshold), true) & valid, i);
}

/// The same of 32 entries: hardly any reach it.
VITRINE_INLINE void take_best_of_two(BestEntries& best, Lanes first, Lanes second, int64_t i) {
  const Lanes larger = max(first, second);
  const __m256 largest = _mm256_max_ps(larger.low, larger.high);
  const __m256 reach = _mm256_cmp_ps(largest, _mm256_set1_ps(best.threshold), _CMP_GE_OQ);
  if (_mm256_movemask_ps(reach) == 0) [[likely]]
    return;
  take_best(best, first, 0xffff, i);
  take_best(best, second, 0xffff, i + 16);
}

/// The head's exponential, of kExpStatisticsLow <= x <= 0. `words`: kExp2Words.
VITRINE_INLINE __m256 exp_statistics(__m256 x, __m256i words) {
  const __m256 magic = _mm256_set1_ps(kRoundMagic8);
  const __m256 log2e = _mm256_set1_ps(kLog2E);
  const __m256 rounded = _mm256_fmadd_ps(x, log2e, magic);
  const __m256 f = _mm256_fmsub_ps(x, log2e, _mm256_sub_ps(rounded, magic));
  const __m256i bits = _mm256_castps_si256(rounded);
  const __m256 power = _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_permutevar8x32_epi32(words, bits), _mm256_slli_epi32(bits, 20)));
  __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(kExp2D3), f, _mm256_set1_ps(kExp2D2));
  q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(kExp2D1));
  return _mm256_fmadd_ps(_mm256_mul_ps(q, f), power, power);
}

/// Sums of exp(logit - max) and exp(logit - max) * (logit - max), and the best entries where there
/// are some to find. False where a distance is below kExpStatisticsLow and kAnyDistance did not
/// provide for it, a few instructions more.
template <bool kAnyDistance>
bool add_exponentials(const float* logits, int64_t count, float max, BestEntries* best,
                      HeadBlockStats* stats) {
  const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(kExp2Words.at));
  const Lanes low = set_lanes(kExpStatisticsLow);
  const Lanes largest = set_lanes(max);
  Lanes sum_exp = set_lanes(0.0f);
  Lanes sum_exp_logit = set_lanes(0.0f);
  __m256i farthest = _mm256_setzero_si256();  // of numbers below zero, the bits grow with them
  const auto add_all = [&](Lanes distance) __attribute__((always_inline)) {
    const Lanes e{exp_statistics(distance.low, words), exp_statistics(distance.high, words)};
    sum_exp = add(sum_exp, e);
    sum_exp_logit = fma(e, distance, sum_exp_logit);
  };
  const auto add_some = [&](Lanes distance, Mask mask) __attribute__((always_inline)) {
    const Lanes exp_before = sum_exp;
    const Lanes exp_logit_before = sum_exp_logit;
    add_all(distance);
    sum_exp = blend(exp_before, sum_exp, mask);
    sum_exp_logit = blend(exp_logit_before, sum_exp_logit, mask);
  };
  const auto note_farthest = [&](Lanes distance) __attribute__((always_inline)) {
    farthest = _mm256_max_epu32(farthest, _mm256_castps_si256(distance.low));
    farthest = _mm256_max_epu32(farthest, _mm256_castps_si256(distance.high));
  };
  const auto take = [&](Lanes logit) __attribute__((always_inline)) {
    const Lanes distance = sub(logit, largest);
    if constexpr (kAnyDistance) {
      add_some(distance, not_below(distance, low));
    } else {
      note_farthest(distance);
      add_all(distance);
    }
  };
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const Lanes first = load(logits + i);
    const Lanes second = load(logits + i + 16);
    if constexpr (!kAnyDistance) take_best_of_two(*best, first, second, i);
    take(first);
    take(second);
  }
  for (; i + 16 <= count; i += 16) {
    const Lanes logit = load(logits + i);
    if constexpr (!kAnyDistance) take_best(*best, logit, 0xffff, i);
    take(logit);
  }
  if (i < count) {
    Mask mask = first_lanes(count - i);
    const Lanes logit = load(logits + i, mask);
    const Lanes distance = blend(set_lanes(0.0f), sub(logit, largest), mask);
    if constexpr (kAnyDistance) {
      mask = both(mask, not_below(distance, low));
    } else {
      take_best(*best, logit, first_bits(count - i), i);
      note_farthest(distance);
    }
    add_some(distance, mask);
  }
  stats->sum_exp = sum_lanes(sum_exp);
  stats->sum_exp_logit = sum_lanes(sum_exp_logit);
  const __m256i lowest = _mm256_castps_si256(low.low);
  const __m256i within = _mm256_cmpeq_epi32(_mm256_max_epu32(farthest, lowest), lowest);
  return _mm256_movemask_epi8(within) == -1;
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
    found = multiplier != 1.0f ? find_largest_and_hash<true>(logits, multiplier)
                               : find_largest_and_hash<false>(logits, multiplier);
  }
  const float max = max_lanes(found.largest);
  *stats = {.max = found.has_nan ? __builtin_nanf("") : max, .hash = found.hash};
  BestEntries best{stats, logits, begin, top_threshold(found.largest)};
  // -inf: nothing but masked logits.
  if (statistics && !found.has_nan && max != -__builtin_inff()) {
    if (!add_exponentials<false>(logits, count, max, &best, stats)) {
      add_exponentials<true>(logits, count, max, nullptr, stats);
    }
    return;
  }
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) take_best(best, load(logits + i), 0xffff, i);
  if (i < count) {
    take_best(best, load(logits + i, first_lanes(count - i)), first_bits(count - i), i);
  }
  if (found.has_nan) stats->sum_exp = stats->sum_exp_logit = stats->max;
}

}  // namespace vitrine::kernels::avx2
