// SPDX-License-Identifier: Apache-2.0
#include "serve/running_answer.h"

#include <algorithm>
#include <utility>

namespace vitrine::serve {

RunningAnswer::RunningAnswer(Stepper& stepper, SequenceSinks& sinks, std::unique_ptr<Job> job,
                             const PrefixTree::Match& match)
    : stepper_(stepper), sinks_(sinks), job_(std::move(job)) {
  sequence_ = match.length > 0 ? stepper.attach(match.prefix, match.length)
                               : stepper.create_sequence(job_->adapter);
  job_->cached_tokens = match.length;
  try {
    if (job_->audit != nullptr) sinks_.add(sequence_, *job_->audit);
  } catch (...) {
    stepper_.release(sequence_);
    throw;
  }
}

RunningAnswer::~RunningAnswer() {
  generation_.reset();
  release_kept();
  stepper_.release(sequence_);
  sinks_.remove(sequence_);
  PrefixTree::drop(node_);
}

void RunningAnswer::begin() {
  GenerateOptions options = job_->options;
  options.sequence = sequence_;
  options.constraint = job_->constraint.get();
  options.speculation.drafter = job_->drafter.get();
  const auto rest = std::span(job_->prompt).subspan(static_cast<size_t>(job_->cached_tokens));
  generation_.emplace(stepper_, rest, options, job_->on_token);
}

void RunningAnswer::preempt() {
  if (runs()) {
    generation_->preempt();
    state_ = is_paused() ? State::kGavePlace : State::kWaitsForRoom;
  }
  release_kept();
  hold(nullptr);
  ++job_->preemptions;
}

void RunningAnswer::give_place() {
  release_kept();
  kept_ = stepper_.retain(sequence_, length());
  generation_->preempt();
  state_ = State::kGavePlace;
}

// States and windows of what it kept may have gone to others: it is all or nothing then.
int64_t RunningAnswer::kept_length() const {
  if (kept_ == 0) return 0;
  return stepper_.resumed_length(kept_, length()) == length() ? length() : 0;
}

void RunningAnswer::release_kept() {
  if (kept_ != 0) stepper_.release_prefix(std::exchange(kept_, 0));
}

void RunningAnswer::ask_again(double now) {
  if (state_ != State::kGavePlace || is_paused()) return;
  state_ = State::kAsksAgain;
  job_->ready = now;
}

void RunningAnswer::add_cut(int64_t position) {
  const auto place = std::ranges::lower_bound(cuts_, position);
  if (place == cuts_.end() || *place != position) cuts_.insert(place, position);
}

int64_t RunningAnswer::tokens_to_cut() const {
  const int64_t length = this->length();
  const auto next = std::ranges::upper_bound(cuts_, length);
  return next == cuts_.end() ? INT64_MAX : *next - length;
}

bool RunningAnswer::take_cut() {
  const auto place = std::ranges::lower_bound(cuts_, length());
  const bool is_there = place != cuts_.end() && *place == length();
  cuts_.erase(cuts_.begin(), is_there ? place + 1 : place);
  return is_there;
}

void RunningAnswer::hold(PrefixTree::Node* node) {
  PrefixTree::drop(node_);
  node_ = node;
}

}  // namespace vitrine::serve
