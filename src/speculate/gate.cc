// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "vitrine/speculate.h"

namespace vitrine {

namespace {

constexpr int32_t kTrialPasses = 2;   // that show whether a drafter is worth more
constexpr int32_t kSteadyPasses = 8;  // that show whether it still is
constexpr int64_t kFirstPause = 16, kLongestPause = 512;
constexpr int64_t kForGood = int64_t{1} << 60;
constexpr double kTrialShare = 0.02;  // of all passes, that trials may cost
constexpr int32_t kTimedCalls = 2;
constexpr double kNegligible = 0.01;  // of a pass: what a call costs that counts for nothing
constexpr double kFirstAcceptance = 0.7, kLearning = 0.125;

/// Tokens of a pass with `drafts` drafts, each of which is right with `acceptance` where those
/// before it were: (1 - a^(k + 1)) / (1 - a).
double expected_tokens(double acceptance, int32_t drafts) {
  double tokens = 0, reaches = 1;
  for (int32_t i = 0; i <= drafts; ++i, reaches *= acceptance) tokens += reaches;
  return tokens;
}

}  // namespace

DraftGate::DraftGate(const SpeculationOptions& options)
    : costs_(options.costs),
      threshold_(options.threshold),
      max_drafts_(options.max_drafts),
      next_pause_(kFirstPause),
      acceptance_(kFirstAcceptance) {
  if (costs_.empty()) return;
  if (options.draft_cost) {
    draft_cost_ = *options.draft_cost / costs_.of_one();
  } else {
    calls_to_time_ = kTimedCalls;
  }
}

int32_t DraftGate::limit() const {
  if (costs_.empty()) return max_drafts_;
  return pause_ > 0 ? 0 : length_;
}

void DraftGate::drafted(double seconds) {
  was_called_ = true;
  if (calls_to_time_ == 0) return;
  const double cost = seconds / costs_.of_one();
  draft_cost_ = calls_to_time_ == kTimedCalls ? cost : std::min(draft_cost_, cost);
  --calls_to_time_;
}

// If all of the longest draft is right.
bool DraftGate::can_pay() const {
  for (int32_t drafts = 1; drafts <= max_drafts_; ++drafts) {
    if ((drafts + 1) / cost_of(drafts) >= threshold_) return true;
  }
  return false;
}

void DraftGate::begin_pause() {
  const double trial = kTrialPasses * (cost_of(1) - 1);
  const auto worth = static_cast<int64_t>(std::min(trial / kTrialShare, 1e15));
  pause_ = can_pay() ? std::max(next_pause_, worth) : kForGood;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  length_ = 1;
  acceptance_ = kFirstAcceptance;
}

void DraftGate::pass(int32_t proposed, int32_t accepted) {
  if (costs_.empty()) return;
  if (pause_ > 0) {
    --pause_;
    return;
  }
  const bool was_called = std::exchange(was_called_, false);
  if (proposed <= 0 && (!was_called || draft_cost_ < kNegligible)) return;
  if (proposed > 0) {
    const bool is_right = accepted >= proposed;
    for (int32_t i = 0; i < std::min(proposed, accepted + 1); ++i) {
      acceptance_ += kLearning * ((i < accepted ? 1 : 0) - acceptance_);
    }
    int32_t best = 1;
    double best_utility = 0;
    for (int32_t drafts = 1; drafts <= max_drafts_; ++drafts) {
      const double utility = expected_tokens(acceptance_, drafts) / cost_of(drafts);
      if (utility > best_utility) best = drafts, best_utility = utility;
    }
    // Twice as long behind a pass that used all of its length; else no longer than what was right.
    const int32_t grown = is_right ? (proposed >= length_ ? 2 * length_ : length_) : accepted + 1;
    length_ = std::min({grown, best, max_drafts_});
  }
  tokens_ += accepted + 1;
  cost_ += costs_.of(proposed + 1);
  const bool is_trial = next_pause_ > kFirstPause || !has_paid_;
  if (++passes_ < (is_trial ? kTrialPasses : kSteadyPasses)) return;
  has_paid_ = tokens_ / (cost_ + passes_ * draft_cost_) >= threshold_;
  if (has_paid_) {
    next_pause_ = kFirstPause;
  } else {
    begin_pause();
  }
  passes_ = 0;
  tokens_ = cost_ = 0;
}

}  // namespace vitrine
