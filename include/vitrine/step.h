// SPDX-License-Identifier: Apache-2.0
// The room `engine`: what a step takes and gives, and who steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "vitrine/audit.h"
#include "vitrine/core.h"
#include "vitrine/sample.h"

namespace vitrine {

struct EngineOptions;
struct ModelSummary;

/// Names a sequence of one engine; none is 0.
using SequenceId = uint64_t;

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
  /// -1: a row behind a draft that was not chosen, which nobody looked at.
  int32_t token = -1;
  std::span<const float> logits;  ///< [vocabulary] where they were read back, else empty
  ConstraintDecision constraint;  ///< of a choice with a mask; `removed` where it was recorded
  /// [hidden_size] what the output head reads, after the final norm; where it was asked for
  std::span<const float> hidden_state;
};

/// Whatever steps over sequences of tokens: an Engine, a Federation, a Model. What generates and
/// what schedules works on this. One thread at a time, but for release(), length() and tokens(),
/// which wait for another thread's call.
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
  /// Forgets a sequence; its id is not used again.
  virtual void release(SequenceId sequence) = 0;
  /// Returns the tokens that the sequence holds.
  virtual int64_t length(SequenceId sequence) const = 0;
  /// All tokens of the sequence, [length]. Valid until the sequence changes.
  virtual std::span<const int32_t> tokens(SequenceId sequence) const = 0;

  /// Runs one pass over all inputs. Allocates nothing, reads back once. Throws kInvalidArgument for
  /// an id out of range, an unknown sequence, too many tokens, a context that is full, or forced
  /// routes that do not fit the model; kOutOfMemory where the KV pool has no block left (forks
  /// share theirs until they part); kCancelled where a flag was raised (StepInput::cancelled,
  /// EngineOptions::cancelled); then nothing has changed. The span is valid until the next step.
  virtual std::span<const StepOutput> step(std::span<const StepInput> inputs) = 0;

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

}  // namespace vitrine
