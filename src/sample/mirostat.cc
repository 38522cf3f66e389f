// SPDX-License-Identifier: Apache-2.0
// Mirostat 2 (Basu et al. 2020, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls
// Perplexity", algorithm 2): tokens of more surprise than mu go, one of the rest is drawn, and mu
// moves against the difference of its surprise (in bits, among the rest) and tau.
#include <algorithm>
#include <cmath>

#include "drawing_stage.h"
#include "numerics.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;

class MirostatStage : public DrawingStage {
 public:
  MirostatStage(float tau, float eta) : tau_(tau), eta_(eta) {}
  std::string_view name() const override { return "mirostat"; }
  uint32_t stage_id() const override { return kMirostatStageId; }
  std::string parameters() const override {
    return "tau = " + shortest(tau_) + ", eta = " + shortest(eta_);
  }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<MirostatStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    // What was learnt at this position or later was taken back.
    const auto from = std::ranges::lower_bound(steps_, context.position, {}, &Step::position);
    steps_.erase(from, steps_.end());
    const double mu = steps_.empty() ? 2 * static_cast<double>(tau_) : steps_.back().mu;

    const float largest = largest_logit(candidates, *this, context);
    const double log_total = log_positive(softmax_weights(candidates, largest, weights_));
    filter_candidates(candidates, [&](float logit, int32_t) {
      // The best one always stays; ties with it too.
      return logit == largest ||
             (logit != kRuledOut &&
              (log_total - (static_cast<double>(logit) - largest)) / kLn2 <= mu);
    });
    softmax_weights(candidates, largest, weights_);
    const double probability = draw(candidates, weights_, context);
    const double surprise = -log_positive(probability) / kLn2;
    steps_.push_back({context.position,
                      mu - static_cast<double>(eta_) * (surprise - static_cast<double>(tau_))});
  }
  bool has_device_form() const override { return false; }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps&) override {}

 private:
  struct Step {
    int64_t position;
    double mu;  // behind the token at `position`
  };
  float tau_, eta_;
  std::vector<Step> steps_;  // by position
  std::vector<double> weights_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_mirostat_stage(float tau, float eta) {
  if (!(tau > 0.0f) || !std::isfinite(tau)) {
    refuse_option("mirostat_tau", shortest(tau), "a finite number of bits above 0");
  }
  if (!(eta >= 0.0f) || !std::isfinite(eta)) {
    refuse_option("mirostat_eta", shortest(eta), "a finite number, 0 or more");
  }
  return std::make_unique<MirostatStage>(tau, eta);
}

const StageKind& mirostat_kind() {
  static const StageKind kKind{
      "mirostat",
      StageRole::kSelection,
      {{"mirostat", &SamplerOptions::mirostat,
        "2: mirostat 2 chooses, in place of filters and the draw; 0: off"},
       {"mirostat_tau", &SamplerOptions::mirostat_tau, "mirostat: the surprise to hold, in bits"},
       {"mirostat_eta", &SamplerOptions::mirostat_eta, "mirostat: how fast it learns"}},
      [](const SamplerOptions& options) {
        if (options.mirostat != 0 && options.mirostat != 2) {
          refuse_option("mirostat", std::to_string(options.mirostat),
                        "2 (mirostat 2) or 0 (off); version 1 is not there");
        }
        auto stage = make_mirostat_stage(options.mirostat_tau, options.mirostat_eta);
        return options.mirostat == 0 ? nullptr : std::move(stage);
      }};
  return kKind;
}

}  // namespace vitrine
