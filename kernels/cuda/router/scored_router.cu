// SPDX-License-Identifier: Apache-2.0
// The router that chooses by other numbers than its weights are made of (DeepSeek-V3, 2024).
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/router/router_block.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int32_t kMaxGroups = 64;

/// An integer that orders as the float does, and is never 0; what is no number comes last.
VITRINE_DEVICE uint32_t key_of(float x) {
  if (x != x) return 1;
  const uint32_t bits = float_bits(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The sum of the two largest of `count` numbers.
VITRINE_DEVICE float sum_of_two(const float* numbers, int32_t count) {
  float best = bits_float(0xff800000u), second = best;
  for (int32_t i = 0; i < count; ++i) {
    if (numbers[i] > best) {
      second = best;
      best = numbers[i];
    } else if (numbers[i] > second) {
      second = numbers[i];
    }
  }
  return best + second;
}

/// Lane s gets the expert of slot s. `numbers` [experts] in shared memory: scores with their
/// corrections, which become keys.
VITRINE_DEVICE void choose_by_groups(const Router& router, const RouterScores& own, float* numbers,
                                     uint32_t* groups, int32_t* id) {
  const int32_t n = router.num_experts, size = n / own.groups;
  const bool is_limited = own.chosen_groups < own.groups;
  if (is_limited) {
    for (int32_t group = lane_index(); group < own.groups; group += kWarp) {
      groups[group] = key_of(sum_of_two(numbers + group * size, size));
    }
    sync_warp();
    int32_t unread = 0;
    choose_best(groups, own.groups, own.chosen_groups, &unread);
    sync_warp();  // the groups that were taken are 0 now
  }
  auto* keys = reinterpret_cast<uint32_t*>(numbers);
  for (int32_t i = lane_index(); i < n; i += kWarp) {
    const bool is_out = is_limited && groups[i / size] != 0;
    keys[i] = is_out ? 0 : key_of(numbers[i]);
  }
  sync_warp();
  choose_best(keys, n, router.top_k, id);
}

// A warp a token. Bytes: as router_kernel, and the corrections out of the L2 cache.
VITRINE_KERNEL(kRouterWarps* kWarp)
void scored_router_kernel(Router router, RouterScores own, int32_t tokens) {
  const int64_t token = static_cast<int64_t>(block_x()) * kRouterWarps + warp_index();
  if (token >= tokens) return;  // whole warps; no barrier of the block follows
  const int32_t n = router.num_experts;
  const int32_t k = router.top_k;
  auto* all = reinterpret_cast<float*>(dynamic_shared<unsigned char>());
  float* scores = all + static_cast<int64_t>(warp_index()) * (2 * n + kMaxGroups);
  float* numbers = scores + n;
  auto* groups = reinterpret_cast<uint32_t*>(numbers + n);
  const int lane = lane_index();
  bool is_broken = false;
  for (int32_t i = lane; i < n; i += kWarp) {
    const float logit = router.logits[token * n + i];
    is_broken = is_broken || !(logit < bits_float(0x7f800000u));
    scores[i] = sigmoid(logit);
    numbers[i] = own.correction != nullptr ? scores[i] + own.correction[i] : scores[i];
  }
  is_broken = ballot(is_broken) != 0;
  for (int32_t i = lane; i < n; i += kWarp) {
    if (is_broken) scores[i] = bits_float(0x7fc00000u);
    if (router.probs != nullptr) router.probs[token * n + i] = scores[i];
    if (router.record_probs != nullptr) {
      router.record_probs[token * router.record_stride + i] = scores[i];
    }
  }
  sync_warp();
  int32_t id = lane < k ? lane : 0;
  if (!is_broken) choose_by_groups(router, own, numbers, groups, &id);
  const float given = force_route(router, token, &id);
  if (router.record_scores != nullptr && lane < k) {
    float* record = router.record_scores + token * router.record_stride;
    record[lane] = scores[id];
    record[k + lane] = own.correction != nullptr ? scores[id] + own.correction[id] : scores[id];
  }
  float weight = scores[id];
  if (router.normalize) weight = weight / (sum_of_slots(weight, k) + own.sum_epsilon);
  weight = weight * own.scale;
  store_routes(router, tokens, token, id, given >= 0.0f ? given : weight);
}

}  // namespace

Status scored_router_top_k(const Router& router, const RouterScores& scores, int32_t tokens,
                           Stream stream) {
  if (const char* why = why_bad_router(router, tokens)) return refuse(why);
  if (scores.groups < 1 || scores.groups > kMaxGroups || router.num_experts % scores.groups != 0) {
    return refuse("router: groups, expected 1 to 64, a divisor of num_experts");
  }
  const int32_t of_group = router.num_experts / scores.groups;
  if (scores.chosen_groups < 1 || scores.chosen_groups > scores.groups ||
      scores.chosen_groups * of_group < router.top_k) {
    return refuse("router: chosen_groups, expected 1 to groups, with top_k experts at least");
  }
  const auto blocks = static_cast<uint32_t>(divide_up(tokens, kRouterWarps));
  const size_t shared =
      static_cast<size_t>(kRouterWarps * (2 * router.num_experts + kMaxGroups)) * sizeof(float);
  return launch(scored_router_kernel, {blocks}, kRouterWarps * kWarp, shared, stream, router,
                scores, tokens);
}

}  // namespace vitrine::kernels::cuda
