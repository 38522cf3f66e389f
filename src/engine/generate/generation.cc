// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>

#include "engine/generate/generation_checks.h"
#include "engine/generate/generation_impl.h"
#include "engine/run/audit_layout.h"
#include "engine/run/step_rows.h"

namespace vitrine {

namespace {

constexpr size_t kMaxFailures = 64;  // of a result

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Generation::Impl::Impl(Stepper& stepper, std::span<const int32_t> prompt,
                       const GenerateOptions& options,
                       std::function<bool(const TokenEvent&)> on_token)
    : stepper_(stepper),
      prompt_(prompt.begin(), prompt.end()),
      options_(options),
      on_token_(std::move(on_token)),
      sequence_(stepper, options.sequence),
      held_(stepper.length(sequence_.id())),
      sampler_(SamplerPipeline::from_options(options.sampler)) {
  engine::check_generation(stepper, prompt, held_, options);
  const int64_t left =
      stepper.options().max_context - held_ - static_cast<int64_t>(prompt.size()) + 1;
  room_ = options.context_shift ? options.max_new_tokens
                                : std::min<int64_t>(options.max_new_tokens, left);
  result_.prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t at_once = std::min<int64_t>(room_, stepper.options().max_context);
  result_.tokens.reserve(static_cast<size_t>(at_once));
  input_.sequence = sequence_.id();
  input_.sampler = &sampler_;
  input_.seed = options.sampler.seed;
  input_.branch = options.branch;
  input_.cancelled = options.cancelled;
  if (options.constraint != nullptr && options.max_new_tokens > 0) begin_constraint();
  pending_.reserve(static_cast<size_t>(at_once) + 1);
  path_.reserve(kMaxDrafts + 1);
  if (options.speculation.drafter != nullptr && room_ > 1) begin_speculation();
  telling_errors([&] { begin(); });
}

StepInput Generation::Impl::next_input(int64_t most_tokens, int64_t most_rows) {
  const EngineOptions& limits = stepper_.options();
  const int64_t tokens = std::min<int64_t>(limits.max_step_tokens, most_tokens);
  const int64_t rows = std::min<int64_t>(limits.max_logit_rows, most_rows);
  const bool wants_rows =
      stretch_.is_prompt ? options_.prompt_logprobs || scores_prompt() : wants_forced_rows();
  const auto chunk =
      static_cast<size_t>(std::max<int64_t>(1, wants_rows ? std::min(tokens, rows) : tokens));
  const size_t left = stretch_.tokens.size() - stretch_.done;
  input_.tokens = stretch_.tokens.subspan(stretch_.done, std::min(chunk, left));
  const size_t next = stretch_.done + input_.tokens.size();
  const bool is_last = next == stretch_.tokens.size();
  chooses_ = is_last && stretch_.chooses;
  input_.next_token = is_last ? stretch_.next : stretch_.tokens[next];
  input_.num_forced = input_.num_drafts = 0;
  input_.draft_parents = {};
  input_begin_ = stepper_.length(sequence_.id());
  if (input_.guide != nullptr) {  // asked again
    input_.guide = nullptr;
    input_.allowed_tokens = guide_->mask();
  }
  if (!stretch_.is_prompt) {
    input_.num_forced = static_cast<int32_t>(input_.tokens.size()) - (chooses_ ? 1 : 0);
  }
  const bool has_rows = stretch_.is_prompt ? wants_rows : wants_rows && input_.num_forced > 0;
  input_.rows = has_rows   ? StepInput::Rows::kAll
                : chooses_ ? StepInput::Rows::kLast
                           : StepInput::Rows::kNone;
  const bool may_ask = speculation_ && !speculation_->rests();
  input_.goes_on = chooses_ && !guide_ && !may_ask && std::ssize(result_.tokens) + 1 < room_;
  if (may_draft()) add_drafts(std::min(tokens, rows) - 1);
  return input_;
}

void Generation::Impl::accept(std::span<const StepOutput> outputs) {
  if (outputs.size() != engine::StepRows::count(input_)) {
    throw Error(ErrorKind::kInvalidArgument,
                "accept() was given " + std::to_string(outputs.size()) + " outputs; expected " +
                    std::to_string(engine::StepRows::count(input_)) +
                    ", those of the input that next_input() gave last");
  }
  input_.guide = nullptr;
  telling_errors([&] {
    check_failures();
    stretch_.done += input_.tokens.size() - static_cast<size_t>(input_.num_drafts);
    if (!take_outputs(outputs)) return end_attempt();
    if (stretch_.done == stretch_.tokens.size()) return end_stretch();
    if (stretch_.is_prompt && !has_prefilled_ &&
        !tell_progress(static_cast<int64_t>(stretch_.done)))
      cancel();
  });
  tell_drafts();
}

void Generation::Impl::check_failures() {
  for (const StepFailure& failure : stepper_.failures()) {
    if (failure.sequence != input_.sequence) continue;
    result_.reason = StopReason::kFailed;
    std::rethrow_exception(failure.error);
  }
}

void Generation::Impl::cancel() {
  if (is_finished_) return;
  result_.reason = StopReason::kCancelled;
  finish();
}

bool Generation::Impl::tell_progress(int64_t done) {
  return !options_.on_progress || options_.on_progress({done, result_.prompt_tokens});
}

void Generation::Impl::begin_constraint() {
  std::vector<int32_t> ends = stepper_.summary().eos_token_ids;
  ends.insert(ends.end(), options_.stop_token_ids.begin(), options_.stop_token_ids.end());
  std::ranges::sort(ends);
  ends.erase(std::ranges::unique(ends).begin(), ends.end());
  guide_.emplace(*options_.constraint, stepper_.summary().vocab_size, std::move(ends),
                 banned_ids(options_.sampler), options_.sampler.ban,
                 stepper_.tokens(sequence_.id()), prompt_, room_);
  if (options_.jump_forward != nullptr) {
    jump_.emplace(*options_.jump_forward, options_.sampler.ban);
  }
}

void Generation::Impl::begin() {
  const bool goes_on = options_.max_new_tokens > 0 && is_led_on() && begin_jump();
  goes_on_ = goes_on;
  is_split_ = pending_.size() > 1;
  stretch_ = {std::span(prompt_).first(prompt_.size() - (is_split_ ? 1 : 0)), 0,
              is_split_ ? prompt_.back() : -1, goes_on && !is_split_, true};
  if (stretch_.tokens.empty()) end_stretch();
}

void Generation::Impl::feed(bool chooses) {
  goes_on_ = chooses;
  const size_t count = pending_.size() - (chooses ? 0 : 1);
  stretch_ = {std::span(pending_).first(count), 0, chooses ? -1 : pending_[count], chooses, false};
  if (count == 0) end_stretch();
}

void Generation::Impl::end_stretch() {
  if (stretch_.is_prompt && is_split_) {
    is_split_ = false;
    return feed(goes_on_);
  }
  if (!has_prefilled_) {
    has_prefilled_ = true;
    result_.prefill_seconds = seconds_since(start_);
    start_ = GenerationClock::now();
    if (!tell_progress(result_.prompt_tokens)) return cancel();
    if (options_.max_new_tokens == 0) {
      is_finished_ = true;
      return;
    }
  }
  if (goes_on_ && take_choice()) return;
  end_attempt();
}

void Generation::Impl::shift() {
  const std::span<const int32_t> all = stepper_.tokens(input_.sequence);
  const int64_t kept = options_.context_keep, dropped = (std::ssize(all) - kept) / 2;
  const auto left = all.subspan(static_cast<size_t>(kept + dropped));
  pending_.assign(left.begin(), left.end());
  pending_.push_back(next_);
  stepper_.truncate(input_.sequence, kept);
  dropped_ += dropped;
  result_.shifts.push_back({std::ssize(result_.tokens), kept, dropped});
  stretch_ = {pending_, 0, -1, true, true};  // computed as a prompt is
  goes_on_ = true;
}

bool Generation::Impl::take_choice() {
  const bool is_refused = !is_masked_ && !guide_->follow(next_);
  if (!take(next_, !is_refused && (!guide_ || guide_->is_complete()), is_refused)) return false;
  if (options_.context_shift &&
      stepper_.length(input_.sequence) >= stepper_.options().max_context) {
    shift();
    return true;
  }
  pending_.assign(1, next_);
  if (!is_led_on()) return false;
  feed(jump());
  return true;
}

void Generation::Impl::end_attempt() {
  while (should_retry()) {
    if (begin_attempt()) return;
  }
  finish();
}

bool Generation::Impl::begin_attempt() {
  guide_->restart();
  if (speculation_) speculation_->restart();
  ++attempt_;
  result_.tokens.clear();
  result_.logprobs.clear();
  input_.allowed_tokens = {};
  input_.constraint = {};
  input_.constraint.attempt = attempt_;
  input_.branch = options_.branch + (static_cast<uint32_t>(attempt_) << 16);
  stepper_.truncate(input_.sequence, held_ + result_.prompt_tokens - 1);
  if (!is_led_on()) return false;
  feed(begin_jump());
  return true;
}

void Generation::Impl::finish() {
  is_finished_ = true;
  if (speculation_) {
    cut_behind_end();
    speculation_->release(true);
    result_.speculation = speculation_->counts();
  }
  const bool is_at_end =
      result_.reason == StopReason::kComplete || result_.reason == StopReason::kEndOfText;
  if (guide_ && is_at_end && guide_->was_limited()) {
    result_.reason = StopReason::kLengthConstrained;
  }
  if (guide_) {
    result_.constraint = guide_->counts();
    result_.is_complete = guide_->is_complete();
  }
  (has_prefilled_ ? result_.decode_seconds : result_.prefill_seconds) = seconds_since(start_);
}

void Generation::Impl::tell(ConstraintFailure::Kind kind, int32_t refused) {
  ConstraintFailure failure = guide_->failure(kind);
  failure.attempt = attempt_;
  failure.sequence = input_.sequence;
  failure.token = refused;
  failure.position = held_ + result_.prompt_tokens + static_cast<int64_t>(result_.tokens.size()) -
                     (refused >= 0 ? 1 : 0);
  engine::tell_sink(stepper_.audit_sink(), failure);
  if (result_.failures.size() < kMaxFailures) result_.failures.push_back(std::move(failure));
}

std::string Generation::Impl::tell_error() {
  tell(ConstraintFailure::Kind::kError);
  if (result_.failures.empty()) return "";
  const ConstraintState& state = result_.failures.back().state;
  return "; it stood behind " + std::to_string(state.num_bytes) + " bytes of the answer" +
         (state.readings.empty() ? "" : ", " + state.readings.front());
}

bool Generation::Impl::is_led_on() {
  if (!guide_ || !is_masked_) return true;
  const engine::ConstraintGuide::Next next = guide_->prepare();
  if (next == engine::ConstraintGuide::Next::kComplete) result_.reason = StopReason::kComplete;
  if (next == engine::ConstraintGuide::Next::kDeadlock) {
    result_.reason = StopReason::kDeadlock;
    tell(ConstraintFailure::Kind::kDeadlock);
  }
  input_.allowed_tokens = guide_->mask();
  input_.constraint = guide_->decision();
  input_.constraint.attempt = attempt_;
  return next == engine::ConstraintGuide::Next::kToken;
}

bool Generation::Impl::jump() {
  if (!jump_ || !is_masked_) return true;
  const auto taken = static_cast<int64_t>(result_.tokens.size());
  const int64_t left = std::min<int64_t>(options_.max_new_tokens, room_) - taken;
  const std::span<const int32_t> tokens = guide_->jump(*jump_, result_.tokens, left);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_last = i + 1 == tokens.size();
    pending_.push_back(tokens[i]);
    if (take(tokens[i], is_last && guide_->is_complete())) continue;
    guide_->take_back(tokens.size() - 1 - i);
    return false;
  }
  if (tokens.empty()) return true;
  const auto position = held_ + result_.prompt_tokens + taken;
  sampler_.mark_forced(position, static_cast<int64_t>(tokens.size()));
  return is_led_on();
}

bool Generation::Impl::begin_jump() {
  pending_.assign(1, prompt_.back());
  return jump();
}

bool Generation::Impl::should_retry() {
  if (result_.reason == StopReason::kDeadlock) {
    is_masked_ = false;
    return unmasked_attempts_++ < options_.deadlock_retries;
  }
  if (!options_.validator || !guide_ || result_.reason == StopReason::kCancelled ||
      !guide_->is_complete() || options_.validator(result_.tokens)) {
    return false;
  }
  result_.reason = StopReason::kRejected;
  tell(ConstraintFailure::Kind::kRejected);
  return guide_->reject_answer() <= options_.validator_retries;
}

Generation::Generation(Stepper& stepper, std::span<const int32_t> prompt,
                       const GenerateOptions& options,
                       std::function<bool(const TokenEvent&)> on_token)
    : impl_(std::make_unique<Impl>(stepper, prompt, options, std::move(on_token))) {}
Generation::Generation(Generation&&) noexcept = default;
Generation& Generation::operator=(Generation&&) noexcept = default;
Generation::~Generation() = default;

SequenceId Generation::sequence() const { return impl_->sequence_.id(); }
bool Generation::finished() const { return impl_->is_finished_; }

StepInput Generation::next_input(int64_t most_tokens, int64_t most_rows) {
  if (finished()) {
    throw Error(ErrorKind::kInvalidArgument,
                "the generation has finished and wants no further step; expected finished() to be "
                "asked before");
  }
  return impl_->next_input(most_tokens, most_rows);
}

void Generation::accept(std::span<const StepOutput> outputs) { impl_->accept(outputs); }
void Generation::cancel() { impl_->cancel(); }
void Generation::preempt() { impl_->stepper_.preempt(impl_->sequence_.id()); }
const GenerateResult& Generation::result() const { return impl_->result_; }
GenerateResult Generation::take_result() { return std::move(impl_->result_); }

}  // namespace vitrine
