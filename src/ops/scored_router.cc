// SPDX-License-Identifier: Apache-2.0
#include "ops/scored_router.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vitrine::ops {

void ScoredRouter::choose(const kernels::CpuKernels& kernel, const float* logits, float* scores,
                          int32_t* ids, float* weights) const {
  const int64_t experts = parameters_.shape.experts, top_k = parameters_.shape.top_k;
  if (parameters_.score == RouterParameters::Score::kSoftmax) {
    kernel.router_top_k(logits, static_cast<int32_t>(experts), static_cast<int32_t>(top_k), false,
                        false, scores, ids, weights);
  } else {
    for (int64_t i = 0; i < experts; ++i) scores[i] = kernel.sigmoid(logits[i]);
  }
  bool all_finite = true;
  for (int64_t i = 0; i < experts; ++i) {
    all_finite = all_finite && std::isfinite(scores[i]) && logits[i] < HUGE_VALF;
  }
  if (!all_finite) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(scores, experts, kNan);
    std::fill_n(weights, top_k, kNan);
    for (int64_t slot = 0; slot < top_k; ++slot) ids[slot] = static_cast<int32_t>(slot);
    return;
  }
  const uint64_t groups = best_groups(scores);
  const int64_t group_size = experts / parameters_.groups;
  for (int64_t slot = 0; slot < top_k; ++slot) {
    int64_t best = -1;
    float best_key = 0;
    for (int64_t i = 0; i < experts; ++i) {
      if ((groups >> (i / group_size) & 1U) == 0) continue;
      const float own = key(scores, i);
      if (best >= 0 && own <= best_key) continue;
      if (std::find(ids, ids + slot, static_cast<int32_t>(i)) != ids + slot) continue;
      best = i;
      best_key = own;
    }
    ids[slot] = static_cast<int32_t>(best);
  }
  weigh(scores, ids, weights);
}

void ScoredRouter::weigh(const float* scores, const int32_t* ids, float* weights) const {
  const int64_t top_k = parameters_.shape.top_k;
  float sum = 0;
  for (int64_t slot = 0; slot < top_k; ++slot) {
    weights[slot] = scores[ids[slot]];
    sum = slot == 0 ? weights[slot] : sum + weights[slot];
  }
  if (parameters_.normalizes) {
    sum += static_cast<float>(parameters_.sum_epsilon);
    sum = std::max(sum, static_cast<float>(parameters_.least_sum));
    for (int64_t slot = 0; slot < top_k; ++slot) weights[slot] = weights[slot] / sum;
  }
  const auto scale = static_cast<float>(parameters_.scale);
  for (int64_t slot = 0; slot < top_k; ++slot) weights[slot] = weights[slot] * scale;
  if (expert_scale_ == nullptr) return;
  for (int64_t slot = 0; slot < top_k; ++slot) {
    weights[slot] = weights[slot] * expert_scale_[ids[slot]];
  }
}

void ScoredRouter::record(const float* scores, const int32_t* ids, float* to) const {
  const int64_t top_k = parameters_.shape.top_k;
  for (int64_t slot = 0; slot < top_k; ++slot) {
    to[slot] = scores[ids[slot]];
    to[top_k + slot] = key(scores, ids[slot]);
  }
}

float ScoredRouter::group_score(const float* scores, int64_t group) const {
  const int64_t size = parameters_.shape.experts / parameters_.groups;
  float best = -HUGE_VALF, second = -HUGE_VALF;
  for (int64_t i = group * size; i < (group + 1) * size; ++i) {
    const float own = key(scores, i);
    if (own > best) {
      second = best;
      best = own;
    } else if (own > second) {
      second = own;
    }
  }
  return parameters_.group_score_adds_two ? best + second : best;
}

// By bit; all of them where the choice is not limited.
uint64_t ScoredRouter::best_groups(const float* scores) const {
  if (parameters_.chosen_groups >= parameters_.groups) return ~uint64_t{0};
  uint64_t chosen = 0;
  for (int64_t slot = 0; slot < parameters_.chosen_groups; ++slot) {
    int64_t best = -1;
    float best_score = 0;
    for (int64_t group = 0; group < parameters_.groups; ++group) {
      if ((chosen >> group & 1U) != 0) continue;
      const float own = group_score(scores, group);
      if (best >= 0 && own <= best_score) continue;
      best = group;
      best_score = own;
    }
    chosen |= uint64_t{1} << best;
  }
  return chosen;
}

}  // namespace vitrine::ops
