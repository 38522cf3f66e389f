// SPDX-License-Identifier: Apache-2.0
// What both routers have: the choice of the best, the tiles of one token, and where a token's
// routes go. A warp has a token.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/router/router.h"

namespace vitrine::kernels::cuda {

inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxChosen = kWarp;
inline constexpr int kRouterWarps = 4;  // of a block

/// Lane s gets the id of slot s: k times the largest of n keys in shared memory that is left, ties
/// by lower id. A key of 0 is none: what is taken becomes 0, and what is 0 is never taken. Each
/// lane looks through its own keys (i mod 32) again only when one of them was taken.
VITRINE_DEVICE void choose_best(uint32_t* keys, int32_t n, int32_t k, int32_t* own_id) {
  const auto best_of_lane = [&](uint32_t* key, int32_t* id) {
    *key = 0;
    *id = kMaxExperts;
    for (int32_t i = lane_index(); i < n; i += kWarp) {
      if (keys[i] <= *key) continue;
      *key = keys[i];
      *id = i;
    }
  };
  uint32_t key = 0;
  int32_t id = 0;
  best_of_lane(&key, &id);
  for (int32_t slot = 0; slot < k; ++slot) {
    const uint32_t best = reduce_max(key);
    const auto chosen = static_cast<int32_t>(
        reduce_min(key == best ? static_cast<uint32_t>(id) : static_cast<uint32_t>(kMaxExperts)));
    if (lane_index() == slot) *own_id = chosen;
    if (chosen == id) {
      keys[id] = 0;
      best_of_lane(&key, &id);
    }
  }
}

/// The tiles of one token: a route each, experts ascending. Lanes below k have the ids of their
/// slots.
VITRINE_DEVICE void group_token(const Grouping& to, int32_t id, int32_t k) {
  int32_t rank = 0;
  for (int32_t slot = 0; slot < k; ++slot) rank += shuffle(id, slot) < id ? 1 : 0;
  if (lane_index() == 0) *to.num_tiles = k;
  if (lane_index() >= k) return;
  to.tile_experts[rank] = id;
  to.slot_rows[lane_index()] = rank * to.tile_rows;
  for (int32_t row = 0; row < to.tile_rows; ++row) {
    to.row_routes[rank * to.tile_rows + row] = row == 0 ? lane_index() : -1;
  }
}

/// Takes the expert that is forced upon this lane's slot, where one is; returns its weight, below
/// 0: the router's.
VITRINE_DEVICE float force_route(const Router& router, int64_t token, int32_t* id) {
  if (router.forced_ids == nullptr || lane_index() >= router.top_k) return -1.0f;
  const int64_t at = token * router.forced_stride + lane_index();
  if (router.forced_ids[at] < 0) return -1.0f;
  *id = router.forced_ids[at];
  return router.forced_weights[at];
}

/// The weights of lanes below k, added in slot order.
VITRINE_DEVICE float sum_of_slots(float weight, int32_t k) {
  float total = shuffle(weight, 0);
  for (int32_t slot = 1; slot < k; ++slot) total = total + shuffle(weight, slot);
  return total;
}

/// Writes the routes that lanes below top_k have, and their tiles where `tokens` is 1.
VITRINE_DEVICE void store_routes(const Router& router, int32_t tokens, int64_t token, int32_t id,
                                 float weight) {
  const int32_t k = router.top_k;
  if (tokens == 1 && router.grouping.row_routes != nullptr) group_token(router.grouping, id, k);
  const int lane = lane_index();
  if (lane >= k) return;
  router.ids[token * k + lane] = id;
  router.weights[token * k + lane] = weight;
  if (router.record_ids != nullptr) router.record_ids[token * router.record_stride + lane] = id;
  if (router.record_weights != nullptr) {
    router.record_weights[token * router.record_stride + lane] = weight;
  }
}

/// Null, or why there is no such choice.
inline const char* why_bad_router(const Router& router, int32_t tokens) {
  if (tokens < 1) return "router: tokens, expected at least 1";
  if (router.num_experts < 1 || router.num_experts > kMaxExperts) {
    return "router: num_experts, expected 1 to 1,024";
  }
  if (router.top_k < 1 || router.top_k > router.num_experts || router.top_k > kMaxChosen) {
    return "router: top_k, expected 1 to num_experts, at most 32";
  }
  return nullptr;
}

}  // namespace vitrine::kernels::cuda
