// SPDX-License-Identifier: Apache-2.0
// Positions of sequences that are computed again: a state or windows were cut off (truncate, keep)
// or gave way to another sequence's, or all was given up (preempt).
#pragma once

#include "engine/run/loaded_model.h"
#include "engine/run/running_step.h"
#include "engine/run/state_journal.h"

namespace vitrine::engine {

/// Keeps what sequences have taken in equal to their tokens. Not thread-safe.
class Recomputer {
 public:
  /// Both must stay. Its own passes are written into the step's batch, before that one is made.
  Recomputer(LoadedModel& model, RunningStep& step);

  /// Gives a sequence its place where it has none, and computes again what its next step stands on
  /// and its layers have lost. The passes are recorded by nobody and have no rows. Throws
  /// kUnsupported behind routes that were forced, kOutOfMemory where there is no place.
  void catch_up(SequenceId sequence);
  /// Forgets what the last pass's drafts brought, before a pass that writes over it.
  void begin_pass();
  /// Gives the span of an input the state that it goes on from, and room to note what drafts bring
  /// to that. Does nothing where the model keeps no state.
  void take_state(const StepInput& input, int64_t past, BatchSpan& span);
  /// Takes what the last pass noted into a state that truncation has cut off.
  void replay(SequenceId sequence);
  /// Forgets what it has noted of a sequence.
  void forget(SequenceId sequence) { journal_.forget(sequence); }
  /// Ends a step of such inputs.
  void settle(std::span<const StepInput> inputs);

 private:
  void run_again(SequenceId sequence, int64_t begin, int64_t count);

  LoadedModel& model_;
  RunningStep& step_;
  StateJournal journal_;  // of the last pass
};

}  // namespace vitrine::engine
