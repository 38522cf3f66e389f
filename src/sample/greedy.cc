// SPDX-License-Identifier: Apache-2.0
// Takes the most probable token.
#include <algorithm>
#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class GreedyStage : public RoomStage {
 public:
  std::string_view name() const override { return "greedy"; }
  uint32_t stage_id() const override { return kGreedyStageId; }
  bool is_device_greedy() const override { return true; }

  size_t keeps_best() const override { return 1; }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<GreedyStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    largest_logit(candidates, *this, context);
    uint64_t best = std::numeric_limits<uint64_t>::max();
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      best =
          std::min(best, candidate_key(candidates.logits[index], candidate_id(candidates, index)));
    }
    candidates.selected = static_cast<int32_t>(static_cast<uint32_t>(best));
    candidates.selected_probability = 1.0f;
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kGreedy);
  }
};

}  // namespace

std::unique_ptr<SamplerStage> make_greedy_stage() { return std::make_unique<GreedyStage>(); }

}  // namespace vitrine
