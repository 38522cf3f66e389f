// SPDX-License-Identifier: Apache-2.0
// Adds a number to the logits of chosen tokens (the logit_bias of OpenAI's API; transformers'
// SequenceBiasLogitsProcessor for sequences of one token).
#include <algorithm>
#include <cmath>

#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

using Bias = std::pair<int32_t, float>;

class LogitBiasStage : public RoomStage {
 public:
  explicit LogitBiasStage(std::vector<Bias> biases) : biases_(std::move(biases)) {
    std::ranges::sort(biases_);
  }
  std::string_view name() const override { return "logit_bias"; }
  uint32_t stage_id() const override { return kLogitBiasStageId; }
  std::string parameters() const override {
    std::string text;
    for (const auto& [id, bias] : biases_) {
      text += (text.empty() ? "" : ", ") + std::to_string(id) + " " + (bias < 0 ? "" : "+") +
              shortest(bias);
    }
    return text;
  }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<LogitBiasStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext&) override {
    check_ids(buffer_size(candidates));
    if (candidates.ids.empty()) {
      for (const auto& [id, bias] : biases_) candidates.logits[static_cast<size_t>(id)] += bias;
      return;
    }
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      const auto found = std::ranges::lower_bound(biases_, candidates.ids[index], {}, &Bias::first);
      if (found != biases_.end() && found->first == candidates.ids[index]) {
        candidates.logits[index] += found->second;
      }
    }
  }

  void describe(const SampleContext&, int64_t vocab_size, DeviceSamplerSteps& steps) override {
    check_ids(static_cast<size_t>(vocab_size));
    DeviceSamplerStep& step = steps.add(DeviceSamplerStep::Kind::kAdd);
    for (const auto& [id, bias] : biases_) {
      step.ids.push_back(id);
      step.values.push_back(bias);
    }
  }

 private:
  void check_ids(size_t vocabulary) const {
    if (static_cast<size_t>(biases_.back().first) < vocabulary) return;
    refuse_option("logit_bias", "for id " + std::to_string(biases_.back().first),
                  "ids below " + std::to_string(vocabulary) + ", the model's vocabulary");
  }

  std::vector<Bias> biases_;  // by id
};

}  // namespace

std::unique_ptr<SamplerStage> make_logit_bias_stage(std::vector<std::pair<int32_t, float>> biases) {
  if (biases.empty()) refuse_option("logit_bias", "empty", "at least one id and its bias");
  std::vector<int32_t> ids;
  for (const auto& [id, bias] : biases) {
    ids.push_back(id);
    const std::string which = "for id " + std::to_string(id) + " ";
    if (bias != kRuledOut && !std::isfinite(bias)) {
      refuse_option("logit_bias", which + shortest(bias),
                    "a finite number, or -inf to rule it out");
    }
  }
  check_ids("logit_bias", ids);
  std::ranges::sort(ids);
  const auto twice = std::ranges::adjacent_find(ids);
  if (twice != ids.end()) {
    refuse_option("logit_bias", "given twice for id " + std::to_string(*twice), "one bias an id");
  }
  return std::make_unique<LogitBiasStage>(std::move(biases));
}

const StageKind& logit_bias_kind() {
  static const StageKind kKind{
      "logit_bias",
      StageRole::kEdit,
      {{"logit_bias", &SamplerOptions::logit_bias, "ID=V: add V to a token's logit; repeatable"}},
      [](const SamplerOptions& options) {
        return options.logit_bias.empty() ? nullptr : make_logit_bias_stage(options.logit_bias);
      }};
  return kKind;
}

}  // namespace vitrine
