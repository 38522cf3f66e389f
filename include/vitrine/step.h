// SPDX-License-Identifier: Apache-2.0
// The room `engine`: what a step takes and gives, and who steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "vitrine/audit.h"
#include "vitrine/combiner.h"
#include "vitrine/core.h"
#include "vitrine/sample.h"

namespace vitrine {

class Engine;
struct EngineOptions;
struct ModelSummary;

namespace core {
class PieceThreads;
}  // namespace core

/// Names a sequence of one engine; none is 0.
using SequenceId = uint64_t;

/// Names a prefix that an engine keeps; none is 0, and none is a sequence's name.
using PrefixId = uint64_t;

/// Asked while a step runs which tokens may be chosen: for masks that are not known when the step
/// begins, and for those behind drafts, which hang on what was chosen before. Called on the step's
/// thread, for one row at a time, in the order of positions. What it throws, the step throws, and
/// nothing has changed then.
class VITRINE_API ChoiceGuide {
 public:
  virtual ~ChoiceGuide() = default;
  /// [(vocabulary + 31) / 32] which tokens may stand at `position`, by bit (as
  /// Constraint::allowed_tokens); empty: any. Must stay until the step returns, those of earlier
  /// rows too. `decision` is recorded with the choice; the engine adds `allowed`, `removed` and
  /// `first_ruled_out`. Where a device computes the step, the first row's is asked for meanwhile.
  virtual std::span<const uint32_t> allowed_tokens(int64_t position,
                                                   ConstraintDecision& decision) = 0;
  /// Told the token that was chosen to stand there.
  virtual void chosen(int64_t /*position*/, int32_t /*token*/) {}
};

/// What one sequence brings to a step.
///
/// Each token may have a row of logits, which tell what follows it. What follows is known, and the
/// row scores it, or it is chosen: by the last row where `next_token` is not given, and by those
/// before `num_drafts` drafts. All choices of an input are made by its sampler, each with the
/// history and the random numbers of its own position, in the order of positions, and only until
/// one differs from the draft that stands there: what is chosen is what would have been chosen one
/// step a token.
struct StepInput {
  SequenceId sequence = 0;          ///< it is created already
  std::span<const int32_t> tokens;  ///< at least one
  /// Which tokens get logits.
  enum class Rows : uint8_t { kNone, kLast, kAll };
  Rows rows = Rows::kLast;  ///< which tokens get logits
  int32_t next_token = -1;  ///< the id known to follow the last token (a prompt is being scored);
                            ///< -1: it is chosen
  /// So many of the last of `tokens` are guesses: the rows before them choose, too, and count
  /// where their choice is the guess. Needs rows other than kNone, one token before them, and
  /// neither next_token, num_forced nor allowed_tokens. The sequence holds all of `tokens` after
  /// the step; truncate() takes back those that were not chosen.
  int32_t num_drafts = 0;
  /// [num_drafts] where drafts are a tree: behind which of `tokens` each stands, by its index
  /// there, before its own; the last token that is no draft has the first index that may be named.
  /// Drafts behind the same one differ. Each sees those that it stands behind, at their positions,
  /// with the bits of a chain. The sequence holds those that were chosen after the step, and no
  /// others. Empty: a chain. Not for models that keep a state.
  std::span<const int32_t> draft_parents = {};
  SamplerPipeline* sampler = nullptr;  ///< for what is chosen; null: greedy
  /// Which tokens may be chosen, by bit (Constraint::allowed_tokens); empty: any. The host chooses
  /// then, greedy too.
  std::span<const uint32_t> allowed_tokens = {};
  ChoiceGuide* guide = nullptr;  ///< in place of allowed_tokens; the host chooses then, too
  /// How many of the last ones behind the first of `tokens` (`next_token` counts where it is known)
  /// had no alternative under a constraint: what predicted them is recorded as a choice of one
  /// token, where it has a row.
  int32_t num_forced = 0;
  /// Recorded with the choice. The engine adds `allowed`, `removed` and `first_ruled_out`.
  ConstraintDecision constraint = {};
  uint64_t seed = 0;    ///< of this choice
  uint32_t branch = 0;  ///< SampleContext::branch of this choice
  /// Routes that run instead of the router's, by token, then layer. A token and layer that is named
  /// needs all its top-k slots, in slot order; others route freely. A weight given for one slot
  /// leaves the others as they are. What is recorded is what ran.
  std::span<const ForcedRoute> routes = {};
  /// The token that is chosen will most likely be the sequence's only one in the next step, in
  /// which the same inputs stand in the same order. Where all inputs of a step say so, a device may
  /// start that step before this one's results are on the host. It changes no result: where another
  /// step comes, that one is run, and what was computed in vain is recorded nowhere.
  bool goes_on = false;
  /// A flag of the host's (not owned; null: none), which any thread may raise at any time: the step
  /// throws kCancelled then, soon and where it stands, and all of its sequences are as they were
  /// before it. Where one input's is raised, the step of all ends; the others can be stepped again
  /// without that one. It stays raised until the step has returned. A step that was about to end
  /// may still end well; the next one that is given the flag does not begin.
  const std::atomic<bool>* cancelled = nullptr;
};

/// One row of logits. Spans are valid until the next step.
struct StepOutput {
  SequenceId sequence = 0;  ///< the input's
  int64_t position = 0;     ///< of the token whose output this is; `token` would stand one later
  /// What was chosen where the row chooses; else the token that comes next, which the row scores.
  /// -1: a row behind a draft that was not chosen, which nobody looked at, or of an input that
  /// failed.
  int32_t token = -1;
  bool failed = false;  ///< its input did: Stepper::failures() says why
  /// [vocabulary] logits, or log-probabilities where StepperTraits::gives_logprobs says so; empty
  /// where they were not read back.
  std::span<const float> scores;
  ConstraintDecision constraint;  ///< of a choice with a mask; `removed` where it was recorded
  /// [hidden_size] what the output head reads, after the final norm; where it was asked for
  std::span<const float> hidden_state;
};

/// An input of a step that failed while the others did not.
struct StepFailure {
  SequenceId sequence = 0;                ///< the input's; it is as it was before the step
  ErrorKind kind = ErrorKind::kInternal;  ///< of what it met; kInternal also for what is no Error
  std::string message;                    ///< what that says
  std::exception_ptr error;               ///< that itself
};

/// The beginning of a sequence that an engine keeps.
struct KvPrefix {
  std::span<const int32_t> tokens;  ///< of its positions; valid until it is released
  int adapter = -1;                 ///< which its keys and values were made with, -1: none, or the
                                    ///< sum of EngineOptions::lora
  int64_t blocks = 0;               ///< that it holds, shared or not
};

/// What a step would take of an engine, and what there is.
struct StepFit {
  int64_t tokens = 0;       ///< that its inputs bring
  int64_t max_tokens = 0;   ///< EngineOptions::max_step_tokens
  int64_t rows = 0;         ///< of logits that they ask for
  int64_t max_rows = 0;     ///< EngineOptions::max_logit_rows
  int64_t blocks = 0;       ///< that it takes from the pool, copies of shared ones among them
  int64_t free_blocks = 0;  ///< of the pool
  /// Earlier tokens of its sequences that it has to compute again before, in passes of their own:
  /// those whose state or windows gave way to another sequence's or were cut off, and those that
  /// were given up (Stepper::preempt).
  int64_t rerun_tokens = 0;
  SequenceId full_sequence = 0;  ///< the first one that would outgrow max_context; 0: none

  /// Whether there is room for all of it.
  bool fits() const {
    return tokens > 0 && tokens <= max_tokens && rows <= max_rows && blocks <= free_blocks &&
           full_sequence == 0;
  }
};

/// What a stepper does, beside stepping.
struct StepperTraits {
  bool runs_trees = false;         ///< drafts may be a tree (StepInput::draft_parents)
  bool samples_on_device = false;  ///< a sampler's stages may choose there, without logits
  /// StepOutput::scores are log-probabilities: they are normalised.
  bool gives_logprobs = false;
  bool records = true;        ///< an audit sink may be set
  bool keeps_states = false;  ///< it resumes a prefix only where a state of it is kept
  int num_specialists = 0;    ///< whose distributions become one (Stepper::shares); 0: one model
};

/// Lends the threads of a stepper's steps to work between two of them. Thread-safe.
class VITRINE_API ThreadLender {
 public:
  virtual ~ThreadLender() = default;
  /// The threads, where no step is under way and nobody else has them; else null. Until
  /// give_back() a step waits, so that is called soon, on the same thread.
  virtual core::PieceThreads* borrow() = 0;
  /// Ends a loan that was not null.
  virtual void give_back() = 0;
};

/// Whatever steps over sequences of tokens: an Engine, a Federation, a Model. What generates and
/// what schedules works on this, and needs to know no more. One thread at a time, but for release()
/// and release_prefix() and what only reads (length(), tokens(), prefix(), resumed_length(),
/// kv_blocks(), fits()), which wait for another thread's call. A host that adds something to one
/// derives from ForwardingStepper.
class VITRINE_API Stepper {
 public:
  virtual ~Stepper() = default;
  /// Returns the facts about the model.
  virtual const ModelSummary& summary() const = 0;
  /// Returns the options, with what stands for defaults.
  virtual const EngineOptions& options() const = 0;

  /// `adapter`: which of EngineOptions::adapters its tokens go through, -1: none, or
  /// the sum of EngineOptions::lora. Throws
  /// kInvalidArgument for one that is not there.
  virtual SequenceId create_sequence(int adapter) = 0;
  /// Makes a sequence without an adapter.
  SequenceId create_sequence() { return create_sequence(-1); }
  /// A new sequence with the same past. Full blocks are shared and counted; a partial one is
  /// copied.
  virtual SequenceId fork(SequenceId sequence) = 0;
  /// Forgets everything from position `length` on.
  virtual void truncate(SequenceId sequence, int64_t length) = 0;
  /// Forgets a sequence; its id is not used again. It is gone, too, where the audit sink throws
  /// when it is told, which becomes a warning.
  virtual void release(SequenceId sequence) = 0;
  /// Returns the tokens that the sequence holds.
  virtual int64_t length(SequenceId sequence) const = 0;
  /// All tokens of the sequence, [length]. Valid until the sequence changes.
  virtual std::span<const int32_t> tokens(SequenceId sequence) const = 0;

  /// Of the tokens that the last step which the sequence was in brought it, the first `count` stay
  /// (a draft's that were accepted); the others are forgotten as by truncate(). Throws
  /// kInvalidArgument for more than it brought and still has.
  virtual void keep(SequenceId sequence, int64_t count) = 0;

  /// Keeps the first `length` positions of a sequence, whatever becomes of that: it goes on, is
  /// truncated or released. Their blocks stay where they are, counted once more; whoever writes
  /// behind them into the last one copies it. Takes no memory of the pool itself. Throws
  /// kInvalidArgument for more positions than there are. In an audit log the prefix is a fork of
  /// the sequence which no step touches.
  virtual PrefixId retain(SequenceId sequence, int64_t length) = 0;
  /// A new sequence that begins with the first `length` positions of a prefix, under its adapter.
  /// What follows has the bits that it has behind the same tokens without reuse. Throws as
  /// create_sequence() does, and kInvalidArgument for more positions than there are. In an audit
  /// log it is a fork of the prefix.
  virtual SequenceId attach(PrefixId prefix, int64_t length) = 0;
  /// The same with all of it.
  SequenceId attach(PrefixId prefix) {
    return attach(prefix, static_cast<int64_t>(this->prefix(prefix).tokens.size()));
  }
  /// Returns what a prefix is. Throws kInvalidArgument for an unknown one.
  virtual KvPrefix prefix(PrefixId prefix) const = 0;
  /// How many of the first `length` positions of a prefix attach() resumes for free: a step of the
  /// sequence computes the others again (StepFit::rerun_tokens), since a state or a window of these
  /// is not kept. The largest such number below any `length` is found by asking with it. Throws
  /// kInvalidArgument for an unknown prefix, and more positions than there are.
  virtual int64_t resumed_length(PrefixId prefix, int64_t length) const = 0;
  /// Forgets a prefix; sequences that began with it stay.
  virtual void release_prefix(PrefixId prefix) = 0;
  /// Gives up the keys, values and states of a sequence, which keeps its tokens: its next step
  /// computes them again before, in passes of their own that nobody records
  /// (StepFit::rerun_tokens), and goes on with the same bits. For a scheduler that needs the blocks
  /// for others. Throws kInvalidArgument for an unknown sequence, and one of which some layers have
  /// fewer positions than others; a step behind forced routes fails then (kUnsupported).
  virtual void preempt(SequenceId sequence) = 0;
  /// Blocks of keys and values: free, and in total.
  virtual std::pair<int64_t, int64_t> kv_blocks() const = 0;

  /// What a step of these inputs would take, as step() itself finds it, and what there is. Nothing
  /// changes. Throws kInvalidArgument for an unknown sequence, or one that stands twice.
  virtual StepFit fits(std::span<const StepInput> inputs) const = 0;
  /// Rows of logits that an input asks for, which is also how many outputs a step has of it.
  static int64_t row_count(const StepInput& input);
  /// Returns what it does beside stepping.
  virtual StepperTraits traits() const = 0;
  /// Who lends the threads of its steps to drafters; null: nobody.
  virtual ThreadLender* thread_lender() { return nullptr; }
  /// The one engine that runs its steps, for what no other stepper has (layers by themselves,
  /// taps); null: there are several, or none.
  virtual Engine* engine() { return nullptr; }

  /// Runs one pass over all inputs. Allocates nothing, reads back once. Throws kInvalidArgument for
  /// an id out of range, an unknown sequence, too many tokens, a context that is full, or forced
  /// routes that do not fit the model; kOutOfMemory where the KV pool has no block left (forks
  /// share theirs until they part); kCancelled where a flag was raised (StepInput::cancelled,
  /// EngineOptions::cancelled); then nothing has changed. The span is valid until the next step.
  ///
  /// An input of several fails alone: logits that are not finite, a guide, sampler stage or
  /// sequence's sink (SequenceSinks) that throws, a state that cannot be made again. Its sequence
  /// is as it was before the step then, failures() says why, and its outputs are `failed`. The
  /// others have what they have without it: the pass is run again for these, so their guides and
  /// samplers may be asked for a position twice, and it counts and is recorded once. What an input
  /// that is alone meets, or what all of them meet, the step throws.
  virtual std::span<const StepOutput> step(std::span<const StepInput> inputs) = 0;
  /// The inputs of the last step that failed alone, if any. Valid until the next step.
  virtual std::span<const StepFailure> failures() const = 0;
  /// [StepperTraits::num_specialists] what each of a federation's specialists had to do with the
  /// token of an output of the last step; empty where there are none. Throws kInvalidArgument for
  /// an output that there is not.
  virtual std::span<const SpecialistShare> shares(size_t /*output*/) const { return {}; }

  /// [tokens, feature_layers * hidden_size] the residual stream as it entered
  /// EngineOptions::feature_layers, of each token that the sequence brought to the last step. Empty
  /// where there is none. Valid until the next step.
  virtual std::span<const float> features(SequenceId /*sequence*/) const { return {}; }

  /// Says where records go (not owned; null: nowhere). Takes effect with the next step; calls
  /// open().
  virtual void set_audit_sink(AuditSink* sink) = 0;
  /// Returns what set_audit_sink() was given, or null.
  virtual AuditSink* audit_sink() const = 0;
  /// Returns where values lie in the records.
  virtual const AuditLayout& audit_layout() const = 0;
  /// Switches the recorder between steps, so that modes can be compared on one engine, whichever it
  /// was loaded with. Throws kUnsupported for kNaive where CUDA's fused kernels run, which record
  /// in the step's graph alone.
  virtual void set_audit_mode(AuditMode mode) = 0;
};

/// Gives all calls to another stepper: what a host derives from that adds to some of them, and
/// keeps all the rest.
class ForwardingStepper : public Stepper {
 public:
  /// `stepper` must stay.
  explicit ForwardingStepper(Stepper& stepper) : stepper_(stepper) {}
  /// Around one of the same type: name it as a Stepper.
  ForwardingStepper(const ForwardingStepper&) = delete;
  ForwardingStepper& operator=(const ForwardingStepper&) = delete;
  using Stepper::attach;
  using Stepper::create_sequence;
  const ModelSummary& summary() const override { return stepper_.summary(); }
  const EngineOptions& options() const override { return stepper_.options(); }
  SequenceId create_sequence(int adapter) override { return stepper_.create_sequence(adapter); }
  SequenceId fork(SequenceId sequence) override { return stepper_.fork(sequence); }
  void truncate(SequenceId sequence, int64_t length) override {
    stepper_.truncate(sequence, length);
  }
  void release(SequenceId sequence) override { stepper_.release(sequence); }
  int64_t length(SequenceId sequence) const override { return stepper_.length(sequence); }
  std::span<const int32_t> tokens(SequenceId sequence) const override {
    return stepper_.tokens(sequence);
  }
  void keep(SequenceId sequence, int64_t count) override { stepper_.keep(sequence, count); }
  PrefixId retain(SequenceId sequence, int64_t length) override {
    return stepper_.retain(sequence, length);
  }
  SequenceId attach(PrefixId prefix, int64_t length) override {
    return stepper_.attach(prefix, length);
  }
  KvPrefix prefix(PrefixId prefix) const override { return stepper_.prefix(prefix); }
  int64_t resumed_length(PrefixId prefix, int64_t length) const override {
    return stepper_.resumed_length(prefix, length);
  }
  void release_prefix(PrefixId prefix) override { stepper_.release_prefix(prefix); }
  void preempt(SequenceId sequence) override { stepper_.preempt(sequence); }
  std::pair<int64_t, int64_t> kv_blocks() const override { return stepper_.kv_blocks(); }
  StepFit fits(std::span<const StepInput> inputs) const override { return stepper_.fits(inputs); }
  StepperTraits traits() const override { return stepper_.traits(); }
  ThreadLender* thread_lender() override { return stepper_.thread_lender(); }
  Engine* engine() override { return stepper_.engine(); }
  std::span<const StepOutput> step(std::span<const StepInput> inputs) override {
    return stepper_.step(inputs);
  }
  std::span<const StepFailure> failures() const override { return stepper_.failures(); }
  std::span<const SpecialistShare> shares(size_t output) const override {
    return stepper_.shares(output);
  }
  std::span<const float> features(SequenceId sequence) const override {
    return stepper_.features(sequence);
  }
  void set_audit_sink(AuditSink* sink) override { stepper_.set_audit_sink(sink); }
  AuditSink* audit_sink() const override { return stepper_.audit_sink(); }
  const AuditLayout& audit_layout() const override { return stepper_.audit_layout(); }
  void set_audit_mode(AuditMode mode) override { stepper_.set_audit_mode(mode); }

 protected:
  /// Returns whom the calls go to.
  Stepper& stepper() const { return stepper_; }

 private:
  Stepper& stepper_;
};

}  // namespace vitrine
