// SPDX-License-Identifier: Apache-2.0
// What the next step brings, and who gives way where memory runs out.
#include <algorithm>

#include "serve/host_error.h"
#include "serve/scheduler.h"

namespace vitrine::serve {

namespace {

constexpr int64_t kLeastChunk = 8;     // tokens of a prompt in a step beside answers
constexpr int64_t kForcedTokens = 32;  // that an answer may bring to a step without guesses
constexpr double kShortStep = 0.02;    // seconds that nobody minds

}  // namespace

bool Scheduler::plan() {
  plan_.begin(stepper_.options());
  answers_.clear();
  prompts_.clear();
  for (auto& answer : running_) {
    if (!answer->runs() || answer->finished()) continue;
    if (answer->is_paused()) {
      ++telemetry_.paused_readers;
      continue;
    }
    (answer->is_in_prompt() ? prompts_ : answers_).push_back(answer.get());
  }
  plan_answers();
  plan_prompts();
  return make_fit();
}

void Scheduler::add_input(RunningAnswer& answer, int64_t most_tokens, int64_t most_rows) {
  try {
    plan_.add(answer, most_tokens, most_rows);
  } catch (...) {  // a drafter of the host's, a constraint
    end(answer, host_error());
  }
}

// Answers first: each has room for a token and a row, and guesses where they cost little.
void Scheduler::plan_answers() {
  auto others = std::ssize(answers_);
  const bool may_draft = costs_.is_cheap_beside(others);
  if (may_draft) {
    std::vector<Generation*> asked;
    for (RunningAnswer* answer : answers_) {
      if (answer->job().drafter != nullptr) asked.push_back(&answer->generation());
    }
    if (!asked.empty()) Generation::draft(asked);
  }
  for (RunningAnswer* answer : answers_) {
    --others;
    const int64_t most = answer->job().drafter == nullptr ? kForcedTokens
                         : may_draft                      ? kMaxDrafts + 1
                                                          : 1;
    add_input(*answer, std::min(most, plan_.tokens_left() - others), plan_.rows_left() - others);
  }
}

// What is left of the step's tokens, and of its time where answers wait for it, goes to prompts.
void Scheduler::plan_prompts() {
  const int64_t used = stepper_.options().max_step_tokens - plan_.tokens_left();
  int64_t allowed = plan_.tokens_left();
  if (used > 0) {
    const double alone = costs_.of(used);
    const double limit = options_.step_seconds > 0 ? std::max(options_.step_seconds, alone)
                                                   : std::max(2 * alone, kShortStep);
    const int64_t within = costs_.tokens_within(limit, used + plan_.tokens_left()) - used;
    allowed = std::min(allowed, std::max(within, kLeastChunk));
  }
  const double now = clock_(), seconds_per_token = costs_.of_prompt_token();
  std::ranges::stable_sort(prompts_, {}, [&](const RunningAnswer* answer) {
    return waiting_.rank(answer->job(), answer->left_of_prompt(), now, seconds_per_token);
  });
  for (RunningAnswer* answer : prompts_) {
    if (allowed < 1 || plan_.rows_left() < 1) return;
    // A state is kept before the last token, which the same prompt computes again for its logits.
    const int64_t left = answer->left_of_prompt() - (has_states_ ? 1 : 0);
    const int64_t before = plan_.tokens_left();
    add_input(*answer, std::min({allowed, left, answer->tokens_to_cut()}), plan_.rows_left());
    allowed -= before - plan_.tokens_left();
  }
}

bool Scheduler::evict() {
  const PrefixTree::Evicted evicted = tree_.evict(clock_());
  if (evicted.tokens == 0) return false;
  ++telemetry_.evicted_prefixes;
  telemetry_.evicted_tokens += static_cast<uint64_t>(evicted.tokens);
  telemetry_.evicted_age_seconds += evicted.age;
  return true;
}

// False where nothing is left to run.
bool Scheduler::make_fit() {
  while (!plan_.inputs().empty()) {
    const StepFit fit = stepper_.fits(plan_.inputs());
    if (fit.fits()) return true;
    if (fit.blocks > fit.free_blocks && evict()) continue;
    if (fit.blocks > fit.free_blocks && preempt_one(first_planned(), false)) continue;
    if (fit.blocks > fit.free_blocks && release_kept()) continue;
    return true;  // the step says why
  }
  return false;
}

// Returns the one that was admitted first of those that are planned.
const RunningAnswer* Scheduler::first_planned() const {
  const auto first =
      std::ranges::find_if(running_, [this](const auto& answer) { return plan_.has(*answer); });
  return first == running_.end() ? nullptr : first->get();
}

// Somebody gives up its blocks: first who waits for its reader, which has its place no longer then,
// then who asks for a place again, and where that is not `idle_alone` who was admitted last. So the
// one that was admitted first always goes on. False where there is nobody but `except`.
bool Scheduler::preempt_one(const RunningAnswer* except, bool idle_alone) {
  auto victim = running_.rend();
  int worst = idle_alone ? 1 : 0;  // the victim's is above it
  for (auto each = running_.rbegin(); each != running_.rend(); ++each) {
    if (!(*each)->holds_blocks() || (*each)->finished() || each->get() == except) continue;
    const bool waits_for_reader = (*each)->gave_place() || (*each)->is_behind();
    const int one = waits_for_reader ? 3 : (*each)->asks_again() ? 2 : 1;
    if (one <= worst) continue;
    victim = each;
    worst = one;
    if (one == 3) break;
  }
  if (victim == running_.rend()) return false;
  RunningAnswer& answer = **victim;
  plan_.leave(answer);
  ++telemetry_.preemptions;
  const bool is_silent = answer.generation().result().tokens.empty();
  if (!answer.is_in_prompt() || !is_silent || answer.job().audit != nullptr) {
    const bool had_place = answer.is_placed();
    answer.preempt();
    telemetry_.paused_readers += had_place && !answer.is_placed() ? 1 : 0;
    return true;
  }
  // Nothing was said or recorded yet: it waits again in its place.
  ++answer.job().preemptions;
  std::unique_ptr<Job> job = answer.take_job();
  running_.erase(std::next(victim).base());
  waiting_.add(std::move(job));
  return true;
}

}  // namespace vitrine::serve
