// SPDX-License-Identifier: Apache-2.0
// The joint of a federation that a device makes of a step's rows, which stay there. The structs say
// what is agreed on once, what a step brings and what comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sample/device_steps.h"
#include "vitrine/audit_sink.h"
#include "vitrine/federation.h"

namespace vitrine::engine {

/// Specialists that a device takes at most. A federation's file has no more either.
inline constexpr size_t kMaxJointSpecialists = 64;

/// A step has room for the edits and masks of so many rows of guesses, beside one row of each
/// sequence.
inline constexpr int kDraftRows = 64;

/// Says where each word of a row of the joint stands, as in an engine's record of a row.
inline constexpr int32_t kJointChosenLogit = 0, kJointLogSumExp = 1, kJointEntropy = 2,
                         kJointTopIds = 3, kJointTopLogits = kJointTopIds + kAuditTopTokens,
                         kJointDigest = kJointTopLogits + kAuditTopTokens,
                         kJointRecordWords = kJointDigest + 2;

/// Returns the number of doubles of a row. They are log Z, then the log-sum-exps of all
/// specialists, their weights, their logits of the token, and those of the runner-up.
constexpr int32_t joint_value_count(int32_t specialists) { return 1 + 4 * specialists; }

/// Says, as a model is loaded, which joint its steps make.
struct DeviceJointSpec {
  CombinerSpec combiner;
  int32_t specialists = 0;
  int32_t max_rows = 0;     // of the joint, in a step
  int32_t max_sampled = 0;  // of these, chosen by a sampler's steps; 0: none
  int32_t row_width() const { return specialists + 1; }
  int32_t num_values() const { return joint_value_count(specialists); }
};

/// Says what the joint of a step is made of. Whoever keeps it has preallocated it.
struct DeviceJointStep {
  // [joints, row_width] which row of the step each specialist's is; the last one: whose hidden
  // state a gate reads
  std::vector<int32_t> rows;
  std::vector<int32_t> targets;  // [joints] id that is known to follow; -1: it is chosen
  // [joints] how it is chosen, null: the best; empty: in all
  std::vector<const DeviceSamplerSteps*> steps;
  bool reads_logits = false, reads_hidden_states = false;
  // The joint of the step that most likely follows, where each of the model's inputs brings the
  // token that a joint of this step chooses, one row each; null: not known, or not all go on.
  const DeviceJointStep* next = nullptr;
  std::vector<int32_t> choosers;  // [inputs of the model's step] that joint, where `next` is there
  /// Returns the number of joints. With 0 none is made of this model's step alone, and its rows
  /// stay where they are.
  size_t count() const { return targets.size(); }
};

/// Addresses of a pass's rows on the device, until its model's next pass.
struct DeviceRows {
  const float* logits = nullptr;         // [rows, vocabulary]
  const float* hidden_states = nullptr;  // [rows, hidden]
};

/// What came back of a step's joints, until the next step.
struct DeviceJointResult {
  const int32_t* chosen_ids = nullptr;  // [joints] targets too
  const float* choice_facts = nullptr;  // [joints, kChoiceFacts], where a row has steps
  const int32_t* records = nullptr;     // [joints, kJointRecordWords]
  const double* values = nullptr;       // [joints, num_values]
  const float* logits = nullptr;        // [joints, vocabulary] log-probabilities, where asked for
};

}  // namespace vitrine::engine
