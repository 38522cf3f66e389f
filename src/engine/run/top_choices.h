// SPDX-License-Identifier: Apache-2.0
// A model's best tokens with their log-probabilities, out of a step that chooses the first of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/cpu/cpu_kernels.h"
#include "vitrine/sample.h"

namespace vitrine::engine {

/// The last stage of a pipeline that has no other. Not thread-safe.
class TopChoices final : public SamplerStage {
 public:
  /// No id from `vocab_size` on is chosen.
  explicit TopChoices(int32_t vocab_size) : vocab_size_(vocab_size) {}
  std::string_view name() const override { return "top_choices"; }
  uint32_t stage_id() const override { return kFirstHostStageId; }

  void apply(Candidates& candidates, const SampleContext&) override {
    best_ = {};
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    float max = kNone;
    double sum = 0;
    for (size_t id = 0; id < candidates.logits.size(); ++id) {
      const float logit = candidates.logits[id];
      if (!(logit > kNone)) continue;
      if (logit > max) sum *= double{std::exp(max - logit)}, max = logit;
      sum += double{std::exp(logit - max)};
      if (static_cast<int64_t>(id) < vocab_size_) add(static_cast<int32_t>(id), logit);
    }
    best_.log_sum_exp = static_cast<float>(double{max} + std::log(sum));
    if (best_.count > 0) candidates.selected = best_.top_ids[0];
  }
  /// Returns what the row has that was sampled last: the best ids, lower ones first among equals,
  /// their logits, and the log of all exponentials' sum.
  const kernels::HeadStats& best() const { return best_; }

 private:
  void add(int32_t id, float logit) {
    int32_t at = best_.count;
    while (at > 0 && logit > best_.top_logits[at - 1]) --at;
    if (at == kernels::kTopTokens) return;
    best_.count = std::min(best_.count + 1, int32_t{kernels::kTopTokens});
    for (int32_t i = best_.count - 1; i > at; --i) {
      best_.top_logits[i] = best_.top_logits[i - 1];
      best_.top_ids[i] = best_.top_ids[i - 1];
    }
    best_.top_logits[at] = logit;
    best_.top_ids[at] = id;
  }

  int32_t vocab_size_;
  kernels::HeadStats best_;
};

}  // namespace vitrine::engine
