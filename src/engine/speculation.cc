// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace vitrine::engine {

namespace {

constexpr const char* kUnknownProblem = "it threw what is no std::exception";

using SpeculationClock = std::chrono::steady_clock;

void check_speculation(const SpeculationOptions& options) {
  if (options.max_drafts < 1 || options.max_drafts > kMaxDrafts) {
    throw Error(ErrorKind::kInvalidArgument, "max_drafts is " + std::to_string(options.max_drafts) +
                                                 "; expected 1 to " + std::to_string(kMaxDrafts) +
                                                 " guesses a pass");
  }
  if (!std::isfinite(options.threshold) || options.threshold < 0) {
    throw Error(ErrorKind::kInvalidArgument, "the threshold of speculation is " +
                                                 std::to_string(options.threshold) +
                                                 "; expected a finite number, 0 or more");
  }
}

std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

}  // namespace

Speculation::Speculation(const SpeculationOptions& options, const SpeculatedAnswer& answer)
    : options_(options),
      gate_(options),
      end_ids_(answer.end_ids.begin(), answer.end_ids.end()),
      vocab_size_(answer.vocab_size),
      before_(std::ssize(answer.past) + std::ssize(answer.prompt)) {
  check_speculation(options);
  const auto most = static_cast<size_t>(options.max_drafts);
  drafts_.resize(most);
  step_tokens_.reserve(most + 1);
  counts_.acceptance_histogram.resize(most + 1);
  guarded([&] {
    counts_.drafter = options_.drafter->name();
    text_ = options_.drafter->start({options_.scope, before_, before_ + answer.room});
    if (text_ == 0) throw Error(ErrorKind::kInvalidArgument, "it named a text 0");
  });
  if (is_on() && !answer.past.empty()) show(answer.past);
  if (is_on()) show(answer.prompt);
}

template <typename Work>
void Speculation::guarded(Work&& work) {
  const SpeculationClock::time_point start = SpeculationClock::now();
  try {
    work();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail(kUnknownProblem);
  }
  add_time(std::chrono::duration<double>(SpeculationClock::now() - start).count());
}

void Speculation::fail(const std::string& problem) {
  const std::string name = counts_.drafter.empty() ? "?" : counts_.drafter;
  counts_.problem = one_line("drafter '" + name + "' is not asked any more: " + problem);
  num_drafts_ = 0;
  release(false);
}

void Speculation::release(bool is_whole) {
  const DraftTextId text = std::exchange(text_, 0);
  if (text == 0) return;
  try {
    options_.drafter->release(text, is_whole);
  } catch (...) {  // it is not asked again
  }
}

void Speculation::show(std::span<const int32_t> tokens) {
  guarded([&] { options_.drafter->commit(text_, tokens); });
}

void Speculation::restart() {
  is_asked_ = false;
  num_drafts_ = 0;
  if (is_on()) guarded([&] { options_.drafter->truncate(text_, before_); });
}

int32_t Speculation::wanted(int64_t most) const {
  if (!is_on() || is_asked_) return 0;
  return static_cast<int32_t>(std::min<int64_t>(most, gate_.limit()));
}

DraftProposal Speculation::request(int32_t count) {
  is_asked_ = true;
  num_requested_ = count;
  return {text_, std::span(drafts_).first(static_cast<size_t>(count)), 0};
}

void Speculation::check(int32_t count) const {
  if (count < 0 || count > num_requested_) {
    throw Error(ErrorKind::kInvalidArgument, "it guessed " + std::to_string(count) +
                                                 " tokens; expected 0 to " +
                                                 std::to_string(num_requested_));
  }
  for (const int32_t token : std::span(drafts_).first(static_cast<size_t>(count))) {
    if (token >= 0 && token < vocab_size_) continue;
    throw Error(ErrorKind::kInvalidArgument, "it guessed token " + std::to_string(token) +
                                                 "; expected ids from 0 to " +
                                                 std::to_string(vocab_size_ - 1));
  }
}

void Speculation::take(int32_t count, ConstraintGuide* guide, const JumpForward* jump) {
  if (!is_on()) return;
  try {
    check(count);
  } catch (const Error& error) {
    return fail(error.what());
  }
  auto drafts = std::span<const int32_t>(drafts_).first(static_cast<size_t>(count));
  const auto end = std::ranges::find_if(
      drafts, [&](int32_t token) { return std::ranges::find(end_ids_, token) != end_ids_.end(); });
  drafts = drafts.first(static_cast<size_t>(end - drafts.begin()));
  num_drafts_ =
      guide != nullptr && !drafts.empty() ? guide->look_ahead(drafts, jump, masks_) : drafts.size();
}

void Speculation::ask(int32_t count, ConstraintGuide* guide, const JumpForward* jump) {
  DraftProposal proposal = request(count);
  guarded([&] { options_.drafter->propose({&proposal, 1}); });
  take(proposal.count, guide, jump);
}

void Speculation::ask_together(Drafter& drafter, std::span<Speculation* const> answers,
                               std::span<DraftProposal> proposals) {
  const SpeculationClock::time_point start = SpeculationClock::now();
  std::string problem;
  try {
    drafter.propose(proposals);
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = kUnknownProblem;
  }
  const std::chrono::duration<double> taken = SpeculationClock::now() - start;
  for (Speculation* answer : answers) {
    answer->add_time(taken.count() / static_cast<double>(answers.size()));
    if (!problem.empty()) answer->fail(problem);
  }
}

std::span<const int32_t> Speculation::step_tokens(int32_t last, int64_t most) {
  const auto count = std::min(num_drafts_, static_cast<size_t>(std::max<int64_t>(most, 0)));
  step_tokens_.assign(1, last);
  step_tokens_.insert(step_tokens_.end(), drafts_.begin(),
                      drafts_.begin() + static_cast<ptrdiff_t>(count));
  return step_tokens_;
}

void Speculation::end_pass(int64_t proposed, int64_t accepted) {
  ++counts_.num_passes;
  const auto tried = static_cast<int32_t>(proposed), right = static_cast<int32_t>(accepted);
  if (is_on() && gate_.limit() == 0) ++counts_.num_paused_passes;
  gate_.pass(tried, right);
  is_asked_ = false;
  num_drafts_ = 0;
  if (proposed == 0) return;
  ++counts_.num_spec_steps;
  counts_.num_draft_tokens += proposed;
  counts_.num_accepted_draft_tokens += accepted;
  counts_.num_discarded_tokens += proposed - accepted;
  ++counts_.acceptance_histogram[static_cast<size_t>(accepted)];
  if (is_on()) guarded([&] { options_.drafter->told(text_, tried, right); });
}

std::span<const uint32_t> Speculation::allowed_tokens(int64_t position,
                                                      ConstraintDecision& decision) {
  const int32_t attempt = decision.attempt;
  const auto mask = masks_.of(static_cast<size_t>(position - first_position_), decision);
  decision.attempt = attempt;
  return mask;
}

}  // namespace vitrine::engine
