// SPDX-License-Identifier: Apache-2.0
// Draws one of the tokens that are left, each with its probability.

#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class DrawStage : public RoomStage {
 public:
  std::string_view name() const override { return "draw"; }
  uint32_t stage_id() const override { return kDrawStageId; }

  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<DrawStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const float largest = largest_logit(candidates, *this, context);
    softmax_weights(candidates, largest, weights_);
    draw_from_weights(candidates, weights_, philox_uniform(context, stage_id(), 0));
  }
  void describe(const SampleContext& context, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kDraw, philox_uniform(context, stage_id(), 0));
  }

 private:
  std::vector<double> weights_;
};

}  // namespace

double draw_from_weights(Candidates& candidates, std::span<const double> weights, double uniform) {
  const size_t count = candidates.logits.size();
  double total = 0;
  for (size_t index = 0; index < count; ++index) total += weights[index];
  const double target = uniform * total;
  // The product may round up to the total: then the last candidate of nonzero probability.
  double sum = 0;
  size_t chosen = 0;
  for (size_t index = 0; index < count; ++index) {
    if (weights[index] == 0.0) continue;
    chosen = index;
    sum += weights[index];
    if (sum > target) break;
  }
  const double probability = weights[chosen] / total;
  candidates.selected = candidate_id(candidates, chosen);
  candidates.selected_probability = static_cast<float>(probability);
  return probability;
}

std::unique_ptr<SamplerStage> make_draw_stage() { return std::make_unique<DrawStage>(); }

}  // namespace vitrine
