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

/// hash_whole_block in vectors: even and odd words apart, their products in 64 bits.
uint64_t hash_block(const float* logits) {
  __m256i even = _mm256_setzero_si256();
  __m256i odd = _mm256_setzero_si256();
  const auto words = [&](size_t i) {
    const auto* keys = reinterpret_cast<const __m256i*>(kHashKeys.data() + i);
    return _mm256_add_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(logits + i)),
                            _mm256_load_si256(keys));
  };
  for (size_t j = 0; j < kHashPairs; j += 8) {
    const __m256i first = words(j);
    const __m256i second = words(j + kHashPairs);
    even = _mm256_add_epi64(even, _mm256_mul_epu32(first, second));
    odd = _mm256_add_epi64(
        odd, _mm256_mul_epu32(_mm256_srli_epi64(first, 32), _mm256_srli_epi64(second, 32)));
  }
  alignas(32) uint64_t sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_add_epi64(even, odd));
  return sums[0] + sums[1] + sums[2] + sums[3];
}

/// The head's exponential, of kExpStatisticsLow <= x <= 0.
VITRINE_INLINE __m256 exp_statistics(__m256 x) {
  const __m256 magic = _mm256_set1_ps(kRoundMagic32);
  const __m256 log2e = _mm256_set1_ps(kLog2E);
  const __m256 rounded = _mm256_fmadd_ps(x, log2e, magic);
  const __m256 f = _mm256_fmsub_ps(x, log2e, _mm256_sub_ps(rounded, magic));
  const __m256i bits = _mm256_castps_si256(rounded);
  // Four permutations and three choices, by the index's upper bits, are faster than a gather.
  const auto permuted = [&](int part) __attribute__((always_inline)) {
    const auto* eight = reinterpret_cast<const __m256i*>(kExp2Words.at + 8 * part);
    return _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(_mm256_load_si256(eight), bits));
  };
  const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 28));
  const __m256 bit4 = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 27));
  const __m256i words =
      _mm256_castps_si256(_mm256_blendv_ps(_mm256_blendv_ps(permuted(0), permuted(1), bit3),
                                           _mm256_blendv_ps(permuted(2), permuted(3), bit3), bit4));
  const __m256 power = _mm256_castsi256_ps(_mm256_add_epi32(words, _mm256_slli_epi32(bits, 18)));
  const __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(kExp2D2), f, _mm256_set1_ps(kExp2D1));
  return _mm256_fmadd_ps(_mm256_mul_ps(q, f), power, power);
}

}  // namespace

void head_block(float* logits, int64_t begin, int64_t end, float multiplier, bool statistics,
                HeadBlockStats* stats) {
  const bool scale = multiplier != 1.0f;
  const Lanes factor = set_lanes(multiplier);
  Lanes lanes_max = minus_infinity();
  uint32_t nan = 0;
  for (int64_t i = begin; i < end; i += 16) {
    const Mask mask = first_lanes(end - i);
    Lanes v = load(logits + i, mask);
    if (scale) {
      v = mul(v, factor);
      store(logits + i, v, mask);
    }
    v = blend(minus_infinity(), v, mask);
    nan |= nan_bits(v);
    lanes_max = max(v, lanes_max);
  }

  int32_t count = 0;
  float threshold = top_threshold(lanes_max);
  for (int64_t i = begin; i < end; i += 16) {
    const Lanes v = load(logits + i, first_lanes(end - i));
    uint32_t better = compare_bits(v, set_lanes(threshold), true) & first_bits(end - i);
    if (better == 0) continue;
    for (; better != 0; better &= better - 1) {
      const int64_t id = i + __builtin_ctz(better);
      count = insert_top(logits[id], static_cast<int32_t>(id), kTopTokens, count, stats->top_logits,
                         stats->top_ids);
    }
    if (count == kTopTokens) threshold = stats->top_logits[kTopTokens - 1];
  }
  stats->count = count;
  stats->hash = statistics ? hash_logits<hash_block>(logits + begin, end - begin) : 0;

  const float largest = max_lanes(lanes_max);
  if (nan != 0) {
    stats->max = stats->sum_exp = stats->sum_exp_logit = __builtin_nanf("");
    return;
  }
  stats->max = largest;
  stats->sum_exp = stats->sum_exp_logit = 0.0f;
  if (!statistics || largest == -__builtin_inff()) return;  // -inf: nothing but masked logits
  const Lanes shift = set_lanes(largest);
  Lanes sum_exp = set_lanes(0.0f);
  Lanes sum_exp_logit = set_lanes(0.0f);
  for (int64_t i = begin; i < end; i += 16) {
    const Lanes distance = sub(load(logits + i, first_lanes(end - i)), shift);
    const Mask mask = both(first_lanes(end - i), not_below(distance, set_lanes(kExpStatisticsLow)));
    const Lanes e{exp_statistics(distance.low), exp_statistics(distance.high)};
    sum_exp = blend(sum_exp, add(sum_exp, e), mask);
    sum_exp_logit = blend(sum_exp_logit, fma(e, distance, sum_exp_logit), mask);
  }
  stats->sum_exp = sum_lanes(sum_exp);
  stats->sum_exp_logit = sum_lanes(sum_exp_logit);
}

}  // namespace vitrine::kernels::avx2
