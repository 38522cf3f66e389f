// SPDX-License-Identifier: Apache-2.0
// Who chooses the token of each row of a step, and the choices of the host.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "engine/run/draft_trees.h"
#include "engine/run/loaded_model.h"
#include "engine/run/row_sampler.h"
#include "engine/run/running_step.h"
#include "engine/run/step_recorder.h"

namespace vitrine::engine {

/// Chooses the tokens of a step's rows. Allocates nothing in a step. Not thread-safe.
class RowChooser final : private Meanwhile {
 public:
  /// All must stay.
  RowChooser(const LoadedModel& model, RunningStep& step, DraftTrees& trees,
             StepRecorder& recorder);

  /// Puts each row into the step's batch, and who chooses its token. If `joint` is set, the device
  /// combines the rows and chooses, or leaves them where they are if the joint has none.
  void prepare(const DeviceJointStep* joint);
  /// Describes to the device how it chooses, once the sequences have their new tokens, which a
  /// sampler's stages look back at.
  void describe();
  /// Chooses what the host chooses behind the head, in the middle of the pass.
  void choose_behind_head();
  /// Behind the pass: fills in an output for each row, with its token where somebody has chosen
  /// it. What the host chooses and how it was chosen goes into the record.
  void finish(std::vector<StepOutput>& outputs);
  /// Fills in an output for each row without a token.
  void leave_open(std::vector<StepOutput>& outputs) const;

 private:
  void run_meanwhile() noexcept override;
  bool is_host_sampled(size_t row) const;
  bool is_device_sampled(const StepRow& row) const;
  void let_host_choose();
  SampleContext context_of(const StepRow& row) const;
  int32_t sample(size_t row, const float* logits);
  StepOutput output_of(size_t row) const;
  void choose(std::vector<StepOutput>& outputs);
  void choose_row(size_t row, StepOutput& output);
  void record_row(size_t row, const StepOutput& output);

  const LoadedModel& model_;
  RunningStep& step_;
  DraftTrees& trees_;
  StepRecorder& recorder_;
  RowSampler row_sampler_;
  const bool samples_on_device_;
  std::vector<DeviceSamplerSteps> sampler_steps_;  // [rows] where the device can choose by them
  std::exception_ptr meanwhile_error_;
  SequenceId meanwhile_blamed_ = 0;  // the sequence at fault for that
};

/// Fails for a row from which a device chose nothing: with kInvalidArgument where nothing was left
/// to choose, else with kBadFile, which tells by `where` what broke the logits.
[[noreturn]] void refuse_choice(bool nothing_left, SequenceId sequence, int64_t position,
                                const std::string& where);

}  // namespace vitrine::engine
