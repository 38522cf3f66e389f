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

/// What an answer is that is guessed ahead.
struct SpeculatedAnswer {
  std::span<const int32_t> past, prompt;  // tokens before the answer
  int64_t room = 0;                       // tokens that it may have
  int32_t vocab_size = 0;
  /// Tokens that nothing follows; the answer goes on behind others.
  std::span<const int32_t> end_ids;
  std::span<const int> feature_layers;  // whose residual stream can be shown
  SequenceId sequence = 0;
  // EngineOptions of the engine that makes it
  uint64_t kv_bytes = 0;
  std::optional<uint64_t> draft_kv_bytes = {};
  bool runs_trees = false;                   // whose guesses may be a tree
  ThreadLender* lender = nullptr;            // of the threads of its steps; null: there is none
  const SamplerPipeline* sampler = nullptr;  // that chooses its tokens
  // Flags of the host's that end it, and all that its engine does; null: there is none.
  const std::atomic<bool>*cancelled = nullptr, *ended = nullptr;
};

/// Not thread-safe. What a drafter throws stays here (SpeculationCounts::problem).
class Speculation final : public KnownMasks {
 public:
  /// Checks the options, and shows the drafter what stands before the answer.
  Speculation(const SpeculationOptions& options, const SpeculatedAnswer& answer);
  ~Speculation() override { release(false); }
  Speculation(const Speculation&) = delete;
  Speculation& operator=(const Speculation&) = delete;

  /// A token of the answer, whoever chose it.
  void commit(int32_t token) {
    if (is_on()) show({&token, 1});
  }
  /// The answer begins anew.
  void restart();
  /// The answer ended.
  void release(bool is_whole);

  /// How many guesses the next pass may bring, `most` at most. 0 where it is to ask nobody, or has
  /// asked already.
  int32_t wanted(int64_t most) const;
  /// Whether nobody is asked for the next pass, nor for the one behind it, if it chooses.
  bool rests();
  /// Where the drafter is to write so many.
  DraftProposal request(int32_t count);
  /// What it wrote there. `guide`: that of a constraint, which says how far guesses may go (null:
  /// none).
  void take(const DraftProposal& proposal, ConstraintGuide* guide, const JumpForward* jump);
  /// request() and take() with a drafter that is asked for this answer alone.
  void ask(int32_t count, ConstraintGuide* guide, const JumpForward* jump);
  /// Asks the drafter of these answers; `proposals` are their requests.
  static void ask_together(Drafter& drafter, std::span<Speculation* const> answers,
                           std::span<DraftProposal> proposals);
  Drafter* drafter() const { return is_on() ? options_.drafter : nullptr; }

  /// The tokens of a pass: `last`, which is known, and guesses, `most` at most. Valid until the
  /// next call.
  std::span<const int32_t> step_tokens(int32_t last, int64_t most);
  /// StepInput::draft_parents of these; empty for a chain.
  std::span<const int32_t> step_parents() const { return step_parents_; }
  /// Whether the drafter reads what the model computes.
  bool observes() const { return is_on() && !options_.drafter->feature_layers().empty(); }
  /// Shows it what was computed at positions from `first` on.
  void observe(int64_t first, std::span<const float> rows);
  /// The pass goes out: it chooses what stands at `position` and behind.
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
  /// While it stands, a drafter that can use them has the threads of the steps, unless a step has
  /// work for them.
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
  const bool takes_trees_;  // what is asked for may be one
  ThreadLender* lender_;
  core::ThreadBorrower* borrower_;  // the drafter, where it can use them
  const std::atomic<bool>*cancelled_, *ended_;
  DraftGate gate_;
  DraftGate gate_ahead_;          // that is told of a pass to come
  DrawingStage* draw_ = nullptr;  // that checks guesses; null: what is chosen does
  std::vector<int32_t> end_ids_;
  int32_t vocab_size_;
  int64_t before_;  // tokens before the answer
  DraftTextId text_ = 0;
  bool is_asked_ = false;             // for the next pass
  std::vector<int32_t> drafts_;       // [max_drafts] room for guesses
  std::vector<int32_t> parents_;      // [max_drafts] whom each stands behind; -1: the known token
  int32_t num_requested_ = 0;         // of it, that were asked for
  size_t num_drafts_ = 0;             // of them, that a pass may bring
  std::vector<int32_t> step_tokens_;  // [1 + max_drafts]
  std::vector<int32_t> step_parents_;
  std::vector<int32_t> moved_;  // [max_drafts] where keep_drafts() moved a guess
  DraftMasks masks_;
  size_t place_ = 0;  // of them, that the pass under way has come to
  int64_t first_position_ = 0;
  std::chrono::steady_clock::time_point pass_began_;
  SpeculationCounts counts_;
};

}  // namespace vitrine::engine
