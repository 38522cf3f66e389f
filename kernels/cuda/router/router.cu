// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/router/router.h"

#include "kernels/cuda/reduce.h"
#include "kernels/cuda/router/router_block.h"

namespace vitrine::kernels::cuda {
namespace {

// A warp a token. Bytes: 4 * num_experts to read, as many again for each copy of the probabilities
// that is asked for, 8 * top_k for ids and weights.
VITRINE_KERNEL(kRouterWarps* kWarp)
void router_kernel(Router router, int32_t tokens) {
  const int64_t token = static_cast<int64_t>(block_x()) * kRouterWarps + warp_index();
  if (token >= tokens) return;  // whole warps; no barrier of the block follows
  const int32_t n = router.num_experts;
  const int32_t k = router.top_k;
  auto* all = reinterpret_cast<float*>(dynamic_shared<unsigned char>());
  float* probs = all + static_cast<int64_t>(2 * warp_index()) * n;
  float* logits = probs + n;
  const int lane = lane_index();
  for (int32_t i = lane; i < n; i += kWarp) logits[i] = router.logits[token * n + i];
  // Which of two zeros is the maximum cannot be seen in what is made of it.
  float max = bits_float(0xff800000u);
  for (int32_t i = lane; i < n; i += kWarp) max = logits[i] > max ? logits[i] : max;
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const float other = shuffle_xor(max, width);
    max = other > max ? other : max;
  }
  for (int32_t i = lane; i < n; i += kWarp) probs[i] = exp_float(logits[i] - max);
  sync_warp();
  float sum = 0.0f;  // both halves of the warp add the same 16 lanes
  for (int32_t i = lane % kLanes; i < n; i += kLanes) sum = sum + probs[i];
  sum = add_lanes(sum);
  sync_warp();  // all have read what is overwritten now
  auto* keys = reinterpret_cast<uint32_t*>(probs);
  for (int32_t i = lane; i < n; i += kWarp) {
    const float prob = probs[i] / sum;
    if (router.probs != nullptr) router.probs[token * n + i] = prob;
    if (router.record_probs != nullptr) {
      router.record_probs[token * router.record_stride + i] = prob;
    }
    keys[i] = float_bits(prob) + 1;  // probabilities order like their bits
  }
  sync_warp();                                   // another lane's logit is read below
  int32_t id = lane < k ? lane : 0;              // where every probability is NaN
  if (sum == sum) choose_best(keys, n, k, &id);  // the sum is the same in all lanes
  const float given = force_route(router, token, &id);
  // In place of the chosen probabilities stand their keys: they are made again, the same way.
  const float logit = logits[id];
  float weight = exp_float(logit - max) / sum;
  if (router.softmax_after_topk) {
    float chosen_max = shuffle(logit, 0);
    for (int32_t slot = 1; slot < k; ++slot) {
      const float other = shuffle(logit, slot);
      chosen_max = other > chosen_max ? other : chosen_max;
    }
    weight = exp_float(logit - chosen_max);
  }
  if (router.softmax_after_topk || router.normalize) weight = weight / sum_of_slots(weight, k);
  store_routes(router, tokens, token, id, given >= 0.0f ? given : weight);
}

}  // namespace

Status router_top_k(const Router& router, int32_t tokens, Stream stream) {
  if (const char* why = why_bad_router(router, tokens)) return refuse(why);
  const auto blocks = static_cast<uint32_t>(divide_up(tokens, kRouterWarps));
  const size_t shared = static_cast<size_t>(2 * kRouterWarps * router.num_experts) * sizeof(float);
  return launch(router_kernel, {blocks}, kRouterWarps * kWarp, shared, stream, router, tokens);
}

}  // namespace vitrine::kernels::cuda
