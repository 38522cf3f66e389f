// SPDX-License-Identifier: Apache-2.0
// Router of the AVX2 table.
#include "../top_list.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

/// The k largest of values [0, n), by descending value, ties by lower id.
void select_top(const float* values, int32_t n, int32_t k, int32_t* ids, float* top) {
  int32_t count = 0;
  for (int32_t i = 0; i < k; ++i) count = insert_top(values[i], i, k, count, top, ids);
  for (int32_t i = k; i < n; i += 8) {
    const __m256 v = _mm256_maskload_ps(values + i, first_lanes_8(n - i));
    const __m256 smallest = _mm256_set1_ps(top[k - 1]);
    auto better = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(v, smallest, _CMP_GT_OQ)));
    better &= first_bits(n - i);
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
    for (int32_t s = 0; s < k; s += 8) {
      const __m256i mask = first_lanes_8(k - s);
      const __m256 v = _mm256_maskload_ps(weights + s, mask);
      const __m256 e = exp_8(_mm256_sub_ps(v, _mm256_set1_ps(chosen_max)));
      _mm256_maskstore_ps(weights + s, mask, e);
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
  Lanes lanes_max = minus_infinity();
  for (int32_t i = 0; i < n; i += 16) {
    const Mask mask = first_lanes(n - i);
    const Lanes v = blend(minus_infinity(), load(logits + i, mask), mask);
    lanes_max = max(v, lanes_max);
  }
  const Lanes largest = set_lanes(max_lanes(lanes_max));
  Lanes sum = set_lanes(0.0f);
  for (int32_t i = 0; i < n; i += 16) {
    const Mask mask = first_lanes(n - i);
    const Lanes e = exp_lanes(sub(load(logits + i, mask), largest));
    sum = blend(sum, add(sum, e), mask);
    store(probs + i, e, mask);
  }
  const Lanes total = set_lanes(sum_lanes(sum));
  for (int32_t i = 0; i < n; i += 16) {
    const Mask mask = first_lanes(n - i);
    store(probs + i, div(load(probs + i, mask), total), mask);
  }
  select_top(probs, n, k, ids, weights);
  route_weights(logits, probs, ids, k, normalize, softmax_after_topk, weights);
}

}  // namespace vitrine::kernels::avx2
