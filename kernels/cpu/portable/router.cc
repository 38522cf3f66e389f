// SPDX-License-Identifier: Apache-2.0
// Router of the portable table.
#include "../top_list.h"
#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {

void route_weights(const float* logits, const float* probs, const int32_t* ids, int32_t k,
                   bool normalize, bool softmax_after_topk, float* weights) {
  for (int32_t s = 0; s < k; ++s) weights[s] = probs[ids[s]];
  if (softmax_after_topk) {
    float chosen_max = logits[ids[0]];
    for (int32_t s = 1; s < k; ++s) {
      chosen_max = logits[ids[s]] > chosen_max ? logits[ids[s]] : chosen_max;
    }
    for (int32_t s = 0; s < k; ++s) weights[s] = exp_float(logits[ids[s]] - chosen_max);
  } else if (!normalize) {
    return;
  }
  float total = weights[0];
  for (int32_t s = 1; s < k; ++s) total = total + weights[s];
  for (int32_t s = 0; s < k; ++s) weights[s] = weights[s] / total;
}

void router_top_k(const float* logits, int32_t n, int32_t k, bool normalize,
                  bool softmax_after_topk, float* probs, int32_t* ids, float* weights) {
  MaxLanes lanes_max;
  for (int32_t i = 0; i < n; ++i) lanes_max.take(i, logits[i]);
  const float max = lanes_max.max();
  Lanes lanes;
  for (int32_t i = 0; i < n; ++i) {
    probs[i] = exp_float(logits[i] - max);
    lanes.add_at(i, probs[i]);
  }
  const float sum = lanes.sum();
  int32_t count = 0;
  for (int32_t i = 0; i < n; ++i) {
    probs[i] = probs[i] / sum;
    count = insert_top(probs[i], i, k, count, weights, ids);
  }
  route_weights(logits, probs, ids, k, normalize, softmax_after_topk, weights);
}

}  // namespace vitrine::kernels::portable
