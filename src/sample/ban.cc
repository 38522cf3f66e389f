// SPDX-License-Identifier: Apache-2.0
// Rules out tokens, and the last token of sequences that must not appear (transformers'
// NoBadWordsLogitsProcessor).
#include <algorithm>

#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class BanStage : public RoomStage {
 public:
  explicit BanStage(std::vector<std::vector<int32_t>> banned) : banned_(std::move(banned)) {
    for (const auto& sequence : banned_) largest_id_ = std::max(largest_id_, sequence.back());
  }
  std::string_view name() const override { return "ban"; }
  uint32_t stage_id() const override { return kBanStageId; }
  std::string parameters() const override {
    return std::to_string(banned_.size()) + (banned_.size() == 1 ? " sequence" : " sequences");
  }
  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<BanStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    check_ids(buffer_size(candidates));
    for (const std::vector<int32_t>& sequence : banned_) {
      if (follows(sequence, context)) rule_out(candidates, sequence.back());
    }
  }
  bool looks_back() const override {
    return std::ranges::any_of(banned_, [](const auto& sequence) { return sequence.size() > 1; });
  }
  void describe(const SampleContext& context, int64_t vocab_size,
                DeviceSamplerSteps& steps) override {
    check_ids(static_cast<size_t>(vocab_size));
    DeviceSamplerStep& step = steps.add(DeviceSamplerStep::Kind::kAdd);
    for (const std::vector<int32_t>& sequence : banned_) {
      if (!follows(sequence, context)) continue;
      if (std::ranges::find(step.ids, sequence.back()) != step.ids.end()) continue;
      step.ids.push_back(sequence.back());
      step.values.push_back(kRuledOut);
    }
  }

 private:
  void check_ids(size_t vocabulary) const {
    if (static_cast<size_t>(largest_id_) < vocabulary) return;
    refuse_option("ban", "for id " + std::to_string(largest_id_),
                  "ids below " + std::to_string(vocabulary) + ", the model's vocabulary");
  }
  /// Whether the history ends with all of a sequence but its last id.
  static bool follows(const std::vector<int32_t>& sequence, const SampleContext& context) {
    const size_t before = sequence.size() - 1;
    return context.history.size() >= before &&
           std::ranges::equal(context.history.last(before), std::span(sequence).first(before));
  }
  static void rule_out(Candidates& candidates, int32_t id) {
    if (candidates.ids.empty()) {
      candidates.logits[static_cast<size_t>(id)] = kRuledOut;
      return;
    }
    const auto found = std::ranges::find(candidates.ids, id);
    if (found == candidates.ids.end()) return;
    candidates.logits[static_cast<size_t>(found - candidates.ids.begin())] = kRuledOut;
  }

  std::vector<std::vector<int32_t>> banned_;
  int32_t largest_id_ = 0;
};

}  // namespace

std::unique_ptr<SamplerStage> make_ban_stage(std::vector<std::vector<int32_t>> banned) {
  if (banned.empty()) refuse_option("ban", "empty", "at least one id or sequence of ids");
  for (const auto& sequence : banned) {
    if (sequence.empty()) refuse_option("ban", "a sequence of no id", "one id or more");
    check_ids("ban", sequence);
  }
  return std::make_unique<BanStage>(std::move(banned));
}

const StageKind& ban_kind() {
  static const StageKind kKind{
      "ban",
      StageRole::kEdit,
      {{"ban", &SamplerOptions::ban,
        "ID[,ID...]: a token, or a sequence of them, that never comes; repeatable"}},
      [](const SamplerOptions& options) {
        return options.ban.empty() ? nullptr : make_ban_stage(options.ban);
      }};
  return kKind;
}

}  // namespace vitrine
