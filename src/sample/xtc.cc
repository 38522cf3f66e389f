// SPDX-License-Identifier: Apache-2.0
// XTC, "exclude top choices" (P. E. Weidmann 2024, text-generation-webui pull request 6335): with
// some probability, of the tokens that reach a threshold only the least probable one stays.
#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class XtcStage : public RoomStage {
 public:
  XtcStage(float probability, float threshold) : probability_(probability), threshold_(threshold) {}
  std::string_view name() const override { return "xtc"; }
  uint32_t stage_id() const override { return kXtcStageId; }
  std::string parameters() const override {
    return "probability = " + shortest(probability_) + ", threshold = " + shortest(threshold_);
  }
  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<XtcStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const float largest = largest_logit(candidates, *this, context);
    if (!is_at_work(context)) return;
    const double limit =
        static_cast<double>(threshold_) * softmax_weights(candidates, largest, weights_);
    uint64_t last_key = 0;
    size_t reach = 0;
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      if (weights_[index] == 0.0 || weights_[index] < limit) continue;
      ++reach;
      last_key = std::max(last_key,
                          candidate_key(candidates.logits[index], candidate_id(candidates, index)));
    }
    if (reach < 2) return;
    filter_candidates(candidates, [last_key](float logit, int32_t id) {
      return logit != kRuledOut && candidate_key(logit, id) >= last_key;
    });
  }
  void describe(const SampleContext& context, int64_t, DeviceSamplerSteps& steps) override {
    if (!is_at_work(context)) return;
    steps.add(DeviceSamplerStep::Kind::kXtc, threshold_);
  }

 private:
  bool is_at_work(const SampleContext& context) const {
    return philox_uniform(context, stage_id(), 0) < static_cast<double>(probability_);
  }

  float probability_, threshold_;
  std::vector<double> weights_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_xtc_stage(float probability, float threshold) {
  if (!(probability >= 0.0f && probability <= 1.0f)) {
    refuse_option("xtc_probability", shortest(probability), "from 0 to 1 (0 switches it off)");
  }
  if (!(threshold >= 0.0f && threshold <= 1.0f)) {
    refuse_option("xtc_threshold", shortest(threshold),
                  "from 0 to 1 (above 0.5 it takes nothing out)");
  }
  return std::make_unique<XtcStage>(probability, threshold);
}

const StageKind& xtc_kind() {
  static const StageKind kKind{
      "xtc",
      StageRole::kFilter,
      {{"xtc_probability", &SamplerOptions::xtc_probability,
        "XTC: how often it takes the top choices out; 0: off"},
       {"xtc_threshold", &SamplerOptions::xtc_threshold,
        "XTC: of the tokens at least so probable only the last one stays"}},
      [](const SamplerOptions& options) {
        auto stage = make_xtc_stage(options.xtc_probability, options.xtc_threshold);
        return options.xtc_probability == 0.0f ? nullptr : std::move(stage);
      }};
  return kKind;
}

}  // namespace vitrine
