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

/// Says, while a step runs, which tokens may be chosen. It serves masks that are not known when the
/// step begins, and masks behind drafts, which depend on what was chosen before. It is called on
/// the step's thread, for one row at a time, in the order of positions. What it throws, the step
/// throws, and nothing has changed then.
class VITRINE_API ChoiceGuide {
 public:
  virtual ~ChoiceGuide() = default;
  /// Returns the mask of the tokens that may stand at `position`: [(vocabulary + 31) / 32] words
  /// with a bit for each token (as Constraint::allowed_tokens); empty: any token may. The mask must
  /// stay until the step returns, and so must those of earlier rows. `decision` is recorded with
  /// the choice; the engine adds `allowed`, `removed` and `first_ruled_out`. Where a device
  /// computes the step, the first row's mask is asked for meanwhile.
  virtual std::span<const uint32_t> allowed_tokens(int64_t position,
                                                   ConstraintDecision& decision) = 0;
  /// Tells it which token was chosen to stand at `position`.
  virtual void chosen(int64_t /*position*/, int32_t /*token*/) {}
};

/// What one sequence brings to a step.
///
/// Each token may have a row of logits, which say what follows it. A row either scores a token that
/// is known to follow, or chooses one. The last row chooses where `next_token` is not given, and so
/// do the rows before the `num_drafts` drafts. The input's sampler makes these choices in the order
/// of positions, each with the history and the random numbers of its own position, until one
/// differs from the draft that stands there. So it chooses what it would have chosen in steps of
/// one token.
struct StepInput {
  SequenceId sequence = 0;          ///< it has been created
  std::span<const int32_t> tokens;  ///< at least one
  /// Which tokens get logits.
  enum class Rows : uint8_t { kNone, kLast, kAll };
  Rows rows = Rows::kLast;  ///< which tokens get logits
  int32_t next_token = -1;  ///< the id known to follow the last token (a prompt is being scored);
                            ///< -1: it is chosen
  /// How many of the last of `tokens` are guesses. The rows before them choose, too, and count as
  /// far as they choose the guesses. Needs rows other than kNone, one token before them, and
  /// neither next_token, num_forced nor allowed_tokens. The sequence holds all of `tokens` after
  /// the step; truncate() takes back those that were not chosen.
  int32_t num_drafts = 0;
  /// [num_drafts] for drafts that are a tree: the index in `tokens` of the token behind which each
  /// one stands. That is below the draft's own index, and not below that of the last token that is
  /// no draft. Drafts behind the same token differ. Each sees the drafts on its path, at their
  /// positions, with the bits of a chain. After the step the sequence holds the drafts that were
  /// chosen, and no others. Empty: a chain. Models that keep a state take no trees.
  std::span<const int32_t> draft_parents = {};
  SamplerPipeline* sampler = nullptr;  ///< for what is chosen; null: greedy
  /// Which tokens may be chosen, by bit (Constraint::allowed_tokens); empty: any. The host chooses
  /// then, greedy too.
  std::span<const uint32_t> allowed_tokens = {};
  ChoiceGuide* guide = nullptr;  ///< says it in place of allowed_tokens; the host chooses then, too
  /// How many of the last tokens had no alternative under a constraint. A `next_token` that is
  /// known counts as the last one, and the first of `tokens` cannot be among them. The row that
  /// predicted such a token, if there is one, is recorded as a choice of one token.
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
  /// A flag of the host's (not owned; null: none), which any thread may raise at any time and which
  /// stays raised until the step has returned. The step throws kCancelled then, soon and where it
  /// stands, and all of its sequences are as they were before it. Where one input's flag is raised,
  /// the step of all inputs ends; the others can be stepped again without that one. A step that was
  /// about to end may still end well; the next one that is given the flag does not begin.
  const std::atomic<bool>* cancelled = nullptr;
};

/// One row of logits. Spans are valid until the next step.
struct StepOutput {
  SequenceId sequence = 0;  ///< the input's
  int64_t position = 0;  ///< that of the token whose output this is; `token` would stand one later
  /// The token that the row chose, or the token that comes next, which it scored. -1: the row
  /// stands behind a draft that was not chosen, so that nobody looked at it, or its input failed.
  int32_t token = -1;
  bool failed = false;  ///< its input failed: Stepper::failures() says why
  /// [vocabulary] logits, or log-probabilities where StepperTraits::gives_logprobs says so; empty
  /// where they were not read back.
  std::span<const float> scores;
  /// What a mask did to the choice; `removed` where it was recorded.
  ConstraintDecision constraint;
  /// [hidden_size] what the output head reads, after the final norm, where it was asked for.
  std::span<const float> hidden_state;
};

/// An input of a step that failed while the others did not.
struct StepFailure {
  SequenceId sequence = 0;                ///< the input's; it is as it was before the step
  ErrorKind kind = ErrorKind::kInternal;  ///< the kind of the error; kInternal for what is no Error
  std::string message;                    ///< the error's message
  std::exception_ptr error;               ///< the error itself
};

/// The beginning of a sequence that an engine keeps.
struct KvPrefix {
  std::span<const int32_t> tokens;  ///< those of its positions; valid until it is released
  int adapter = -1;                 ///< which its keys and values were made with, -1: none, or the
                                    ///< sum of EngineOptions::lora
  int64_t blocks = 0;               ///< blocks that it holds, shared or not
};

/// What a step would take of an engine, and what there is.
struct StepFit {
  int64_t tokens = 0;      ///< tokens that its inputs bring
  int64_t max_tokens = 0;  ///< EngineOptions::max_step_tokens
  int64_t rows = 0;        ///< rows of logits that its inputs ask for
  int64_t max_rows = 0;    ///< EngineOptions::max_logit_rows
  int64_t blocks = 0;      ///< blocks that it takes from the pool, copies of shared ones among them
  int64_t free_blocks = 0;  ///< blocks of the pool that are free
  /// Earlier tokens of its sequences that it has to compute again first, in passes of their own:
  /// those whose state or windows gave way to another sequence's or were cut off, and those that
  /// were given up (Stepper::preempt).
  int64_t rerun_tokens = 0;
  SequenceId full_sequence = 0;  ///< the first one that would outgrow max_context; 0: none

  /// Returns true where there is room for all of it.
  bool fits() const {
    return tokens > 0 && tokens <= max_tokens && rows <= max_rows && blocks <= free_blocks &&
           full_sequence == 0;
  }
};

/// What a stepper can do, beside stepping.
struct StepperTraits {
  bool runs_trees = false;         ///< drafts may be a tree (StepInput::draft_parents)
  bool samples_on_device = false;  ///< a sampler's stages may choose there, without logits
  /// StepOutput::scores are log-probabilities: they are normalised.
  bool gives_logprobs = false;
  bool records = true;        ///< an audit sink may be set
  bool keeps_states = false;  ///< it resumes a prefix only where a state of it is kept
  /// Specialists whose distributions become one (Stepper::shares); 0: one model.
  int num_specialists = 0;
};

/// Lends the threads of a stepper's steps to work between two of them. Thread-safe.
class VITRINE_API ThreadLender {
 public:
  virtual ~ThreadLender() = default;
  /// Returns the threads; null where a step is under way or somebody else has them. A step waits
  /// until give_back(), which has to be called soon, on the same thread.
  virtual core::PieceThreads* borrow() = 0;
  /// Ends a loan that was not null.
  virtual void give_back() = 0;
};

/// Whatever steps over sequences of tokens: an Engine, a Federation, a Model. What generates and
/// what schedules works on this, and needs to know no more. It is used by one thread at a time, but
/// for release() and release_prefix() and what only reads (length(), tokens(), prefix(),
/// resumed_length(), kv_blocks(), fits()), which wait for another thread's call. A host that adds
/// something to one derives from ForwardingStepper.
class VITRINE_API Stepper {
 public:
  virtual ~Stepper() = default;
  /// Returns the facts about the model.
  virtual const ModelSummary& summary() const = 0;
  /// Returns the options, with what stands for defaults.
  virtual const EngineOptions& options() const = 0;

  /// Makes an empty sequence. `adapter`: which of EngineOptions::adapters its tokens go through;
  /// -1: none, or the sum of EngineOptions::lora. Throws kInvalidArgument for an adapter that is
  /// not there.
  virtual SequenceId create_sequence(int adapter) = 0;
  /// Makes a sequence without an adapter.
  SequenceId create_sequence() { return create_sequence(-1); }
  /// Makes a new sequence with the same past. Full blocks are shared and counted; a partial one is
  /// copied.
  virtual SequenceId fork(SequenceId sequence) = 0;
  /// Forgets everything from position `length` on.
  virtual void truncate(SequenceId sequence, int64_t length) = 0;
  /// Forgets a sequence; its id is not used again. It is gone, too, where the audit sink throws
  /// when it is told, which becomes a warning.
  virtual void release(SequenceId sequence) = 0;
  /// Returns how many tokens the sequence holds.
  virtual int64_t length(SequenceId sequence) const = 0;
  /// Returns all tokens of the sequence, [length]. Valid until the sequence changes.
  virtual std::span<const int32_t> tokens(SequenceId sequence) const = 0;

  /// Keeps the first `count` of the tokens that the sequence's last step brought it (drafts that
  /// were accepted), and forgets the others as truncate() does. Throws kInvalidArgument for more
  /// tokens than that step brought and the sequence still has.
  virtual void keep(SequenceId sequence, int64_t count) = 0;

  /// Keeps the first `length` positions of a sequence as a prefix, whether the sequence goes on, is
  /// truncated or is released. Their blocks stay where they are and are counted once more; whoever
  /// writes behind them into the last one copies it. Takes no memory of the pool itself. Throws
  /// kInvalidArgument for more positions than there are. In an audit log the prefix is a fork of
  /// the sequence which no step touches.
  virtual PrefixId retain(SequenceId sequence, int64_t length) = 0;
  /// Makes a new sequence that begins with the first `length` positions of a prefix, under its
  /// adapter. What follows has the bits that it has behind the same tokens without reuse. Throws as
  /// create_sequence() does, and kInvalidArgument for more positions than there are. In an audit
  /// log it is a fork of the prefix.
  virtual SequenceId attach(PrefixId prefix, int64_t length) = 0;
  /// Makes a new sequence that begins with all of a prefix.
  SequenceId attach(PrefixId prefix) {
    return attach(prefix, static_cast<int64_t>(this->prefix(prefix).tokens.size()));
  }
  /// Returns what a prefix is. Throws kInvalidArgument for an unknown one.
  virtual KvPrefix prefix(PrefixId prefix) const = 0;
  /// Returns how many of the first `length` positions of a prefix attach() resumes for free. A step
  /// of that sequence computes the others again (StepFit::rerun_tokens), since their state or
  /// window is not kept. The answer is the largest number up to `length` that is resumed for free.
  /// Throws kInvalidArgument for an unknown prefix, and more positions than there are.
  virtual int64_t resumed_length(PrefixId prefix, int64_t length) const = 0;
  /// Forgets a prefix; sequences that began with it stay.
  virtual void release_prefix(PrefixId prefix) = 0;
  /// Gives up the keys, values and states of a sequence, which keeps its tokens, for a scheduler
  /// that needs the blocks and its place (EngineOptions::max_sequences). Its next step takes a
  /// place (kOutOfMemory: there is none) and computes them again, in passes that nobody records
  /// (StepFit::rerun_tokens), to the same bits; it fails (kUnsupported) behind forced routes.
  /// Throws kInvalidArgument for an unknown sequence, and for one of which some layers have fewer
  /// positions than others.
  virtual void preempt(SequenceId sequence) = 0;
  /// Returns the blocks of keys and values that are free, and all that there are.
  virtual std::pair<int64_t, int64_t> kv_blocks() const = 0;

  /// Returns what a step of these inputs would take, as step() itself finds it, and what there is.
  /// Nothing changes. Throws kInvalidArgument for an unknown sequence, or one that stands twice.
  virtual StepFit fits(std::span<const StepInput> inputs) const = 0;
  /// Returns how many rows of logits an input asks for, which is also how many outputs a step has
  /// for it.
  static int64_t row_count(const StepInput& input);
  /// Returns what it can do beside stepping.
  virtual StepperTraits traits() const = 0;
  /// Returns who lends the threads of its steps to drafters; null: nobody.
  virtual ThreadLender* thread_lender() { return nullptr; }
  /// Returns the one engine that runs its steps, for what no other stepper has (layers by
  /// themselves, taps); null: there are several, or none.
  virtual Engine* engine() { return nullptr; }

  /// Runs one pass over all inputs. Allocates nothing, reads back once. Throws kInvalidArgument for
  /// an id out of range, an unknown sequence, too many tokens, a context that is full, or forced
  /// routes that do not fit the model; kOutOfMemory where the KV pool has no block left (forks
  /// share theirs until they part); kCancelled where a flag was raised (StepInput::cancelled,
  /// EngineOptions::cancelled); then nothing has changed. The span is valid until the next step.
  ///
  /// One input among several fails alone where its logits are not finite, where its guide, a
  /// sampler stage or its sequence's sink (SequenceSinks) throws, or where its state cannot be made
  /// again. Its sequence is then as it was before the step, its outputs are `failed`, and
  /// failures() says why. The other inputs get what they get without it: the pass is run again for
  /// these, so that their guides and samplers may be asked twice for a position, but it counts and
  /// is recorded once. Where the only input fails, or all inputs fail, the step throws.
  virtual std::span<const StepOutput> step(std::span<const StepInput> inputs) = 0;
  /// Returns the inputs of the last step that failed alone, if any. Valid until the next step.
  virtual std::span<const StepFailure> failures() const = 0;
  /// Returns the part that each of a federation's specialists had in the token of an output of the
  /// last step, [StepperTraits::num_specialists]; empty where there are none. Throws
  /// kInvalidArgument for an output that there is not.
  virtual std::span<const SpecialistShare> shares(size_t /*output*/) const { return {}; }

  /// Returns the residual stream as it entered EngineOptions::feature_layers, for each token that
  /// the sequence brought to the last step: [tokens, feature_layers * hidden_size]. Empty where
  /// there is none. Valid until the next step.
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

/// Passes all calls on to another stepper. A host that adds something to some of them derives from
/// it, and keeps all the rest.
class ForwardingStepper : public Stepper {
 public:
  /// Passes calls on to `stepper`, which must stay.
  explicit ForwardingStepper(Stepper& stepper) : stepper_(stepper) {}
  /// It is not copied. To pass calls on to another ForwardingStepper, name that one as a Stepper.
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
