// SPDX-License-Identifier: Apache-2.0
// Keeps tokens whose logit is at most n standard deviations below the best (Tang et al. 2024,
// "Top-n-sigma: Not All Logits Are You Need"). The deviation is the population's, over the tokens
// that are not ruled out.
#include <cmath>

#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class TopNSigmaStage : public RoomStage {
 public:
  explicit TopNSigmaStage(float n) : n_(n) {}
  std::string_view name() const override { return "top_n_sigma"; }
  uint32_t stage_id() const override { return kTopNSigmaStageId; }
  std::string parameters() const override { return "n = " + shortest(n_); }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<TopNSigmaStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    // From the largest down, so that a common offset costs no precision.
    const double largest = largest_logit(candidates, *this, context);
    double sum = 0, squares = 0;
    size_t count = 0;
    for (const float logit : candidates.logits) {
      if (logit == kRuledOut) continue;
      sum += logit - largest;
      ++count;
    }
    const double mean = sum / static_cast<double>(count);
    for (const float logit : candidates.logits) {
      if (logit == kRuledOut) continue;
      const double distance = logit - largest - mean;
      squares += distance * distance;
    }
    const double deviation = std::sqrt(squares / static_cast<double>(count));
    const double lowest = -static_cast<double>(n_) * deviation;
    filter_candidates(candidates, [largest, lowest](float logit, int32_t) {
      return logit != kRuledOut && logit - largest >= lowest;
    });
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kTopNSigma, n_);
  }

 private:
  float n_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_top_n_sigma_stage(float n) {
  if (!(n > 0.0f) || !std::isfinite(n)) {
    refuse_option("top_n_sigma", shortest(n), "a finite number above 0 (0 switches it off)");
  }
  return std::make_unique<TopNSigmaStage>(n);
}

const StageKind& top_n_sigma_kind() {
  static const StageKind kKind{
      "top_n_sigma",
      StageRole::kFilter,
      {{"top_n_sigma", &SamplerOptions::top_n_sigma,
        "tokens within so many standard deviations of the best logit stay; 0: off"}},
      [](const SamplerOptions& options) {
        return options.top_n_sigma == 0.0f ? nullptr : make_top_n_sigma_stage(options.top_n_sigma);
      }};
  return kKind;
}

}  // namespace vitrine
