// SPDX-License-Identifier: Apache-2.0
// Router of the AVX-512 table.
#include "../top_list.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

/// The k largest of values [0, n), by descending value, ties by lower id.
void select_top(const float* values, int32_t n, int32_t k, int32_t* ids, float* top) {
  int32_t count = 0;
  for (int32_t i = 0; i < k; ++i) count = insert_top(values[i], i, k, count, top, ids);
  for (int32_t i = k; i < n; i += 16) {
    const __mmask16 valid = first_lanes(n - i);
    const __m512 v = _mm512_maskz_loadu_ps(valid, values + i);
    const __m512 smallest = _mm512_set1_ps(top[k - 1]);
    uint32_t better = _mm512_mask_cmp_ps_mask(valid, v, smallest, _CMP_GT_OQ);
    for (; better != 0; better &= better - 1) {
      const int32_t id = i + __builtin_ctz(better);
      count = insert_top(values[id], id, k, count, top, ids);
    }
  }
}

}  // namespace

void route_weights(const float* logits, const float* probs, const int32_t* ids, int32_t k,
                   bool normalize, bool softmax_after_topk, float* weights) {
  for (int32_t s = 0; s < k; ++s) weights[s] = probs[ids[s]];
  if (softmax_after_topk) {
    float chosen_max = logits[ids[0]];
    for (int32_t s = 0; s < k; ++s) {
      weights[s] = logits[ids[s]];
      chosen_max = weights[s] > chosen_max ? weights[s] : chosen_max;
    }
    for (int32_t s = 0; s < k; s += 16) {
      const __mmask16 mask = first_lanes(k - s);
      const __m512 v = _mm512_maskz_loadu_ps(mask, weights + s);
      const __m512 e = exp_lanes(_mm512_sub_ps(v, _mm512_set1_ps(chosen_max)));
      _mm512_mask_storeu_ps(weights + s, mask, e);
    }
  } else if (!normalize) {
    return;
  }
  float total = weights[0];
  for (int32_t s = 1; s < k; ++s) total = total + weights[s];
  for (int32_t s = 0; s < k; ++s) weights[s] = weights[s] / total;
}

void router_top_k(const float* logits, int32_t n, int32_t k, bool normalize,
                  bool softmax_after_topk, float* probs, int32_t* ids, float* weights) {
  __m512 lanes_max = minus_infinity();
  for (int32_t i = 0; i < n; i += 16) {
    const __m512 v = _mm512_mask_loadu_ps(minus_infinity(), first_lanes(n - i), logits + i);
    lanes_max = _mm512_max_ps(v, lanes_max);
  }
  const __m512 max = _mm512_set1_ps(max_lanes(lanes_max));
  __m512 lanes = _mm512_setzero_ps();
  for (int32_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 e = exp_lanes(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, logits + i), max));
    lanes = _mm512_mask_add_ps(lanes, mask, lanes, e);
    _mm512_mask_storeu_ps(probs + i, mask, e);
  }
  const __m512 sum = _mm512_set1_ps(sum_lanes(lanes));
  for (int32_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 e = _mm512_maskz_loadu_ps(mask, probs + i);
    _mm512_mask_storeu_ps(probs + i, mask, _mm512_div_ps(e, sum));
  }
  select_top(probs, n, k, ids, weights);
  route_weights(logits, probs, ids, k, normalize, softmax_after_topk, weights);
}

}  // namespace vitrine::kernels::avx512
