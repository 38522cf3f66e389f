// SPDX-License-Identifier: Apache-2.0
#include "serve/scheduler.h"

#include <algorithm>
#include <utility>

#include "serve/host_error.h"
#include "serve/server_options.h"
#include "serve/thread_seconds.h"

namespace vitrine::serve {

Scheduler::Scheduler(Stepper& stepper, const ServerOptions& options, Clock clock)
    : stepper_(stepper),
      options_(resolve_server_options(options, stepper.options())),
      clock_(std::move(clock)),
      block_size_(std::max(stepper.options().kv_block_size, 1)),
      has_states_(stepper.traits().keeps_states),
      sinks_(options.audit),
      tap_(sinks_, stepper.options().max_step_tokens),
      keeps_words_(options_.cache_prefixes && stepper.traits().records &&
                   stepper.options().audit_mode != AuditMode::kNone),
      tree_(stepper, block_size_),
      waiting_(options_) {
  if (options_.audit != nullptr || keeps_words_) stepper_.set_audit_sink(&tap_);
  tree_.set_token_words(tap_.token_words());
}

Scheduler::~Scheduler() {
  for (auto& answer : running_) {
    if (!answer->finished()) answer->generation().cancel();
    end(*answer, std::nullopt);
  }
  running_.clear();
  tell_ended();
  for (auto& job : waiting_.take_if([](const Job&) { return true; })) end_waiting(std::move(job));
  if (stepper_.audit_sink() == &tap_) stepper_.set_audit_sink(nullptr);
}

void Scheduler::end_waiting(std::unique_ptr<Job> job) {
  JobEnd cancelled = JobEnd::cancelled();
  cancelled.preemptions = job->preemptions;
  job->on_end(std::move(cancelled));
}

void Scheduler::fail_all(const Error& error) {
  for (auto& answer : running_) end(*answer, error);
  remove_ended();
}

void Scheduler::add(std::unique_ptr<Job> job) { waiting_.add(std::move(job)); }

ServerTelemetry Scheduler::telemetry() const {
  ServerTelemetry now = telemetry_;
  now.waiting = static_cast<int64_t>(waiting_.size());
  now.running = num_placed();
  now.paused = std::ssize(running_) - now.running;
  now.kept_prefixes = tree_.num_prefixes();
  now.record_bytes = static_cast<int64_t>(tree_.word_bytes());
  std::tie(now.free_blocks, now.num_blocks) = stepper_.kv_blocks();
  if (stored_ != nullptr) stored_->add_counts(now);
  return now;
}

bool Scheduler::step() {
  const double begin = thread_seconds();
  if (stored_ != nullptr) stored_->take_in(clock_());
  drop_cancelled();
  resume_preempted();
  admit();
  const bool is_planned = plan();
  telemetry_.scheduler_seconds += thread_seconds() - begin;
  if (is_planned) run();
  remove_ended();
  if (stored_ != nullptr && is_idle()) stored_->store_one();
  tell_blocks();
  return is_planned;
}

void Scheduler::drop_cancelled() {
  for (auto& job : waiting_.take_if([](const Job& job) { return job.is_cancelled(); })) {
    end_waiting(std::move(job));
  }
  for (auto& answer : running_) {
    if (!answer->job().is_cancelled() || answer->finished()) continue;
    answer->generation().cancel();
    end(*answer, std::nullopt);
  }
  remove_ended();
}

void Scheduler::run() {
  const double begin = clock_();
  std::span<const StepOutput> outputs;
  try {
    outputs = stepper_.step(plan_.inputs());
  } catch (...) {
    const Error error = host_error();
    // The pool of windows or states is full; nothing has changed.
    if (error.kind() == ErrorKind::kOutOfMemory &&
        (preempt_one(first_planned(), false) || evict() || release_kept())) {
      return;
    }
    for (size_t i = 0; i < plan_.inputs().size(); ++i) end(plan_.answer(i), error);
    return;
  }
  const double seconds = clock_() - begin;
  int64_t tokens = 0, prompt_tokens = 0;
  for (size_t i = 0; i < plan_.inputs().size(); ++i) {
    tokens += std::ssize(plan_.inputs()[i].tokens);
    prompt_tokens += plan_.prompt_tokens(i);
  }
  costs_.add(tokens, seconds);
  ++telemetry_.steps;
  telemetry_.engine_seconds += seconds;
  telemetry_.step_seconds.add(seconds);
  telemetry_.computed_prompt_tokens += static_cast<uint64_t>(prompt_tokens);
  for (size_t i = 0; i < plan_.inputs().size(); ++i) {
    const auto count = static_cast<size_t>(Stepper::row_count(plan_.inputs()[i]));
    accept(i, outputs.first(count));
    outputs = outputs.subspan(count);
  }
}

void Scheduler::accept(size_t input, std::span<const StepOutput> outputs) {
  RunningAnswer& answer = plan_.answer(input);
  answer.release_kept();
  const size_t before = answer.generation().result().tokens.size();
  std::optional<Error> error;
  try {
    answer.generation().accept(outputs);
  } catch (...) {
    error = host_error();
  }
  const size_t after = answer.generation().result().tokens.size();
  if (after > before) telemetry_.new_tokens += after - before;
  waiting_.policy().charge(answer.job().tenant, plan_.prompt_tokens(input),
                           static_cast<int64_t>(std::max(after, before) - before));
  const double begin = thread_seconds();
  if (!error) keep_prefixes(answer);
  telemetry_.scheduler_seconds += thread_seconds() - begin;
  if (error || answer.finished()) end(answer, error);
}

void Scheduler::end(RunningAnswer& answer, std::optional<Error> error) {
  if (!answer.job().on_end) return;
  JobEnd end;
  end.result = answer.finished() ? answer.generation().take_result() : answer.generation().result();
  if (error) end.result.reason = StopReason::kFailed;
  telemetry_.constraint += end.result.constraint;
  telemetry_.speculation += end.result.speculation;
  const int64_t lost = answer.job().prefix_break.lost;
  telemetry_.prompt_breaks += lost > 0 ? 1 : 0;
  telemetry_.broken_tokens += static_cast<uint64_t>(lost);
  end.error = std::move(error);
  if (!answer.finished()) answer.generation().cancel();
  end.preemptions = answer.job().preemptions;
  end.prefix_break = std::move(answer.job().prefix_break);
  ended_.push_back({std::exchange(answer.job().on_end, nullptr), std::move(end)});
}

// Who is told may free what its request had: nothing of it is left here.
void Scheduler::tell_ended() {
  for (Ended& one : std::exchange(ended_, {})) {
    try {
      one.on_end(std::move(one.end));
    } catch (...) {  // no memory: it is told that, and the others are told theirs
      one.on_end(JobEnd::failed(host_error()));
    }
  }
}

void Scheduler::remove_ended() {
  const auto ended = std::erase_if(running_, [](const auto& answer) { return answer->finished(); });
  tell_ended();
  if (ended == 0 || options_.audit != nullptr || keeps_words_ || stepper_.audit_sink() != &tap_) {
    return;
  }
  const bool is_audited = std::ranges::any_of(
      running_, [](const auto& answer) { return answer->job().audit != nullptr; });
  if (!is_audited) stepper_.set_audit_sink(nullptr);
}

}  // namespace vitrine::serve
