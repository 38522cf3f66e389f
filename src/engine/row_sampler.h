// SPDX-License-Identifier: Apache-2.0
// Chooses a row's token on the host, and writes down how it was chosen.
#pragma once

#include <cstddef>
#include <vector>

#include "sample/device_steps.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

class RowSampler {
 public:
  /// Allocates for the largest step.
  RowSampler(size_t vocab_size, size_t rows);

  /// False where the output head's own choice stands.
  static bool is_needed(const StepInput& input) {
    return !input.allowed_tokens.empty() ||
           (input.sampler != nullptr && !input.sampler->is_device_greedy());
  }
  /// What sample() would do, for a device. Throws what the pipeline throws.
  void describe(const StepInput& input, size_t row, const SampleContext& context,
                DeviceSamplerSteps& steps);
  static bool has_device_form(const StepInput& input) {
    return input.sampler == nullptr || input.sampler->has_device_form();
  }
  /// What the device found (kChoiceFacts) for a row that describe() described.
  void take_facts(const StepInput& input, size_t row, const float* facts);
  /// Throws kInvalidArgument for a mask of another size, or more forced tokens than there are.
  void check(const StepInput& input) const;
  /// Among the tokens that the input's mask allows. `logits`: [vocabulary].
  int32_t sample(const StepInput& input, size_t row, const float* logits,
                 const SampleContext& context);
  /// The decisions in the row's record; zeros where the token was given (`input` null). `logits`
  /// may be null where there is no mask, and where the device chose.
  void record(const AuditLayout& layout, const StepInput* input, size_t row, const float* logits,
              std::byte* row_record);
  /// Whether what follows a token of the input was forced (StepInput::num_forced).
  static bool is_forced(const StepInput& input, size_t token) {
    const size_t known = input.tokens.size() + (input.next_token < 0 ? 0 : 1);
    return token + 1 < known && token + 1 + static_cast<size_t>(input.num_forced) >= known;
  }
  /// The same of a row whose token was forced, after what the head knows of it.
  void record_forced(const AuditLayout& layout, const StepInput& input, int32_t token,
                     std::byte* row_record) const;
  /// Of a row that sample() chose.
  const ConstraintDecision& constraint(size_t row) const { return constraints_[row]; }

 private:
  SamplerPipeline& sampler_of(const StepInput& input) {
    return input.sampler != nullptr ? *input.sampler : greedy_;
  }
  /// Counts what the mask allows, and hands it to the pipeline.
  void set_mask(const StepInput& input, size_t row);

  size_t vocab_size_;
  SamplerPipeline greedy_;
  std::vector<SampleDecision> decisions_;        // [rows] of those that a pipeline chose
  std::vector<ConstraintDecision> constraints_;  // [rows] the same
};

}  // namespace vitrine::engine
