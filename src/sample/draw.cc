// SPDX-License-Identifier: Apache-2.0
// Draws one of the tokens that are left, each with its probability.

#include "drawing_stage.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

// Which of a position's random numbers of the stage draws a token, and which keeps a guess.
constexpr uint32_t kTokenNumber = 0, kDraftNumber = 1;

class DrawStage : public DrawingStage {
 public:
  std::string_view name() const override { return "draw"; }
  uint32_t stage_id() const override { return kDrawStageId; }

  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<DrawStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const float largest = largest_logit(candidates, *this, context);
    softmax_weights(candidates, largest, weights_);
    draw(candidates, weights_, context);
  }
  void describe(const SampleContext& context, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kDraw, philox_uniform(context, stage_id(), kTokenNumber));
  }

 private:
  std::vector<double> weights_;
};

double sum_of(std::span<const double> weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  return sum;
}

// The index at which the cumulative sum passes `uniform` of the total.
size_t index_at(std::span<const double> weights, double total, double uniform) {
  const double target = uniform * total;
  // The product may round up to the total: then the last candidate of nonzero probability.
  double sum = 0;
  size_t chosen = 0;
  for (size_t index = 0; index < weights.size(); ++index) {
    if (weights[index] == 0.0) continue;
    chosen = index;
    sum += weights[index];
    if (sum > target) break;
  }
  return chosen;
}

}  // namespace

double DrawingStage::draw(Candidates& candidates, std::span<double> weights,
                          const SampleContext& context) const {
  const size_t count = candidates.logits.size();
  weights = weights.first(count);
  const double total = sum_of(weights);
  const auto select = [&](size_t index) {
    const double probability = weights[index] / total;
    candidates.selected = candidate_id(candidates, index);
    candidates.selected_probability = static_cast<float>(probability);
    return probability;
  };
  double left = total;
  if (const size_t draft = find_draft(candidates, context.position); draft < count) {
    // Where the guess is all that is left it stays: the product is below the total.
    if (philox_uniform(context, stage_id(), kDraftNumber) * total < weights[draft]) {
      return select(draft);
    }
    weights[draft] = 0;
    left = sum_of(weights);
  }
  return select(index_at(weights, left, philox_uniform(context, stage_id(), kTokenNumber)));
}

size_t DrawingStage::find_draft(const Candidates& candidates, int64_t position) const {
  const size_t count = candidates.logits.size();
  const int64_t place = position - first_;
  if (place < 0 || place >= std::ssize(drafts_)) return count;
  const int32_t draft = drafts_[static_cast<size_t>(place)];
  if (candidates.ids.empty()) return std::min(static_cast<size_t>(draft), count);
  return static_cast<size_t>(std::ranges::find(candidates.ids, draft) - candidates.ids.begin());
}

DrawingStage* find_drawing_stage(const SamplerPipeline& pipeline) {
  const auto& stages = pipeline.stages();
  return stages.empty() ? nullptr : dynamic_cast<DrawingStage*>(stages.back().get());
}

std::unique_ptr<SamplerStage> make_draw_stage() { return std::make_unique<DrawStage>(); }

}  // namespace vitrine
