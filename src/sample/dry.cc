// SPDX-License-Identifier: Apache-2.0
// DRY, "don't repeat yourself" (P. E. Weidmann 2024, text-generation-webui pull request 5677): a
// token that would prolong a repetition of n >= allowed_length tokens loses multiplier * base^(n -
// allowed_length). Sequence breakers as in llama.cpp: no repetition runs across one.
#include <cmath>
#include <map>

#include "candidates.h"
#include "history.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

constexpr double kMaxPenalty = 1e30;

/// base^exponent for a base of at least 1, cut off where the penalty could not grow any more.
double bounded_power(double base, int32_t exponent) {
  double power = 1;
  for (int32_t i = 0; i < exponent && power < kMaxPenalty && base > 1; ++i) power *= base;
  return power;
}

class DryStage : public RoomStage {
 public:
  explicit DryStage(const DryOptions& options) : options_(options) {
    std::ranges::sort(options_.exempt);
    // By last token, which is the one that a walk back from the end meets.
    for (const auto& breaker : options_.sequence_breakers) {
      breakers_[breaker.back()].push_back(breaker);
    }
  }
  std::string_view name() const override { return "dry"; }
  uint32_t stage_id() const override { return kDryStageId; }
  std::string parameters() const override {
    return "multiplier = " + shortest(options_.multiplier) + ", base = " + shortest(options_.base) +
           ", allowed length = " + std::to_string(options_.allowed_length) + ", last n = " +
           (options_.penalty_last_n < 0 ? "all" : std::to_string(options_.penalty_last_n)) +
           ", breakers = " + std::to_string(options_.sequence_breakers.size());
  }
  bool is_idle(const SampleContext& context) const override {
    return context.is_forced || context.history.empty();
  }
  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<DryStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    if (is_idle(context)) return;
    find_repetitions(context, buffer_size(candidates));
    if (candidates.ids.empty()) {
      for (const int32_t id : longest_.touched()) {
        candidates.logits[static_cast<size_t>(id)] -= penalty(longest_.get(id));
      }
    } else {
      for (size_t index = 0; index < candidates.logits.size(); ++index) {
        const int32_t length = longest_.get(candidates.ids[index]);
        if (length > 0) candidates.logits[index] -= penalty(length);
      }
    }
    longest_.clear();
  }
  bool looks_back() const override { return true; }
  void describe(const SampleContext& context, int64_t vocab_size,
                DeviceSamplerSteps& steps) override {
    find_repetitions(context, static_cast<size_t>(vocab_size));
    DeviceSamplerStep& step = steps.add(DeviceSamplerStep::Kind::kAdd);
    for (const int32_t id : longest_.touched()) {
      step.ids.push_back(id);
      step.values.push_back(-penalty(longest_.get(id)));
    }
    longest_.clear();
  }

 private:
  /// How many tokens follow the last breaker or forced token; all of them where there is none.
  size_t length_since_break(std::span<const int32_t> window, const SampleContext& context,
                            size_t begin) const {
    for (size_t end = window.size(); end > 0; --end) {
      const size_t after = window.size() - end;
      if (is_forced_token(context, begin + end - 1)) return after;
      const auto found = breakers_.find(window[end - 1]);
      if (found == breakers_.end()) continue;
      for (const std::vector<int32_t>& breaker : found->second) {
        const bool fits = breaker.size() <= end;
        if (fits &&
            std::ranges::equal(window.subspan(end - breaker.size(), breaker.size()), breaker)) {
          return after;
        }
      }
    }
    return window.size();
  }

  float penalty(int32_t length) const {
    const double power =
        bounded_power(static_cast<double>(options_.base), length - options_.allowed_length);
    return static_cast<float>(
        std::min(static_cast<double>(options_.multiplier) * power, kMaxPenalty));
  }

  void find_repetitions(const SampleContext& context, size_t vocabulary) {
    const size_t begin = window_begin(context, options_.penalty_last_n);
    const std::span<const int32_t> window = context.history.subspan(begin);
    const size_t limit = length_since_break(window, context, begin);
    if (limit < static_cast<size_t>(options_.allowed_length)) return;
    longest_.reserve(vocabulary);
    find_repetitions(window, context, begin, limit);
  }

  /// longest_: for each token, how many of the last tokens stood before it earlier, where those are
  /// enough. The Z-algorithm (Gusfield 1997, 1.4) on the reversed window: linear in its length.
  void find_repetitions(std::span<const int32_t> window, const SampleContext& context, size_t begin,
                        size_t limit) {
    const size_t count = window.size();
    const auto reversed = [&window, count](size_t i) { return window[count - 1 - i]; };
    if (matches_.size() < count) matches_.resize(std::max(count, 2 * matches_.size()));
    size_t left = 0, right = 0;  // the match [left, right) that reaches furthest
    for (size_t i = 1; i < count; ++i) {
      size_t length = i < right ? std::min(right - i, matches_[i - left]) : 0;
      while (i + length < count && reversed(length) == reversed(i + length)) ++length;
      matches_[i] = length;
      if (i + length > right) {
        left = i;
        right = i + length;
      }
      const size_t repeated = std::min(length, limit);
      const int32_t id = reversed(i - 1);
      const bool counts = repeated >= static_cast<size_t>(options_.allowed_length) &&
                          longest_.holds(id) && !is_forced_token(context, begin + count - i) &&
                          !std::ranges::binary_search(options_.exempt, id);
      if (!counts) continue;
      int32_t& longest = longest_.at(id);
      longest = std::max(longest, static_cast<int32_t>(repeated));
    }
  }

  DryOptions options_;
  std::map<int32_t, std::vector<std::vector<int32_t>>> breakers_;
  TokenNumbers longest_;
  std::vector<size_t> matches_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_dry_stage(const DryOptions& options) {
  if (!(options.multiplier >= 0) || !std::isfinite(options.multiplier)) {
    refuse_option("dry_multiplier", shortest(options.multiplier),
                  "a finite number, 0 or more (0 switches it off)");
  }
  if (!(options.base >= 1) || !std::isfinite(options.base)) {
    refuse_option("dry_base", shortest(options.base), "a finite number, 1 or more");
  }
  if (options.allowed_length < 1) {
    refuse_option("dry_allowed_length", std::to_string(options.allowed_length), "1 or more");
  }
  if (options.penalty_last_n < -1) {
    refuse_option("dry_penalty_last_n", std::to_string(options.penalty_last_n),
                  "a number of tokens, -1 for the whole sequence or 0 for none");
  }
  check_ids("penalty_exempt", options.exempt);
  for (const auto& breaker : options.sequence_breakers) {
    if (breaker.empty()) {
      refuse_option("dry_sequence_breakers", "a sequence of no id", "one id or more");
    }
    check_ids("dry_sequence_breakers", breaker);
  }
  return std::make_unique<DryStage>(options);
}

const StageKind& dry_kind() {
  static const StageKind kKind{
      "dry",
      StageRole::kEdit,
      {{"dry_multiplier", &SamplerOptions::dry_multiplier,
        "DRY: weight of the penalty on a token that prolongs a repetition; 0: off"},
       {"dry_base", &SamplerOptions::dry_base,
        "DRY: the penalty grows by this with each token repeated"},
       {"dry_allowed_length", &SamplerOptions::dry_allowed_length,
        "DRY: repetitions shorter than this are free"},
       {"dry_penalty_last_n", &SamplerOptions::dry_penalty_last_n,
        "DRY: looks at so many last tokens; -1: all, 0: off"},
       {"dry_sequence_breakers", &SamplerOptions::dry_sequence_breakers,
        "DRY: ids that no repetition runs across"}},
      [](const SamplerOptions& options) {
        auto stage = make_dry_stage({options.dry_multiplier, options.dry_base,
                                     options.dry_allowed_length, options.dry_penalty_last_n,
                                     options.dry_sequence_breakers, options.penalty_exempt});
        const bool is_off = options.dry_multiplier == 0.0f || options.dry_penalty_last_n == 0;
        return is_off ? nullptr : std::move(stage);
      }};
  return kKind;
}

}  // namespace vitrine
