// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/router/router.h"

#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int32_t kMaxExperts = 1024;
constexpr int32_t kMaxChosen = kWarp;
constexpr int kWarpsPerBlock = 4;

// Lane s gets the id of slot s: k times the largest probability that is left, ties by lower id.
// Each lane looks through its own experts again only when one of them was taken.
VITRINE_DEVICE void choose_best(float* left, int32_t n, int32_t k, int32_t* own_id) {
  constexpr uint32_t kNone = 0;  // below every probability's key
  const auto best_of_lane = [&](uint32_t* key, int32_t* id) {
    *key = kNone;
    *id = kMaxExperts;
    for (int32_t i = lane_index(); i < n; i += kWarp) {
      const float prob = left[i];
      if (prob < 0.0f) continue;                        // taken
      const uint32_t candidate = float_bits(prob) + 1;  // probabilities order like their bits
      if (candidate > *key) {
        *key = candidate;
        *id = i;
      }
    }
  };
  uint32_t key = kNone;
  int32_t id = 0;
  best_of_lane(&key, &id);
  for (int32_t slot = 0; slot < k; ++slot) {
    const uint32_t best = reduce_max(key);
    const auto chosen = static_cast<int32_t>(
        reduce_min(key == best ? static_cast<uint32_t>(id) : static_cast<uint32_t>(kMaxExperts)));
    if (lane_index() == slot) *own_id = chosen;
    if (chosen == id) {
      left[id] = -1.0f;
      best_of_lane(&key, &id);
    }
  }
}

// The tiles of one token: a route each, experts ascending. Lanes below k have the ids of their
// slots.
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

// A warp a token. Bytes: 4 * num_experts to read, as many again for each copy of the probabilities
// that is asked for, 8 * top_k for ids and weights.
VITRINE_KERNEL(kWarpsPerBlock* kWarp)
void router_kernel(Router router, int32_t tokens) {
  const int64_t token = static_cast<int64_t>(block_x()) * kWarpsPerBlock + warp_index();
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
  for (int32_t i = lane; i < n; i += kWarp) {
    const float prob = probs[i] / sum;
    probs[i] = prob;
    if (router.probs != nullptr) router.probs[token * n + i] = prob;
    if (router.record_probs != nullptr) {
      router.record_probs[token * router.record_stride + i] = prob;
    }
  }
  sync_warp();                                    // another lane's logit is read below
  int32_t id = lane < k ? lane : 0;               // where every probability is NaN
  if (sum == sum) choose_best(probs, n, k, &id);  // the sum is the same in all lanes
  float given = -1.0f;
  if (router.forced_ids != nullptr && lane < k) {
    const int32_t forced = router.forced_ids[token * router.forced_stride + lane];
    if (forced >= 0) {
      id = forced;
      given = router.forced_weights[token * router.forced_stride + lane];
    }
  }
  // The chosen probabilities were marked in shared memory: they are made again, the same way.
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
  if (router.softmax_after_topk || router.normalize) {
    float total = shuffle(weight, 0);
    for (int32_t slot = 1; slot < k; ++slot) total = total + shuffle(weight, slot);
    weight = weight / total;
  }
  if (given >= 0.0f) weight = given;
  if (tokens == 1 && router.grouping.row_routes != nullptr) group_token(router.grouping, id, k);
  if (lane >= k) return;
  router.ids[token * k + lane] = id;
  router.weights[token * k + lane] = weight;
  if (router.record_ids != nullptr) router.record_ids[token * router.record_stride + lane] = id;
  if (router.record_weights != nullptr) {
    router.record_weights[token * router.record_stride + lane] = weight;
  }
}

}  // namespace

Status router_top_k(const Router& router, int32_t tokens, Stream stream) {
  if (tokens < 1) return refuse("router: tokens, expected at least 1");
  if (router.num_experts < 1 || router.num_experts > kMaxExperts) {
    return refuse("router: num_experts, expected 1 to 1,024");
  }
  if (router.top_k < 1 || router.top_k > router.num_experts || router.top_k > kMaxChosen) {
    return refuse("router: top_k, expected 1 to num_experts, at most 32");
  }
  const auto blocks = static_cast<uint32_t>(divide_up(tokens, kWarpsPerBlock));
  const size_t shared =
      static_cast<size_t>(2 * kWarpsPerBlock * router.num_experts) * sizeof(float);
  return launch(router_kernel, {blocks}, kWarpsPerBlock * kWarp, shared, stream, router, tokens);
}

}  // namespace vitrine::kernels::cuda
