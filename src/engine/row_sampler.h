// Chooses a row's token on the host, and writes down how it was chosen.
#pragma once

#include <cstddef>
#include <vector>

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
  /// Throws kInvalidArgument for a mask of another size, and what the sampler throws.
  void check_mask(const StepInput& input) const;
  /// Among the tokens that the input's mask allows. `logits`: [vocabulary].
  int32_t sample(const StepInput& input, size_t row, const float* logits,
                 const SampleContext& context);
  /// The decisions in the row's record; zeros where the token was given (`input` null). `logits`
  /// may be null where there is no mask.
  void record(const AuditLayout& layout, const StepInput* input, size_t row, const float* logits,
              std::byte* row_record);
  /// Of a row that sample() chose.
  const ConstraintDecision& constraint(size_t row) const { return constraints_[row]; }

 private:
  size_t vocab_size_;
  SamplerPipeline greedy_;
  std::vector<SampleDecision> decisions_;        // [rows] of those that the host chose
  std::vector<ConstraintDecision> constraints_;  // [rows] the same
};

}  // namespace vitrine::engine
