// SPDX-License-Identifier: Apache-2.0
// The room `engine`: generation of one answer, whoever drives the steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/sample.h"
#include "vitrine/speculate.h"
#include "vitrine/step.h"
#include "vitrine/tokenizer.h"

namespace vitrine {

/// Why a text ended.
enum class StopReason : uint8_t {
  kLength,
  kEndOfText,
  kContextFull,
  kCancelled,
  kComplete,  ///< the constraint is met and nothing can follow
  kDeadlock,  ///< no token leads on under the constraint, and no attempt without it was valid
  kRejected,  ///< GenerateOptions::validator accepted no attempt
  kFailed,    ///< its input of a step failed (Stepper::failures), and accept() threw
  /// The answer is whole under its constraint and ended by itself, as with kComplete or kEndOfText,
  /// but at one of its tokens at least the limit of tokens ruled out what could have come
  /// otherwise.
  kLengthConstrained,
};
/// Returns "length", "end of text", "context full", "cancelled", "complete", "deadlock",
/// "rejected", "failed" or "length_constrained".
VITRINE_API std::string_view stop_reason_name(StopReason reason);

/// How far the steps of a prompt have come.
struct PromptProgress {
  int64_t done = 0;   ///< tokens of the prompt that are computed
  int64_t total = 0;  ///< all of them
};

/// What is generated, and how.
struct GenerateOptions {
  /// The host's sequence, which stays: the prompt is put behind what it holds, so that a beginning
  /// that is there already (Stepper::length, Stepper::truncate) is not computed twice. Afterwards
  /// it holds the prompt and every generated token but the last, however the answer ended. 0: a
  /// sequence of its own, which is released at the end.
  SequenceId sequence = 0;
  int max_new_tokens = 128;         ///< at most
  SamplerOptions sampler = {};      ///< how each token is chosen
  bool ignore_end_of_text = false;  ///< go on behind an end-of-text token
  bool prompt_logprobs = false;     ///< record log-probabilities of prompt tokens too
  /// Ids that end the text as the model's own end-of-text ids do (chat.h, end_of_turn_ids).
  std::vector<int32_t> stop_token_ids = {};
  /// GenerateResult::logprobs is filled, with so many alternatives a token; -1: it is not. Needs
  /// EngineOptions::keep_logits.
  int logprobs = -1;
  /// GenerateResult::prompt_logprobs is filled, with so many alternatives a token; -1: it is not.
  /// Needs EngineOptions::keep_logits; a step brings as many tokens of the prompt then as it may
  /// have rows.
  int prompt_scores = -1;
  uint32_t branch = 0;  ///< SampleContext::branch: candidates of one prompt draw different numbers
  /// Which tokens may come (not owned): it stands at the start of an answer and follows what is
  /// generated. An answer that ends, by the limit too, is whole: near the limit only tokens are
  /// allowed that leave room to finish (Constraint::tokens_to_finish). Null: any token.
  Constraint* constraint = nullptr;
  /// The tokenizer of the model, and of the constraint's ids: where the constraint forces text
  /// (Constraint::forced_text), it is spelt as this tokenizer does and fed in one step, in place of
  /// a step a token. What later tokens see is the same to the bit as if those had been chosen one
  /// by one. Must stay while the answer is being made. Null: every token is chosen.
  const Tokenizer* jump_forward = nullptr;
  /// How many attempts may follow a place where no token leads on. They run without a mask, each
  /// with random numbers of its own, until the constraint accepts one.
  int deadlock_retries = 0;
  /// The host's own check, since an answer that meets its constraint need not be right: asked about
  /// each whole answer, an end-of-text token included, before generate() returns. Where it says
  /// false, the answer is made again under the constraint with other random numbers,
  /// `validator_retries` times at most. At temperature 0 that is the same answer again. Runs on the
  /// calling thread; what it throws, generate() throws. Needs a constraint.
  std::function<bool(std::span<const int32_t> tokens)> validator = {};
  int validator_retries = 0;  ///< answers that are made again at most
  /// Where the context is full, the first `context_keep` positions of the sequence stay, half of
  /// those behind them are forgotten, and the rest is computed again behind what stayed: the answer
  /// goes on as that of a prompt of these tokens does, to the bit. It is no longer the answer to
  /// all that was said, and depends on how large the context is. It does not go with a constraint
  /// or a drafter.
  bool context_shift = false;
  int64_t context_keep = 0;  ///< at most two positions less than the context has
  /// Tokens are guessed ahead and checked several in a pass: what comes out is the same to the bit,
  /// whoever guesses. Attempts without a mask are made without guesses. Passes bring as many
  /// guesses as EngineOptions::max_step_tokens and max_logit_rows leave room for.
  SpeculationOptions speculation = {};
  /// A flag of the host's (not owned; null: none), which any thread may raise at any time: the
  /// answer ends with kCancelled, in the middle of a step too (StepInput::cancelled), with the
  /// tokens that it has. It stays raised until generate() has returned. A sequence of the host's
  /// then holds those of the prompt's tokens that earlier steps computed (Stepper::length), and can
  /// go on from there.
  const std::atomic<bool>* cancelled = nullptr;
  /// Called after each step of the prompt, the last one too, on the thread of generate() or
  /// accept(). Returning false cancels. EngineOptions::max_step_tokens is the distance between two
  /// calls.
  std::function<bool(const PromptProgress&)> on_progress = {};
};

/// What happened where an answer met the end of the context (GenerateOptions::context_shift).
struct ContextShift {
  int64_t tokens = 0;  ///< tokens of the answer before it
  int64_t kept = 0;    ///< positions that stayed as they were
  /// Positions behind the kept ones that were forgotten; what was left was computed again.
  int64_t dropped = 0;
};

/// A generated token in the model's own softmax: before any sampler stage.
struct TokenLogprobs {
  int32_t token = 0;                             ///< its id
  double logprob = 0;                            ///< nats
  std::vector<std::pair<int32_t, double>> best;  ///< id, nats: the most probable, ties by lower id
  int32_t rank = 0;  ///< 1: it is the most probable one; counts tokens with a larger logit
};

/// A generated token, as it is made.
struct TokenEvent {
  int32_t token = 0;     ///< its id
  int64_t position = 0;  ///< in the sequence, from 0
  int32_t attempt = 0;   ///< counts GenerateOptions' retries: when it grows, the text begins anew
  bool is_complete = true;  ///< false: a constraint accepts no answer that ends here, so that no
                            ///< stop of the host's should act
  /// Log-probabilities of the attempt's tokens, from the first on, where they were asked for: up to
  /// this token, or fewer where a constraint forces tokens before their logits are computed. Valid
  /// in the callback.
  std::span<const TokenLogprobs> logprobs = {};
  /// GenerateResult::prompt_logprobs. Valid in the callback.
  std::span<const TokenLogprobs> prompt_logprobs = {};
};

/// What a constraint did in one run.
struct ConstraintCounts {
  int64_t masks = 0;       ///< tokens that were chosen under a mask
  int64_t forced = 0;      ///< those of `masks` with one token allowed
  int64_t jumped = 0;      ///< further tokens, forced ones that jump-forward fed without a choice
  int64_t rejections = 0;  ///< those of `masks` where the model's first choice was ruled out
  int64_t limited = 0;     ///< those of `masks` where ConstraintDecision::is_limited
  int64_t deadlocks = 0;   ///< places where no token was left
  int64_t retries = 0;     ///< attempts that followed deadlocks
  int64_t rejected_answers = 0;  ///< answers that GenerateOptions::validator refused
  double mask_seconds = 0;       ///< time that masks took
  /// Adds the counts of another run.
  ConstraintCounts& operator+=(const ConstraintCounts& other) {
    masks += other.masks, forced += other.forced, jumped += other.jumped;
    rejections += other.rejections, limited += other.limited;
    deadlocks += other.deadlocks, retries += other.retries;
    rejected_answers += other.rejected_answers;
    mask_seconds += other.mask_seconds;
    return *this;
  }
};

/// What generate() made.
struct GenerateResult {
  std::vector<int32_t> tokens;              ///< the generated ones, an end-of-text token included
  StopReason reason = StopReason::kLength;  ///< why it ended
  ConstraintCounts constraint;              ///< all 0 without a constraint
  bool is_complete = true;  ///< false: a constraint accepts no answer that ends here
  /// Where the constraint stood when an answer or an attempt at one was given up, in that order;
  /// the first 64.
  std::vector<ConstraintFailure> failures;
  int64_t prompt_tokens = 0;            ///< the prompt's length
  double prefill_seconds = 0;           ///< time that the prompt took
  double decode_seconds = 0;            ///< time that the generated tokens took
  std::vector<TokenLogprobs> logprobs;  ///< one a token, where they were asked for
  /// [prompt_tokens - 1] each of the prompt's tokens but the first, where they were asked for.
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<ContextShift> shifts;  ///< in order
  SpeculationCounts speculation;     ///< all 0 where nobody guessed
};

/// One answer that is being made, step by step: it says what it wants of the next step and takes
/// what came of it. generate() is a loop over it; a scheduler drives any number through one step.
///
///     Generation generation(engine, prompt_ids, options);
///     while (!generation.finished()) {
///       const StepInput input = generation.next_input();
///       generation.accept(engine.step({&input, 1}));
///     }
///
/// It can be left alone between any two steps and gone on with later; other sequences may be
/// stepped meanwhile, and its blocks given up (preempt). Where a step throws kCancelled, whoever
/// drives it calls cancel() of those whose flag is raised and asks the others for their input
/// again. Not thread-safe. The prompt is copied; everything else that is given to it must stay.
class VITRINE_API Generation {
 public:
  /// Checks what it is given, and runs what comes before the first step: a constraint's first mask,
  /// and what that forces. The callback runs inside accept(), or here, after each token; returning
  /// false cancels. Throws kInvalidArgument for an empty prompt, an id out of range, a prompt
  /// longer than the context, a constraint over another number of ids, or one that no answer within
  /// max_new_tokens is known to meet.
  Generation(Stepper& stepper, std::span<const int32_t> prompt, const GenerateOptions& options,
             std::function<bool(const TokenEvent&)> on_token = {});
  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;
  /// Releases the sequence where it is its own.
  ~Generation();

  /// Returns the sequence that it works on.
  SequenceId sequence() const;
  /// Returns true where there is no further step.
  bool finished() const;
  /// Returns what it wants of the next step; its spans and pointers are valid until accept(). The
  /// input may bring as many tokens as EngineOptions::max_step_tokens and as many rows as
  /// max_logit_rows; `most_tokens` and `most_rows` (at least 1) are a scheduler's limits below
  /// these. Asked again before accept(), it answers anew. Throws kInvalidArgument where it has
  /// finished.
  StepInput next_input(int64_t most_tokens = INT64_MAX, int64_t most_rows = INT64_MAX);
  /// Asks the drafters for guesses in these answers, each drafter once for all of its texts, where
  /// the answers' next steps want some. Call it before next_input(), which asks for its own answer
  /// alone where nobody has asked.
  static void draft(std::span<Generation* const> answers);
  /// Takes the outputs of the input that next_input() gave last, those of its rows alone and in
  /// their order, and goes on with them: tells the callback, follows the constraint, begins another
  /// attempt. When it returns, the sequence is truncated to what belongs to the answer. Throws what
  /// the callback, the validator and the constraint throw, and what its input met where that failed
  /// alone (Stepper::failures); it has finished then, and others go on.
  void accept(std::span<const StepOutput> outputs);
  /// Gives up the keys and values of its sequence (Stepper::preempt), between steps: its next step
  /// computes them again, and the answer is the same to the bit.
  void preempt();
  /// Ends the answer with kCancelled, between steps or where one was cancelled.
  void cancel();
  /// Returns what was made so far; whole where it has finished.
  const GenerateResult& result() const;
  /// Moves the result out, once it has finished.
  GenerateResult take_result();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Generates from a prompt: a Generation that is driven to its end on the calling thread. The
/// callback runs on it, too, after each token; returning false cancels. Throws what Generation and
/// Stepper::step throw, but for kCancelled of a flag that is raised (GenerateOptions::cancelled,
/// EngineOptions::cancelled): the answer ends with that reason.
VITRINE_API GenerateResult generate(Stepper& stepper, std::span<const int32_t> prompt,
                                    const GenerateOptions& options,
                                    const std::function<bool(const TokenEvent&)>& on_token = {});

/// Measures what passes of 1, 2, 3, 4, 6, 8, 12 and 16 tokens of one sequence cost, as far as
/// `max_tokens`, the engine's limits and its context allow, for SpeculationOptions::costs. A cost
/// is the median of `repeats` rounds, or of those that begin within `seconds`, with other tokens in
/// each. The passes run in a sequence of their own; an audit sink sees the steps. Throws
/// kInvalidArgument for numbers below 1, and what Stepper::step throws.
VITRINE_API PassCosts measure_pass_costs(Stepper& stepper, int32_t max_tokens = 16, int repeats = 5,
                                         double seconds = 1e9);

}  // namespace vitrine
