// SPDX-License-Identifier: Apache-2.0
// One sequence of a model that is measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/generate/generation_sequence.h"
#include "vitrine/quality.h"

namespace vitrine::quality {

/// Holds what log-probabilities of a row of logits are made of.
struct RowSum {
  double largest = 0;     // logit
  double log_sum = 0;     // log_sum_beside() of the largest
  size_t best = 0;        // the first token with the largest logit
  bool is_finite = true;  // each logit is
};

class Reader {
 public:
  /// Throws kInvalidArgument for a model without logits of each token.
  explicit Reader(Stepper& model);
  ~Reader() {
    if (sequence_ != 0) engine::release_at_end(model_, sequence_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  size_t vocab_size() const { return static_cast<size_t>(summary_->vocab_size); }
  int64_t max_context() const { return options_->max_context; }
  /// Tokens of a step whose logits all come back.
  size_t step_tokens() const;
  /// Throws kInvalidArgument for ids that the vocabulary lacks.
  void check_ids(std::span<const int32_t> ids) const;
  /// Throws kInvalidArgument where a context has fewer positions.
  void check_positions(int64_t count) const;

  /// Begins a sequence anew.
  void begin();
  /// Forgets the sequence.
  void end();
  /// `next`: the id that follows, -1: it is chosen. Throws kInternal where an engine's logits are
  /// not finite.
  std::span<const StepOutput> step(std::span<const int32_t> tokens, int32_t next,
                                   StepInput::Rows rows = StepInput::Rows::kAll);
  /// log p(token), by an output of the last step.
  double logprob(const StepOutput& output, int32_t token) const;
  /// Writes log p of every token. `logprobs`: [vocabulary].
  void logprobs(const StepOutput& output, std::span<double> logprobs) const;
  /// Returns what a token's score is more than its log p; 0 for a model that gives
  /// log-probabilities.
  double log_total(const StepOutput& output) const;
  /// Returns the most probable token, by an output of the last step.
  size_t best(const StepOutput& output) const;
  /// Does what the other one does, for several sequences at once.
  std::span<const StepOutput> step(std::span<const StepInput> inputs);
  SequenceId sequence() const { return sequence_; }
  /// Empty for an engine.
  std::span<const SpecialistShare> shares(size_t output) const;

 private:
  const RowSum& sum_of(const StepOutput& output) const;

  Stepper& model_;
  const bool gives_logprobs_;  // in place of logits
  const EngineOptions* options_;
  const ModelSummary* summary_;
  SequenceId sequence_ = 0;              // 0: none
  std::span<const StepOutput> outputs_;  // of the last step
  std::vector<RowSum> sums_;             // [outputs_]; empty where they are log-probabilities
};

}  // namespace vitrine::quality
