// SPDX-License-Identifier: Apache-2.0
// Temperature (Ackley, Hinton, Sejnowski 1985), and the dynamic temperature of llama.cpp's
// temp-ext sampler (kalomaze 2023): from T - range to T + range as the entropy, over the highest
// that so many tokens can have, goes from 0 to 1, raised to an exponent.
#include <algorithm>
#include <cmath>

#include "candidates.h"
#include "numerics.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

void divide(Candidates& candidates, float largest, float temperature) {
  // Shifting changes no probability; it is needed only where the quotient leaves float's range.
  const float shift = std::isfinite(largest / temperature) ? 0.0f : largest;
  for (float& logit : candidates.logits) logit = (logit - shift) / temperature;
}

class TemperatureStage : public RoomStage {
 public:
  explicit TemperatureStage(float temperature) : temperature_(temperature) {}
  std::string_view name() const override { return "temperature"; }
  uint32_t stage_id() const override { return kTemperatureStageId; }
  std::string parameters() const override { return shortest(temperature_); }
  bool is_idle(const SampleContext&) const override { return temperature_ == 1.0f; }
  float divisor() const override { return temperature_; }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<TemperatureStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    divide(candidates, largest_logit(candidates, *this, context), temperature_);
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kDivide, temperature_);
  }

 private:
  float temperature_;
};

class DynamicTemperatureStage : public RoomStage {
 public:
  DynamicTemperatureStage(float temperature, float range, float exponent)
      : temperature_(temperature), range_(range), exponent_(exponent) {}
  std::string_view name() const override { return "dynamic_temperature"; }
  uint32_t stage_id() const override { return kDynamicTemperatureStageId; }
  std::string parameters() const override {
    return shortest(std::max(0.0f, temperature_ - range_)) + " to " +
           shortest(temperature_ + range_) + " by entropy, exponent " + shortest(exponent_);
  }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<DynamicTemperatureStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const float largest = largest_logit(candidates, *this, context);
    const double total = softmax_weights(candidates, largest, weights_);
    double mean = 0;  // of logit - largest
    size_t count = 0;
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      if (candidates.logits[index] == kRuledOut) continue;
      ++count;
      mean += weights_[index] / total * (static_cast<double>(candidates.logits[index]) - largest);
    }
    if (count < 2) return;
    const double entropy = log_positive(total) - mean;
    const double share = std::clamp(entropy / log_positive(static_cast<double>(count)), 0.0, 1.0);
    const double raised =
        share == 0.0 ? 0.0 : exp_nonpositive(static_cast<double>(exponent_) * log_positive(share));
    const float low = std::max(0.0f, temperature_ - range_), high = temperature_ + range_;
    const auto temperature =
        static_cast<float>(static_cast<double>(low) + static_cast<double>(high - low) * raised);
    if (temperature > 0.0f) return divide(candidates, largest, temperature);
    // At 0 only the best are left.
    for (float& logit : candidates.logits) logit = logit == largest ? logit : kRuledOut;
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kDynamicTemperature, std::max(0.0f, temperature_ - range_),
              temperature_ + range_, exponent_);
  }

 private:
  float temperature_, range_, exponent_;
  std::vector<double> weights_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_temperature_stage(float temperature) {
  if (!(temperature > 0.0f) || !std::isfinite(temperature)) {
    refuse_option("temperature", shortest(temperature), "a finite number above 0 (0 means greedy)");
  }
  return std::make_unique<TemperatureStage>(temperature);
}

std::unique_ptr<SamplerStage> make_dynamic_temperature_stage(float temperature, float range,
                                                             float exponent) {
  make_temperature_stage(temperature);
  if (!(range >= 0.0f) || !std::isfinite(temperature + range)) {
    refuse_option("dynamic_temperature", shortest(range),
                  "a finite number, 0 or more (0 switches it off)");
  }
  if (!(exponent > 0.0f) || !std::isfinite(exponent)) {
    refuse_option("dynamic_temperature_exponent", shortest(exponent), "a finite number above 0");
  }
  return std::make_unique<DynamicTemperatureStage>(temperature, range, exponent);
}

const StageKind& temperature_kind() {
  static const StageKind kKind{
      "temperature",
      StageRole::kEdit,
      {{"temperature", &SamplerOptions::temperature, "0: greedy"},
       {"dynamic_temperature", &SamplerOptions::dynamic_temperature,
        "RANGE: the temperature moves this far to both sides with the entropy; 0: off"},
       {"dynamic_temperature_exponent", &SamplerOptions::dynamic_temperature_exponent,
        "bends how the dynamic temperature follows the entropy"}},
      [](const SamplerOptions& options) -> std::unique_ptr<SamplerStage> {
        // 0 selects the greedy stage; what stands beside it is checked all the same.
        const bool is_greedy = options.temperature == 0.0f;
        auto dynamic = make_dynamic_temperature_stage(is_greedy ? 1.0f : options.temperature,
                                                      options.dynamic_temperature,
                                                      options.dynamic_temperature_exponent);
        if (is_greedy) return nullptr;
        if (options.dynamic_temperature != 0.0f) return dynamic;
        return make_temperature_stage(options.temperature);
      }};
  return kKind;
}

}  // namespace vitrine
