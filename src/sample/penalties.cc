// SPDX-License-Identifier: Apache-2.0
// Repetition penalty (Keskar et al. 2019, "CTRL", section 4.1; transformers'
// RepetitionPenaltyLogitsProcessor), then frequency and presence penalties (OpenAI's API: logit -
// count * frequency - (count > 0) * presence).
#include <cmath>

#include "candidates.h"
#include "history.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class PenaltiesStage : public RoomStage {
 public:
  explicit PenaltiesStage(const PenaltyOptions& options) : options_(options) {
    std::ranges::sort(options_.exempt);
  }
  std::string_view name() const override { return "penalties"; }
  uint32_t stage_id() const override { return kPenaltiesStageId; }
  std::string parameters() const override {
    std::string text = "repetition = " + shortest(options_.repetition) +
                       ", frequency = " + shortest(options_.frequency) +
                       ", presence = " + shortest(options_.presence) + ", window = " +
                       (options_.window == 0 ? "all" : std::to_string(options_.window));
    if (!options_.exempt.empty()) {
      text += ", exempt = " + std::to_string(options_.exempt.size()) + " ids";
    }
    return text;
  }
  bool is_idle(const SampleContext& context) const override {
    return context.is_forced || context.history.empty();
  }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<PenaltiesStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    if (is_idle(context)) return;
    count_history(context, buffer_size(candidates));
    if (candidates.ids.empty()) {
      for (const int32_t id : counts_.touched()) {
        penalise(candidates.logits[static_cast<size_t>(id)], counts_.get(id));
      }
    } else {
      for (size_t index = 0; index < candidates.logits.size(); ++index) {
        const int32_t count = counts_.get(candidates.ids[index]);
        if (count > 0) penalise(candidates.logits[index], count);
      }
    }
    counts_.clear();
  }
  bool looks_back() const override { return true; }
  void describe(const SampleContext& context, int64_t vocab_size,
                DeviceSamplerSteps& steps) override {
    count_history(context, static_cast<size_t>(vocab_size));
    DeviceSamplerStep& step =
        steps.add(DeviceSamplerStep::Kind::kPenalise, static_cast<double>(options_.repetition));
    for (const int32_t id : counts_.touched()) {
      step.ids.push_back(id);
      step.values.push_back(subtracted(counts_.get(id)));
    }
    counts_.clear();
  }

 private:
  void count_history(const SampleContext& context, size_t vocabulary) {
    counts_.reserve(vocabulary);
    const size_t first = window_begin(context, options_.window == 0 ? -1 : options_.window);
    for (size_t index = first; index < context.history.size(); ++index) {
      const int32_t id = context.history[index];
      const bool counts = counts_.holds(id) && !is_forced_token(context, index) &&
                          !std::ranges::binary_search(options_.exempt, id);
      if (counts) ++counts_.at(id);
    }
  }
  float subtracted(int32_t count) const {
    return static_cast<float>(count) * options_.frequency + options_.presence;
  }
  void penalise(float& logit, int32_t count) const {
    if (logit == kRuledOut) return;
    logit = logit < 0 ? logit * options_.repetition : logit / options_.repetition;
    logit -= subtracted(count);
  }

  PenaltyOptions options_;
  TokenNumbers counts_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_penalties_stage(const PenaltyOptions& options) {
  if (!(options.repetition > 0) || !std::isfinite(options.repetition)) {
    refuse_option("repetition_penalty", shortest(options.repetition),
                  "a finite number above 0 (1 switches it off)");
  }
  for (const auto& [name, value] : {std::pair("frequency_penalty", options.frequency),
                                    std::pair("presence_penalty", options.presence)}) {
    if (!std::isfinite(value)) {
      refuse_option(name, shortest(value), "a finite number (0 switches it off)");
    }
  }
  if (options.window < 0) {
    refuse_option("penalty_window", std::to_string(options.window),
                  "a number of tokens, or 0 for the whole sequence");
  }
  check_ids("penalty_exempt", options.exempt);
  return std::make_unique<PenaltiesStage>(options);
}

const StageKind& penalties_kind() {
  static const StageKind kKind{
      "penalties",
      StageRole::kEdit,
      {{"repetition_penalty", &SamplerOptions::repetition_penalty,
        "divides positive logits of tokens that are there already, multiplies negative ones; 1: "
        "off"},
       {"frequency_penalty", &SamplerOptions::frequency_penalty,
        "taken off a token's logit for each time that it is there already; 0: off"},
       {"presence_penalty", &SamplerOptions::presence_penalty,
        "taken off the logit of a token that is there already; 0: off"},
       {"penalty_window", &SamplerOptions::penalty_window,
        "penalties look at so many last tokens; 0: all, the prompt's too"},
       {"penalty_exempt", &SamplerOptions::penalty_exempt,
        "ID[,ID...]: tokens that no penalty (DRY neither) touches; repeatable"}},
      [](const SamplerOptions& options) {
        auto stage = make_penalties_stage({options.repetition_penalty, options.frequency_penalty,
                                           options.presence_penalty, options.penalty_window,
                                           options.penalty_exempt});
        const bool is_off = options.repetition_penalty == 1.0f &&
                            options.frequency_penalty == 0.0f && options.presence_penalty == 0.0f;
        return is_off ? nullptr : std::move(stage);
      }};
  return kKind;
}

}  // namespace vitrine
