// SPDX-License-Identifier: Apache-2.0
// Guesses for one answer: who is asked and when, which of the guesses a pass may bring, the masks
// that stand behind them, and what came of them.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/cancel_watch.h"
#include "core/piece_work.h"
#include "engine/draft/draft_walk.h"
#include "engine/run/known_masks.h"
#include "sample/drawing_stage.h"
#include "vitrine/generate.h"
#include "vitrine/speculate.h"

namespace vitrine::engine {

/// What Speculation is told about its answer.
struct SpeculatedAnswer {
  std::span<const int32_t> past, prompt;  // tokens before the answer
  int64_t room = 0;                       // tokens that it may have
  int32_t vocab_size = 0;
  /// Tokens that end the answer: nothing follows them.
  std::span<const int32_t> end_ids;
  std::span<const int> feature_layers;  // layers whose residual stream can be shown
  SequenceId sequence = 0;
  // Options of the engine that makes the answer (EngineOptions).
  uint64_t kv_bytes = 0;
  std::optional<uint64_t> draft_kv_bytes = {};
  bool runs_trees = false;                   // guesses may be a tree
  ThreadLender* lender = nullptr;            // lends the threads of its steps; null: nobody does
  const SamplerPipeline* sampler = nullptr;  // what chooses its tokens
  // Flags of the host's: `cancelled` ends this answer, `ended` all that its engine does; null:
  // none.
  const std::atomic<bool>*cancelled = nullptr, *ended = nullptr;
};

/// Guesses for one answer. What a drafter throws stays here (SpeculationCounts::problem). Not
/// thread-safe.
class Speculation final : public KnownMasks {
 public:
  /// Checks the options, and shows the drafter what stands before the answer.
  Speculation(const SpeculationOptions& options, const SpeculatedAnswer& answer);
  ~Speculation() override { release(false); }
  Speculation(const Speculation&) = delete;
  Speculation& operator=(const Speculation&) = delete;

  /// Shows the drafter a token of the answer, whoever chose it.
  void commit(int32_t token) {
    if (is_on()) show({&token, 1});
  }
  /// Goes back to the prompt: the answer begins anew.
  void restart();
  /// Ends the drafter's text: the answer has ended.
  void release(bool is_whole);

  /// Returns how many guesses the next pass may bring, `most` at most; 0 where nobody is to be
  /// asked, or was asked already.
  int32_t wanted(int64_t most) const;
  /// Returns true where nobody is asked for the next pass, nor for the one behind it if the next
  /// one chooses.
  bool rests();
  /// Returns where the drafter is to write so many guesses.
  DraftProposal request(int32_t count);
  /// Takes what the drafter wrote there. `guide` leads the answer's constraint, which says how far
  /// guesses may go (null: there is none).
  void take(const DraftProposal& proposal, ConstraintGuide* guide, const JumpForward* jump);
  /// Asks the drafter for this answer alone: request(), the drafter, take().
  void ask(int32_t count, ConstraintGuide* guide, const JumpForward* jump);
  /// Asks the drafter of these answers; `proposals` are their requests.
  static void ask_together(Drafter& drafter, std::span<Speculation* const> answers,
                           std::span<DraftProposal> proposals);
  Drafter* drafter() const { return is_on() ? options_.drafter : nullptr; }

  /// Returns the tokens of a pass: `last`, which is known, and guesses, `most` at most. Valid until
  /// the next call.
  std::span<const int32_t> step_tokens(int32_t last, int64_t most);
  /// Returns StepInput::draft_parents of these tokens; empty for a chain.
  std::span<const int32_t> step_parents() const { return step_parents_; }
  /// Returns true where the drafter reads what the model computes.
  bool observes() const { return is_on() && !options_.drafter->feature_layers().empty(); }
  /// Shows the drafter what was computed at positions from `first` on.
  void observe(int64_t first, std::span<const float> rows);
  /// Notes that a pass goes out, which chooses what stands at `position` and behind.
  void begin_pass(int64_t position);
  /// Counts a pass that chose, and forgets the guesses. `is_rejected`: a guess stood where another
  /// token was chosen.
  void end_pass(int64_t proposed, int64_t accepted, bool is_rejected);
  /// Counts what was computed for an end that came in the middle.
  void discard(int64_t count) { counts_.num_discarded_tokens += count; }

  bool has_known_masks() const override { return step_parents_.empty(); }  // of a chain
  std::span<const uint32_t> allowed_tokens(int64_t position, ConstraintDecision& decision) override;
  void chosen(int64_t position, int32_t token) override;

  const SpeculationCounts& counts() const { return counts_; }

 private:
  /// Lends the threads of the steps to a drafter that can use them, for its lifetime and unless a
  /// step has work for them.
  class Loan;
  bool is_on() const { return text_ != 0; }
  void add_time(double seconds) { counts_.draft_seconds += seconds; }
  template <typename Work>
  void guarded(Work&& work);
  void show(std::span<const int32_t> tokens);
  void fail(const std::string& problem);
  void fail(const std::exception& error);
  bool is_cancelled() const { return core::is_raised(cancelled_) || core::is_raised(ended_); }
  void check(int32_t count) const;
  void check_tree(int32_t count) const;
  template <typename Keep>
  void keep_drafts(size_t count, Keep&& keep);
  void drop_ends(int32_t count);
  void add_behind(int32_t parent, size_t count);

  const SpeculationOptions options_;
  const bool takes_trees_;  // guesses that are asked for may be a tree
  ThreadLender* lender_;
  core::ThreadBorrower* borrower_;  // the drafter, where it can use them
  const std::atomic<bool>*cancelled_, *ended_;
  DraftGate gate_;
  DraftGate gate_ahead_;          // a copy that is told of a pass to come
  DrawingStage* draw_ = nullptr;  // the stage that checks guesses; null: the choices themselves do
  std::vector<int32_t> end_ids_;
  int32_t vocab_size_;
  int64_t before_;  // tokens before the answer
  DraftTextId text_ = 0;
  bool is_asked_ = false;             // for the next pass
  std::vector<int32_t> drafts_;       // [max_drafts] room for guesses
  std::vector<int32_t> parents_;      // [max_drafts] whom each stands behind; -1: the known token
  int32_t num_requested_ = 0;         // guesses that were asked for
  size_t num_drafts_ = 0;             // guesses that a pass may bring
  std::vector<int32_t> step_tokens_;  // [1 + max_drafts]
  std::vector<int32_t> step_parents_;
  std::vector<int32_t> moved_;  // [max_drafts] where keep_drafts() moved a guess
  DraftMasks masks_;
  size_t place_ = 0;  // place of masks_ that the pass under way has come to
  int64_t first_position_ = 0;
  std::chrono::steady_clock::time_point pass_began_;
  SpeculationCounts counts_;
};

}  // namespace vitrine::engine
