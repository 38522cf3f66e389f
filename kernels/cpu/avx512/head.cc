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

/// hash_whole_block, of whose loop g++ 12 makes 64-bit products: twice the time.
uint64_t hash_block(const float* logits) {
  __m512i even = _mm512_setzero_si512();
  __m512i odd = _mm512_setzero_si512();
  const auto words = [&](size_t i) {
    return _mm512_add_epi32(_mm512_loadu_si512(logits + i),
                            _mm512_load_si512(kHashKeys.data() + i));
  };
  for (size_t j = 0; j < kHashPairs; j += 16) {
    const __m512i first = words(j);
    const __m512i second = words(j + kHashPairs);
    even = _mm512_add_epi64(even, _mm512_mul_epu32(first, second));
    odd = _mm512_add_epi64(
        odd, _mm512_mul_epu32(_mm512_srli_epi64(first, 32), _mm512_srli_epi64(second, 32)));
  }
  // The intrinsic that reduces adds signed numbers, which must not overflow.
  alignas(64) uint64_t sums[8];
  _mm512_store_si512(sums, _mm512_add_epi64(even, odd));
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum += lane;
  return sum;
}

/// The head's exponential of lanes that are not above 0.
VITRINE_INLINE __m512 exp_statistics(__m512 x) {
  const __m512 magic = _mm512_set1_ps(kRoundMagic);
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, log2e, magic), magic);
  const __m512 f = _mm512_fmsub_ps(x, log2e, n);
  __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(kExp2D5), f, _mm512_set1_ps(kExp2D4));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(kExp2D3));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(kExp2D2));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(kExp2D1));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(q, n);
}

/// Sums of exp(logit - max) and exp(logit - max) * (logit - max). Without the clamp to kExpLow, an
/// instruction more for each vector, a distance beyond some -10^7 may make a sum infinite or NaN.
template <bool kClamped>
void add_exponentials(const float* logits, int64_t count, float max, HeadBlockStats* stats) {
  const __m512 largest = _mm512_set1_ps(max);
  __m512 sum_exp = _mm512_setzero_ps();
  __m512 sum_exp_logit = _mm512_setzero_ps();
  const auto take = [&](__m512 logit, __mmask16 mask) __attribute__((always_inline)) {
    __m512 distance = _mm512_sub_ps(logit, largest);
    if constexpr (kClamped) distance = _mm512_max_ps(_mm512_set1_ps(kExpLow), distance);
    const __m512 e = exp_statistics(distance);
    sum_exp = _mm512_mask_add_ps(sum_exp, mask, sum_exp, e);
    sum_exp_logit = _mm512_mask3_fmadd_ps(e, distance, sum_exp_logit, mask);
  };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) take(_mm512_loadu_ps(logits + i), 0xffff);
  if (i < count) {
    const __mmask16 mask = first_lanes(count - i);
    take(_mm512_maskz_loadu_ps(mask, logits + i), mask);
  }
  stats->sum_exp = sum_lanes(sum_exp);
  stats->sum_exp_logit = sum_lanes(sum_exp_logit);
}

}  // namespace

void head_block(float* logits, int64_t begin, int64_t end, float multiplier, bool statistics,
                HeadBlockStats* stats) {
  const bool scale = multiplier != 1.0f;
  const __m512 factor = _mm512_set1_ps(multiplier);
  __m512 lanes_max = minus_infinity();
  __mmask16 nan = 0;
  for (int64_t i = begin; i < end; i += 16) {
    const __mmask16 mask = first_lanes(end - i);
    __m512 v = _mm512_mask_loadu_ps(minus_infinity(), mask, logits + i);
    if (scale) {
      v = _mm512_mask_mul_ps(v, mask, v, factor);
      _mm512_mask_storeu_ps(logits + i, mask, v);
    }
    nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    lanes_max = _mm512_max_ps(v, lanes_max);
  }

  int32_t count = 0;
  float threshold = top_threshold(lanes_max);
  for (int64_t i = begin; i < end; i += 16) {
    const __mmask16 mask = first_lanes(end - i);
    const __m512 v = _mm512_maskz_loadu_ps(mask, logits + i);
    uint32_t better = _mm512_mask_cmp_ps_mask(mask, v, _mm512_set1_ps(threshold), _CMP_GE_OQ);
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

  const float max = max_lanes(lanes_max);
  if (nan != 0) {
    stats->max = stats->sum_exp = stats->sum_exp_logit = __builtin_nanf("");
    return;
  }
  stats->max = max;
  stats->sum_exp = stats->sum_exp_logit = 0.0f;
  if (!statistics || max == -__builtin_inff()) return;  // -inf: nothing but masked logits
  add_exponentials<false>(logits + begin, end - begin, max, stats);
  // A masked logit of -inf, or one that is far below any other.
  if (!__builtin_isfinite(stats->sum_exp) || !__builtin_isfinite(stats->sum_exp_logit)) {
    add_exponentials<true>(logits + begin, end - begin, max, stats);
  }
}

}  // namespace vitrine::kernels::avx512
