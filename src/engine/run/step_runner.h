// SPDX-License-Identifier: Apache-2.0
// One step of a loaded model, from its inputs to its outputs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/run/draft_trees.h"
#include "engine/run/exit_leads.h"
#include "engine/run/loaded_model.h"
#include "engine/run/next_step.h"
#include "engine/run/recomputer.h"
#include "engine/run/row_chooser.h"
#include "engine/run/running_step.h"
#include "engine/run/step_checks.h"
#include "engine/run/step_recorder.h"

namespace vitrine::engine {

/// Takes a step through its stations: its inputs are checked, what their sequences have lost is
/// computed again, the batch is made, its pass runs, its rows' tokens are chosen, and its record
/// goes out. A step that fails leaves all sequences as they were. Not thread-safe.
class StepRunner {
 public:
  /// `model` must stay.
  explicit StepRunner(LoadedModel& model);

  /// Makes a whole step. If `joint` is set, the device combines the rows and chooses the tokens,
  /// and the outputs carry neither tokens nor logits. A joint without rows leaves the rows on the
  /// device, and the tokens are the head's. Throws as Stepper::step().
  std::span<const StepOutput> step(std::span<const StepInput> inputs,
                                   const DeviceJointStep* joint = nullptr);
  /// Makes a step up to the rows of its head, for whoever chooses their tokens; fused path only.
  /// The outputs carry logits and hidden states; a joint without rows leaves the logits on the
  /// device. Throws as step().
  std::span<const StepOutput> step_to_rows(std::span<const StepInput> inputs,
                                           const DeviceJointStep* joint = nullptr);
  /// Makes the rest of that step. [rows] each row's token and its runner-up, or -1 where the head's
  /// own stand.
  void step_from_rows(std::span<const int32_t> chosen, std::span<const int32_t> runners_up);
  /// Makes a step of a part of the depth, which PartialSteps asks for. Throws as step(), and
  /// kUnsupported for a model whose layers do not run by themselves.
  std::span<const StepOutput> step_part(std::span<const StepInput> inputs, const StepPart& part);

  /// Forgets what stands behind the first `length` positions of a sequence.
  void truncate(SequenceId sequence, int64_t length);
  /// Forgets what stands behind the first `count` positions that its last step brought a sequence.
  void keep(SequenceId sequence, int64_t count);
  /// Stepper::preempt().
  void preempt(SequenceId sequence);

  /// Engine::replace_matrix(), from a checkpoint or from floats.
  template <typename Source>
  void replace_matrix(const std::string& module, const Source& source) {
    model_.executor->replace_matrix(module, source);
    leads_.clear();
  }
  /// Engine::restore_matrix() and Engine::forget_layer().
  void restore_matrix(const std::string& module);
  void forget_layer(int layer);

  LoadedModel& model() { return model_; }
  /// Returns the step that was made last, which stays until the next one begins.
  const RunningStep& last_step() const { return step_; }
  /// Returns the sequence whose input the last step failed for; 0: it failed for all.
  SequenceId blamed() const { return step_.blamed; }
  /// Stepper::features().
  std::span<const float> features(SequenceId sequence) const;

  StepRecorder& recorder() { return recorder_; }
  /// Stepper::set_audit_mode().
  void set_audit_mode(AuditMode mode);
  /// Returns where the next step may go on. A step forgets them all.
  ExitLeads& leads() { return leads_; }
  /// Returns whether the next step would go on from a lead. Taps are to see every layer of it, and
  /// attribution needs them all at once.
  bool takes_leads() const;

 private:
  StepPart whole() const { return {{0, model_.graph.num_layers}}; }
  void run_to_rows(const DeviceJointStep* joint, ChoicePoint point);
  void make_batch(const DeviceJointStep* joint);
  void add(const StepInput& input);
  void append_tokens();
  void run_from_rows();
  void undo();

  LoadedModel& model_;
  RunningStep step_;
  DraftTrees trees_;
  StepRecorder recorder_;
  Recomputer recomputer_;
  RowChooser chooser_;
  NextStep next_step_;
  ExitLeads leads_;
  StepChecks checks_;
  std::vector<StepOutput> outputs_;  // [rows]
};

}  // namespace vitrine::engine
