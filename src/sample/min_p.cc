// SPDX-License-Identifier: Apache-2.0
// Keeps tokens at least p times as probable as the best (Nguyen et al. 2024, min-p sampling).
#include "candidates.h"
#include "numerics.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class MinPStage : public RoomStage {
 public:
  explicit MinPStage(float p)
      : p_(p), log_p_(p > 0 ? log_positive(static_cast<double>(p)) : kRuledOut) {}
  std::string_view name() const override { return "min_p"; }
  uint32_t stage_id() const override { return kMinPStageId; }

  double keeps_within() const override { return p_ > 0 ? -log_p_ : -1; }
  std::string parameters() const override { return "p = " + shortest(p_); }
  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<MinPStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    // probability / best probability = exp(logit - largest)
    const double largest = largest_logit(candidates, *this, context);
    filter_candidates(candidates, [largest, this](float logit, int32_t) {
      return logit != kRuledOut && logit - largest >= log_p_;
    });
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kMinP, log_p_);
  }

 private:
  float p_;
  double log_p_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_min_p_stage(float p) {
  if (!(p >= 0.0f && p <= 1.0f)) {
    refuse_option("min_p", shortest(p), "from 0 to 1 (0 switches it off)");
  }
  return std::make_unique<MinPStage>(p);
}

const StageKind& min_p_kind() {
  static const StageKind kKind{"min_p",
                               StageRole::kFilter,
                               {{"min_p", &SamplerOptions::min_p,
                                 "tokens at least p times as probable as the best stay; 0: off"}},
                               [](const SamplerOptions& options) {
                                 auto stage = make_min_p_stage(options.min_p);
                                 return options.min_p == 0.0f ? nullptr : std::move(stage);
                               }};
  return kKind;
}

}  // namespace vitrine
