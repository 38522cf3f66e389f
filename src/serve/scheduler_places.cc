// SPDX-License-Identifier: Apache-2.0
// Chooses who has a place among the answers that steps go on with.
#include <algorithm>
#include <ranges>
#include <utility>

#include "serve/host_error.h"
#include "serve/scheduler.h"

namespace vitrine::serve {

namespace {

constexpr int64_t kAnswerReserve = 64;  // positions that an answer is given before it begins

}  // namespace

// Whether the pool has blocks for so many positions, of which the first are shared, and one more
// for everybody who runs.
bool Scheduler::has_room(int64_t length, int64_t shared) {
  const auto running =
      std::ranges::count_if(running_, [](const auto& answer) { return answer->runs(); });
  const int64_t needed = (length + block_size_ - 1) / block_size_ - shared / block_size_ + running;
  const int64_t free = stepper_.kv_blocks().first;
  if (free < needed && free + tree_.num_evictable_blocks() < needed) return false;
  while (stepper_.kv_blocks().first < needed) {
    if (!evict()) return false;
  }
  return true;
}

// Has answers that are in no step, but for `except`, give way until has_room() holds.
bool Scheduler::make_room(int64_t length, int64_t shared, const RunningAnswer* except) {
  while (!has_room(length, shared)) {
    if (!preempt_one(except, /*idle_alone=*/true)) return false;
  }
  return true;
}

// Returns whether no answer has keys and values.
bool Scheduler::holds_nothing() const {
  return std::ranges::none_of(running_, [](const auto& answer) { return answer->holds_blocks(); });
}

int64_t Scheduler::num_placed() const {
  return std::ranges::count_if(running_, [](const auto& answer) { return answer->is_placed(); });
}

// An answer whose reader is behind keeps its place until others need it, and its blocks until their
// memory is needed, too. It asks for a place again once the reader has caught up. Who gave way for
// want of memory alone comes back before anybody else gets a place.
void Scheduler::resume_preempted() {
  const double now = clock_();
  for (auto& answer : running_) answer->ask_again(now);
  for (auto& answer : running_) {
    if (answer->waits_for_room() && !resume(*answer)) return;
  }
}

// False where there is no room. Who is alone goes on by what it can have.
bool Scheduler::resume(RunningAnswer& answer) {
  if (answer.kept_length() == 0) answer.release_kept();
  if (!make_room(answer.length() + 1, answer.kept_length(), &answer)) {
    const bool is_alone = std::ranges::none_of(running_, [&](const auto& other) {
      return other.get() != &answer && other->holds_blocks();
    });
    if (!is_alone) return false;
    answer.release_kept();
  }
  answer.resume();
  return true;
}

// Returns the one that goes first of those that ask for a place again; null: nobody does.
RunningAnswer* Scheduler::first_asking(double now) const {
  RunningAnswer* first = nullptr;
  double least = 0;
  for (const auto& answer : running_) {
    if (!answer->asks_again()) continue;
    const double rank =
        waiting_.rank(answer->job(), answer->length() + 1, now, costs_.of_prompt_token());
    if (first != nullptr && rank >= least) continue;
    first = answer.get();
    least = rank;
  }
  return first;
}

// Returns whether an answer that asks for a place again gets it before the job that was chosen.
bool Scheduler::goes_before(const RunningAnswer& answer, size_t chosen, double now) const {
  if (chosen == waiting_.size()) return true;
  const Job& job = *waiting_.jobs()[chosen];
  const double seconds_per_token = costs_.of_prompt_token();
  const int64_t uncached = std::ssize(job.prompt) - find(job).length;
  const double own = waiting_.rank(answer.job(), answer.length() + 1, now, seconds_per_token);
  const double other = waiting_.rank(job, uncached, now, seconds_per_token);
  return own != other ? own < other : answer.job().ready < job.ready;
}

// Takes the place of the one that was admitted last of those whose readers are behind; false: there
// is nobody.
bool Scheduler::free_place() {
  for (auto& answer : std::views::reverse(running_)) {
    if (!answer->runs() || answer->finished() || !answer->is_behind()) continue;
    plan_.leave(*answer);
    answer->give_place();
    ++telemetry_.paused_readers;
    return true;
  }
  return false;
}

// Lets go of what an answer keeps of before it gave its place: last of all, of one that a step is
// to go on with, which computes it again. False where nobody keeps anything.
bool Scheduler::release_kept() {
  for (auto& answer : running_) {
    if (!answer->keeps_something()) continue;
    answer->release_kept();
    return true;
  }
  return false;
}

void Scheduler::admit() {
  const bool somebody_waits =
      std::ranges::any_of(running_, [](const auto& answer) { return answer->waits_for_room(); });
  if (somebody_waits) return;
  const double now = clock_();
  for (;;) {  // each turn gives a place or frees one
    RunningAnswer* const asking = first_asking(now);
    if (asking == nullptr && waiting_.empty()) return;
    if (num_placed() >= options_.max_running) {
      if (!free_place()) return;
      continue;
    }
    const size_t chosen = waiting_.choose(now, costs_.of_prompt_token(),
                                          [this](Job& job) { return uncached_tokens(job); });
    if (asking != nullptr && goes_before(*asking, chosen, now)) {
      if (!resume(*asking)) return;
      continue;
    }
    if (chosen == waiting_.size() || !admit(waiting_.take(chosen))) return;
  }
}

// False where there is no room: the job waits again.
bool Scheduler::admit(std::unique_ptr<Job> job) {
  const std::function<void(JobEnd)> on_end = job->on_end;  // the job may be gone when it fails
  try {
    if (job->audit != nullptr && stepper_.audit_sink() != &tap_) stepper_.set_audit_sink(&tap_);
    PrefixTree::Match match = find(*job);
    std::vector<int32_t> words;
    if (match.node != nullptr && keeps_words_) words = tree_.words(match);
    // An account holds its whole prompt: what the recorder said of it, or what it says now.
    if (job->audit != nullptr && words.empty()) match = {};
    if (match.node != nullptr) PrefixTree::hold(match.node);
    const int64_t prompt = std::ssize(job->prompt);
    const int64_t length =
        std::min<int64_t>(prompt + std::min<int64_t>(job->options.max_new_tokens, kAnswerReserve),
                          stepper_.options().max_context);
    if (!make_room(length, match.length, nullptr) && !holds_nothing()) {
      PrefixTree::drop(match.node);
      waiting_.add(std::move(job));
      return false;
    }
    Job& begun = *job;
    const bool tells_break = options_.cache_prefixes && !options_.share_between_tenants;
    if (tells_break && begun.use_cache && !begun.has_begun) {
      begun.prefix_break = tree_.find_break({begun.adapter, begun.cache_scope}, begun.prompt);
    }
    std::unique_ptr<RunningAnswer> answer;
    try {
      answer = std::make_unique<RunningAnswer>(stepper_, sinks_, std::move(job), match);
    } catch (...) {
      PrefixTree::drop(match.node);
      throw;
    }
    if (match.node != nullptr) {  // held as used from here on
      tree_.use(match.node, clock_());
      PrefixTree::drop(match.node);
    }
    answer->hold(match.node);
    if (keeps_words_ && begun.use_cache) {
      tap_.follow(answer->sequence(), std::move(words));
      if (begun.audit != nullptr && match.length > 0) {
        tap_.copy(*begun.audit, answer->sequence(), match.prefix,
                  std::span(begun.prompt).first(static_cast<size_t>(match.length)),
                  tap_.words(answer->sequence()));
      }
    }
    if (!std::exchange(begun.has_begun, true)) {
      if (begun.on_begin) begun.on_begin(match.length);
      telemetry_.prompt_tokens += static_cast<uint64_t>(prompt);
      telemetry_.cached_tokens += static_cast<uint64_t>(match.length);
    }
    answer->begin();
    running_.push_back(std::move(answer));
    if (running_.back()->finished()) end(*running_.back(), std::nullopt);
  } catch (...) {
    on_end(JobEnd::failed(host_error()));
  }
  return true;
}

}  // namespace vitrine::serve
