// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <optional>

#include "engine/audit_layout.h"
#include "engine/constraint_guide.h"
#include "engine/jump_forward.h"
#include "engine/logprobs.h"
#include "vitrine/group.h"

namespace vitrine {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A sequence that is released whatever happens.
template <typename Stepper>
class OwnedSequence {
 public:
  explicit OwnedSequence(Stepper& engine) : engine_(engine), id_(engine.create_sequence()) {}
  ~OwnedSequence() { engine_.release(id_); }
  OwnedSequence(const OwnedSequence&) = delete;
  OwnedSequence& operator=(const OwnedSequence&) = delete;
  SequenceId id() const { return id_; }

 private:
  Stepper& engine_;
  SequenceId id_;
};

constexpr size_t kMaxFailures = 64;  // of a result

using engine::ConstraintGuide;
using engine::JumpForward;

// Of an engine, or of a federation in its place.
template <typename Stepper>
void check_generation(const Stepper& engine, std::span<const int32_t> prompt, int64_t held,
                      const GenerateOptions& options) {
  const int64_t context = engine.options().max_context;
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorKind::kInvalidArgument, what);
  };
  if (prompt.empty()) refuse("the prompt has no token; expected at least one");
  if (prompt_length > context - held) {
    refuse("the prompt has " + std::to_string(prompt_length) + " tokens" +
           (held > 0 ? " behind the " + std::to_string(held) + " of its sequence" : "") +
           ", but the context holds " + std::to_string(context) + "; shorten the prompt");
  }
  if (options.max_new_tokens < 0) {
    refuse("max_new_tokens is " + std::to_string(options.max_new_tokens) + "; expected 0 or more");
  }
  if (options.logprobs < -1) {
    refuse("logprobs is " + std::to_string(options.logprobs) +
           "; expected a number of alternatives, or -1 for none");
  }
  if (options.logprobs >= 0 && !engine.options().keep_logits) {
    refuse("logprobs of generated tokens need their logits; expected EngineOptions::keep_logits");
  }
  if (options.deadlock_retries < 0) {
    refuse("deadlock_retries is " + std::to_string(options.deadlock_retries) +
           "; expected 0 or more");
  }
  if (options.validator_retries < 0) {
    refuse("validator_retries is " + std::to_string(options.validator_retries) +
           "; expected 0 or more");
  }
  if (options.validator && options.constraint == nullptr) {
    refuse("a validator was given without a constraint; expected both, or none");
  }
}

/// One call of generate().
template <typename Stepper>
class Generation {
 public:
  Generation(Stepper& engine, SequenceId sequence, std::span<const int32_t> prompt,
             const GenerateOptions& options, const std::function<bool(const TokenEvent&)>& on_token)
      : engine_(engine),
        prompt_(prompt),
        options_(options),
        on_token_(on_token),
        held_(engine.length(sequence)),
        room_(std::min<int64_t>(
            options.max_new_tokens,
            engine.options().max_context - held_ - static_cast<int64_t>(prompt.size()) + 1)),
        sampler_(SamplerPipeline::from_options(options.sampler)) {
    result_.prompt_tokens = static_cast<int64_t>(prompt.size());
    result_.tokens.reserve(static_cast<size_t>(room_));
    input_.sequence = sequence;
    input_.sampler = &sampler_;
    input_.seed = options.sampler.seed;
    input_.branch = options.branch;
    if (options.constraint != nullptr && options.max_new_tokens > 0) {
      std::vector<int32_t> ends = engine.summary().eos_token_ids;
      ends.insert(ends.end(), options.stop_token_ids.begin(), options.stop_token_ids.end());
      std::ranges::sort(ends);
      ends.erase(std::ranges::unique(ends).begin(), ends.end());
      guide_.emplace(*options.constraint, engine.summary().vocab_size, std::move(ends),
                     banned_ids(options.sampler), options.sampler.ban, engine.tokens(sequence),
                     prompt, room_);
      if (options.jump_forward != nullptr)
        jump_.emplace(*options.jump_forward, options.sampler.ban);
    }
    pending_.reserve(static_cast<size_t>(room_) + 1);
  }

  GenerateResult run() {
    try {
      return answer();
    } catch (const Error& error) {
      if (!guide_ || guide_->problem().empty()) throw;
      throw Error(error.kind(), error.what() + tell_error());
    } catch (...) {
      if (guide_ && !guide_->problem().empty()) tell_error();
      throw;
    }
  }

 private:
  GenerateResult answer() {
    const Clock::time_point start = Clock::now();
    const bool goes_on = options_.max_new_tokens > 0 && is_led_on() && begin_jump();
    prefill(goes_on);
    result_.prefill_seconds = seconds_since(start);
    if (options_.max_new_tokens == 0) return std::move(result_);
    const Clock::time_point decode_start = Clock::now();
    if (next_ >= 0) decode();
    while (should_retry()) retry();
    const bool is_at_end =
        result_.reason == StopReason::kComplete || result_.reason == StopReason::kEndOfText;
    if (guide_ && is_at_end && guide_->was_limited()) {
      result_.reason = StopReason::kLengthConstrained;
    }
    if (guide_) {
      result_.constraint = guide_->counts();
      result_.is_complete = guide_->is_complete();
    }
    result_.decode_seconds = seconds_since(decode_start);
    return std::move(result_);
  }

  /// Records where the constraint stood when an attempt ended.
  void tell(ConstraintFailure::Kind kind, int32_t refused = -1) {
    ConstraintFailure failure = guide_->failure(kind);
    failure.attempt = attempt_;
    failure.sequence = input_.sequence;
    failure.token = refused;
    failure.position = held_ + result_.prompt_tokens + static_cast<int64_t>(result_.tokens.size()) -
                       (refused >= 0 ? 1 : 0);
    engine::tell_sink(engine_.audit_sink(), failure);
    if (result_.failures.size() < kMaxFailures) result_.failures.push_back(std::move(failure));
  }

  /// The same of what the constraint threw; returns where that was, to stand behind a message.
  std::string tell_error() {
    tell(ConstraintFailure::Kind::kError);
    if (result_.failures.empty()) return "";
    const ConstraintState& state = result_.failures.back().state;
    return "; it stood behind " + std::to_string(state.num_bytes) + " bytes of the answer" +
           (state.readings.empty() ? "" : ", " + state.readings.front());
  }

  /// In chunks; with log-probabilities of the prompt every token needs a row. `wants_token`: the
  /// prompt's last token is followed by what the constraint forces, if anything, and by a choice.
  void prefill(bool wants_token) {
    const EngineOptions& limits = engine_.options();
    const auto chunk = static_cast<size_t>(
        options_.prompt_logprobs ? std::min(limits.max_step_tokens, limits.max_logit_rows)
                                 : limits.max_step_tokens);
    // The last token goes with those that are forced behind it.
    const bool is_split = pending_.size() > 1;
    const auto now = prompt_.first(prompt_.size() - (is_split ? 1 : 0));
    for (size_t first = 0; first < now.size(); first += chunk) {
      const size_t count = std::min(chunk, now.size() - first);
      const bool last = first + count == prompt_.size();
      input_.tokens = now.subspan(first, count);
      input_.next_token = last ? -1 : prompt_[first + count];
      const bool chooses = last && wants_token;
      input_.rows = options_.prompt_logprobs ? StepInput::Rows::kAll
                    : chooses                ? StepInput::Rows::kLast
                                             : StepInput::Rows::kNone;
      step(chooses);
    }
    if (is_split) feed(wants_token);
  }

  /// Makes the next token's mask. False where the answer ends here; result_.reason says why.
  bool is_led_on() {
    if (!guide_ || !is_masked_) return true;
    const ConstraintGuide::Next next = guide_->prepare();
    if (next == ConstraintGuide::Next::kComplete) result_.reason = StopReason::kComplete;
    if (next == ConstraintGuide::Next::kDeadlock) {
      result_.reason = StopReason::kDeadlock;
      tell(ConstraintFailure::Kind::kDeadlock);
    }
    input_.allowed_tokens = guide_->mask();
    input_.constraint = guide_->decision();
    input_.constraint.attempt = attempt_;
    return next == ConstraintGuide::Next::kToken;
  }

  void step(bool chooses) {
    input_.goes_on = chooses && !guide_ && std::ssize(result_.tokens) + 1 < room_;
    const std::span<const StepOutput> outputs = engine_.step({&input_, 1});
    if (chooses) next_ = outputs.back().token;
    if (options_.logprobs >= 0) {
      const size_t count = static_cast<size_t>(input_.num_forced) + (chooses ? 1 : 0);
      for (size_t i = outputs.size() - count; i < outputs.size(); ++i) {
        const size_t behind = input_.tokens.size() - (outputs.size() - i) + 1;
        const int32_t token = behind < input_.tokens.size() ? input_.tokens[behind]
                              : chooses                     ? next_
                                                            : input_.next_token;
        result_.logprobs.push_back(token_logprobs(outputs[i].logits, token, options_.logprobs));
      }
    }
    if (chooses && guide_ && is_masked_) guide_->accept(next_, outputs.back().constraint);
  }

  /// Of a token that is not computed yet, and what the constraint forces behind it: takes that in,
  /// until pending_ holds all of it. False where the answer ends there.
  bool jump() {
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

  /// The same behind the prompt.
  bool begin_jump() {
    pending_.assign(1, prompt_.back());
    return jump();
  }

  /// Computes what is pending. `chooses`: a token follows; else the last one stays to be computed.
  void feed(bool chooses) {
    const EngineOptions& limits = engine_.options();
    const bool wants_rows = options_.logprobs >= 0 || limits.audit_mode != AuditMode::kNone;
    const auto chunk =
        static_cast<size_t>(wants_rows ? std::min(limits.max_step_tokens, limits.max_logit_rows)
                                       : limits.max_step_tokens);
    const std::span<const int32_t> tokens =
        std::span(pending_).first(pending_.size() - (chooses ? 0 : 1));
    for (size_t first = 0; first < tokens.size(); first += chunk) {
      input_.tokens = tokens.subspan(first, std::min(chunk, tokens.size() - first));
      const size_t next = first + input_.tokens.size();
      const bool is_last = next == pending_.size();
      input_.next_token = is_last ? -1 : pending_[next];
      input_.num_forced = static_cast<int32_t>(input_.tokens.size()) - (is_last ? 1 : 0);
      input_.rows = wants_rows && input_.num_forced > 0 ? StepInput::Rows::kAll
                    : is_last                           ? StepInput::Rows::kLast
                                                        : StepInput::Rows::kNone;
      step(is_last);
    }
    input_.num_forced = 0;
    input_.next_token = -1;
    input_.rows = StepInput::Rows::kLast;
  }

  bool is_end(int32_t token) const {
    const std::vector<int32_t>&ends = engine_.summary().eos_token_ids,
          &more = options_.stop_token_ids;
    return std::ranges::find(ends, token) != ends.end() ||
           std::ranges::find(more, token) != more.end();
  }

  void decode() {
    while (true) {
      const bool is_refused = !is_masked_ && !guide_->follow(next_);
      if (!take(next_, !is_refused && (!guide_ || guide_->is_complete()), is_refused)) return;
      pending_.assign(1, next_);
      if (!is_led_on()) return;
      const bool goes_on = jump();
      feed(goes_on);
      if (!goes_on) return;
    }
  }

  /// Adds a token to the answer. False where that ends.
  bool take(int32_t token, bool is_complete, bool is_refused = false) {
    const int64_t position =
        held_ + result_.prompt_tokens + static_cast<int64_t>(result_.tokens.size());
    result_.tokens.push_back(token);
    const auto ends = [&](StopReason reason) {
      result_.reason = reason;
      return false;
    };
    const auto logprobs = std::span<const TokenLogprobs>(result_.logprobs);
    const size_t known = std::min(logprobs.size(), result_.tokens.size());
    const TokenEvent event{token, position, attempt_, is_complete, logprobs.first(known)};
    if (on_token_ && !on_token_(event)) {
      return ends(StopReason::kCancelled);
    }
    if (is_refused) {  // the attempt is over
      tell(ConstraintFailure::Kind::kRefused, token);
      return ends(StopReason::kDeadlock);
    }
    // Under a constraint nothing can follow an end.
    if ((guide_ || !options_.ignore_end_of_text) && is_end(token)) {
      return ends(StopReason::kEndOfText);
    }
    const bool is_long = static_cast<int64_t>(result_.tokens.size()) >= options_.max_new_tokens;
    if (!is_long && position < engine_.options().max_context) return true;
    if (guide_ && !guide_->is_complete()) {
      tell(ConstraintFailure::Kind::kUnfinished);
      if (!is_masked_) return ends(StopReason::kDeadlock);
    }
    if (!is_long) return ends(StopReason::kContextFull);
    return ends(guide_ && is_masked_ && guide_->is_at_its_end() ? StopReason::kComplete
                                                                : StopReason::kLength);
  }

  /// Whether the answer does not stand and there is an attempt left.
  bool should_retry() {
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

  /// From the prompt's last token again, with other random numbers.
  void retry() {
    guide_->restart();
    ++attempt_;
    result_.tokens.clear();
    result_.logprobs.clear();
    input_.allowed_tokens = {};
    input_.constraint = {};
    input_.constraint.attempt = attempt_;
    input_.branch = options_.branch + (static_cast<uint32_t>(attempt_) << 16);
    engine_.truncate(input_.sequence, held_ + result_.prompt_tokens - 1);
    if (!is_led_on()) return;
    const bool goes_on = begin_jump();
    feed(goes_on);
    if (goes_on) decode();
  }

  Stepper& engine_;
  std::span<const int32_t> prompt_;
  const GenerateOptions& options_;
  const std::function<bool(const TokenEvent&)>& on_token_;
  int64_t held_, room_;
  std::vector<int32_t> pending_;  // not computed yet: a token, and what is forced behind it
  SamplerPipeline sampler_;
  StepInput input_;
  std::optional<ConstraintGuide> guide_;
  std::optional<JumpForward> jump_;
  int32_t attempt_ = 0, unmasked_attempts_ = 0, next_ = -1;
  bool is_masked_ = true;  // until a deadlock
  GenerateResult result_;
};

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kLength: return "length";
    case StopReason::kEndOfText: return "end of text";
    case StopReason::kContextFull: return "context full";
    case StopReason::kCancelled: return "cancelled";
    case StopReason::kComplete: return "complete";
    case StopReason::kDeadlock: return "deadlock";
    case StopReason::kRejected: return "rejected";
    case StopReason::kLengthConstrained: return "length_constrained";
  }
  return "?";
}

GenerateResult generate(Engine& engine, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  const OwnedSequence sequence(engine);
  return generate(engine, sequence.id(), prompt, options, on_token);
}

GenerateResult generate(Engine& engine, SequenceId sequence, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  check_generation(engine, prompt, engine.length(sequence), options);
  return Generation(engine, sequence, prompt, options, on_token).run();
}

GenerateResult generate(Federation& federation, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  const OwnedSequence sequence(federation);
  return generate(federation, sequence.id(), prompt, options, on_token);
}

GenerateResult generate(Federation& federation, SequenceId sequence,
                        std::span<const int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  check_generation(federation, prompt, federation.length(sequence), options);
  return Generation(federation, sequence, prompt, options, on_token).run();
}

}  // namespace vitrine
