// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "vitrine/speculate.h"

namespace vitrine {

namespace {

constexpr int32_t kTrialPasses = 2;  // that a drafter has at least before it rests
// Passes of one token that a drafter may lose before it rests, beside what it won: at most so many.
constexpr double kMostLoss = 0.5, kMostCredit = 1.5;
constexpr int64_t kFirstPause = 16, kLongestPause = 512;
constexpr int64_t kForGood = int64_t{1} << 60;
constexpr double kTrialShare = 0.02;  // of all passes, that trials may cost
constexpr int32_t kTimedCalls = 3;    // for each number of drafts
constexpr double kNegligible = 0.01;  // of a pass: what a call costs that counts for nothing
constexpr double kFirstAcceptance = 0.5, kLearning = 0.125;

/// Tokens of a pass with `drafts` drafts, each of which is right with `acceptance` where those
/// before it were: (1 - a^(k + 1)) / (1 - a).
double expected_tokens(double acceptance, int32_t drafts) {
  double tokens = 0, reaches = 1;
  for (int32_t i = 0; i <= drafts; ++i, reaches *= acceptance) tokens += reaches;
  return tokens;
}

}  // namespace

void DraftCallCosts::add(int32_t drafts, double cost) {
  ++num_calls_;
  if (num_calls_ == 2) drop_first(drafts, cost);
  const auto found = std::ranges::lower_bound(calls_, drafts, {}, &Call::drafts);
  if (found == calls_.end() || found->drafts != drafts) {
    calls_.insert(found, {drafts, 1, cost});
  } else if (found->times < kTimedCalls) {
    ++found->times;
    found->cost = std::min(found->cost, cost);
  }
}

// It computes what the drafter was shown before, as a whole prompt.
void DraftCallCosts::drop_first(int32_t drafts, double cost) {
  const Call first = calls_.front();
  const bool is_other = first.drafts != drafts;
  if (is_other && first.cost * drafts > cost * first.drafts) calls_.clear();
}

double DraftCallCosts::of(int32_t drafts) const {
  if (num_calls_ < 2) return 0;
  if (calls_.size() == 1) return calls_.front().cost * drafts / calls_.front().drafts;
  const auto found = std::ranges::lower_bound(calls_, drafts, {}, &Call::drafts);
  const auto upper = std::clamp(found, calls_.begin() + 1, calls_.end() - 1);
  const Call &low = *(upper - 1), &high = *upper;
  const double slope = std::max(0.0, (high.cost - low.cost) / (high.drafts - low.drafts));
  return std::max(0.0, low.cost + slope * (drafts - low.drafts));
}

DraftGate::DraftGate(const SpeculationOptions& options)
    : costs_(options.costs),
      threshold_(options.threshold),
      max_drafts_(options.max_drafts),
      next_pause_(kFirstPause),
      acceptance_(kFirstAcceptance) {
  if (costs_.empty()) return;
  if (options.draft_cost) given_cost_ = *options.draft_cost / costs_.of_one();
  length_ = best_length();
}

int32_t DraftGate::limit() const {
  if (costs_.empty()) return max_drafts_;
  return pause_ > 0 ? 0 : length_;
}

void DraftGate::drafted(double seconds, int32_t asked) {
  was_called_ = true;
  asked_ = asked > 0 ? asked : length_;
  if (!given_cost_ && !costs_.empty()) calls_.add(asked_, seconds / costs_.of_one());
}

// The number of drafts of most utility at the acceptance of late.
int32_t DraftGate::best_length() const {
  int32_t best = 1;
  double best_utility = 0;
  for (int32_t drafts = 1; drafts <= max_drafts_; ++drafts) {
    const double utility = expected_tokens(acceptance_, drafts) / cost_of(drafts);
    if (utility > best_utility) best = drafts, best_utility = utility;
  }
  return best;
}

// If all of the longest draft is right.
bool DraftGate::can_pay() const {
  for (int32_t drafts = 1; drafts <= max_drafts_; ++drafts) {
    if ((drafts + 1) / cost_of(drafts) >= threshold_) return true;
  }
  return false;
}

void DraftGate::begin_pause() {
  const auto worth = static_cast<int64_t>(std::clamp(loss_ / kTrialShare, 0.0, 1e15));
  pause_ = can_pay() ? std::max(next_pause_, worth) : kForGood;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  acceptance_ = kFirstAcceptance;
  length_ = best_length();
  passes_ = 0;
  credit_ = loss_ = 0;
}

void DraftGate::learn(int32_t proposed, int32_t accepted) {
  for (int32_t i = 0; i < std::min(proposed, accepted + 1); ++i) {
    acceptance_ += kLearning * ((i < accepted ? 1 : 0) - acceptance_);
  }
  // Twice as long behind a pass that used all of its length; else no longer than what was right.
  const bool is_right = accepted >= proposed;
  const int32_t grown = is_right ? (proposed >= length_ ? 2 * length_ : length_) : accepted + 1;
  length_ = std::min({grown, best_length(), max_drafts_});
}

void DraftGate::pass(int32_t proposed, int32_t accepted) {
  if (costs_.empty()) return;
  if (pause_ > 0) {
    --pause_;
    return;
  }
  const bool was_called = std::exchange(was_called_, false);
  const double call = was_called ? call_cost(asked_) : 0;
  if (proposed <= 0 && call < kNegligible) return;
  if (proposed > 0) learn(proposed, accepted);
  const double cost = costs_.of(proposed + 1) + call;
  const double tokens = accepted + 1;
  loss_ += cost - tokens;
  if (was_called && calls_.num_calls() == 2) loss_ += call;  // the first one's, which was unknown
  credit_ = std::min(credit_ + tokens - threshold_ * cost, kMostCredit);
  if (credit_ >= kMostCredit) next_pause_ = kFirstPause;
  if (++passes_ >= kTrialPasses && credit_ < -kMostLoss) begin_pause();
}

}  // namespace vitrine
