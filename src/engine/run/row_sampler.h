// SPDX-License-Identifier: Apache-2.0
// Chooses a row's token on the host, and writes down how it was chosen.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/run/known_masks.h"
#include "sample/device_steps.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

class RowSampler {
 public:
  /// Allocates for the largest step.
  RowSampler(size_t vocab_size, size_t rows);

  /// Forgets the rows of the last step.
  void begin(size_t rows);
  /// Returns false where the output head's own choice stands.
  static bool is_needed(const StepInput& input) {
    return !input.allowed_tokens.empty() || input.guide != nullptr ||
           (input.sampler != nullptr && !input.sampler->is_device_greedy());
  }
  /// Describes to a device what sample() would do. Throws what the pipeline throws.
  void describe(const StepInput& input, size_t row, const SampleContext& context,
                DeviceSamplerSteps& steps);
  static bool has_device_form(const StepInput& input) {
    const auto* const guide = dynamic_cast<const KnownMasks*>(input.guide);
    const bool knows_masks = guide != nullptr ? guide->has_known_masks() : input.guide == nullptr;
    return knows_masks && (input.sampler == nullptr || input.sampler->has_device_form());
  }
  /// Takes what the device found (kChoiceFacts) for a row that describe() described.
  void take_facts(size_t row, const float* facts);
  /// Finds the row's mask, the input's or its guide's, and counts what it allows. Further calls for
  /// the row do nothing. Throws what a guide throws, and kInvalidArgument for a mask of another
  /// size.
  void find_mask(const StepInput& input, size_t row, int64_t position);
  /// Chooses among the tokens that the row's mask allows. `logits` is [vocabulary].
  int32_t sample(const StepInput& input, size_t row, const float* logits,
                 const SampleContext& context);
  /// Writes the decisions into the row's record, zeros where the token was given (`input` null).
  /// `logits` may be null where there is no mask, and where the device chose.
  void record(const AuditLayout& layout, const StepInput* input, size_t row, const float* logits,
              std::byte* row_record);
  /// Does the same for a row whose token was forced, behind what the head knows of it.
  void record_forced(const AuditLayout& layout, const StepInput& input, int32_t token,
                     std::byte* row_record) const;
  /// Returns what a constraint did to a row that sample() chose.
  const ConstraintDecision& constraint(size_t row) const { return constraints_[row]; }

 private:
  SamplerPipeline& sampler_of(const StepInput& input) {
    return input.sampler != nullptr ? *input.sampler : greedy_;
  }
  /// Hands the row's mask to the pipeline.
  void set_mask(const StepInput& input, size_t row, int64_t position);

  size_t vocab_size_;
  SamplerPipeline greedy_;
  std::vector<SampleDecision> decisions_;        // [rows] of those that a pipeline chose
  std::vector<ConstraintDecision> constraints_;  // [rows] the same
  struct Mask {
    std::span<const uint32_t> bits;  // empty: none
    bool is_found = false;
  };
  std::vector<Mask> masks_;  // [rows]
};

}  // namespace vitrine::engine
