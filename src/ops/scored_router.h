// SPDX-License-Identifier: Apache-2.0
// Routers that choose by another number than the weights are made of (DeepSeek-V3, 2024): a score
// of each expert, a correction that counts for the choice alone, groups of experts.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/cpu_kernels.h"
#include "ops/decoder_ops.h"

namespace vitrine::ops {

class ScoredRouter {
 public:
  /// `parameters` outlive it. `correction`, `expert_scale`: [experts], or null.
  ScoredRouter(const RouterParameters& parameters, const float* correction,
               const float* expert_scale)
      : parameters_(parameters), correction_(correction), expert_scale_(expert_scale) {}

  /// Turns logits [experts] into scores and chooses top_k experts in descending order of score plus
  /// correction, ties by lower id, among those of the best groups. With a logit that is no number
  /// or infinite all scores are NaN and the ids 0 … top_k - 1.
  void choose(const kernels::CpuKernels& kernel, const float* logits, float* scores, int32_t* ids,
              float* weights) const;
  /// The weights of these experts [top_k], in slot order.
  void weigh(const float* scores, const int32_t* ids, float* weights) const;
  /// What these experts [top_k] were chosen by: their scores, then their keys, [2, top_k].
  void record(const float* scores, const int32_t* ids, float* to) const;

 private:
  float key(const float* scores, int64_t expert) const {
    return correction_ == nullptr ? scores[expert] : scores[expert] + correction_[expert];
  }
  float group_score(const float* scores, int64_t group) const;
  uint64_t best_groups(const float* scores) const;

  const RouterParameters& parameters_;
  const float* correction_;
  const float* expert_scale_;
};

}  // namespace vitrine::ops
