// SPDX-License-Identifier: Apache-2.0
// What the next step brings, and what is left of its limits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "serve/running_answer.h"
#include "vitrine/engine.h"

namespace vitrine::serve {

/// Inputs of a step with the answers that bring them. Not thread-safe.
class StepPlan {
 public:
  /// Begins another step of an engine with these limits.
  void begin(const EngineOptions& engine) {
    inputs_.clear();
    answers_.clear();
    were_in_prompt_.clear();
    tokens_left_ = engine.max_step_tokens;
    rows_left_ = engine.max_logit_rows;
  }
  /// Asks an answer for its input. Throws what that throws.
  void add(RunningAnswer& answer, int64_t most_tokens, int64_t most_rows) {
    const StepInput input = answer.generation().next_input(most_tokens, most_rows);
    tokens_left_ -= std::ssize(input.tokens);
    rows_left_ -= Stepper::row_count(input);
    were_in_prompt_.push_back(answer.is_in_prompt());
    inputs_.push_back(input);
    answers_.push_back(&answer);
  }
  /// Takes an answer's input out, where it has one.
  void leave(const RunningAnswer& answer) {
    const auto found = std::ranges::find(answers_, &answer);
    if (found == answers_.end()) return;
    const auto index = found - answers_.begin();
    answers_.erase(found);
    inputs_.erase(inputs_.begin() + index);
    were_in_prompt_.erase(were_in_prompt_.begin() + index);
  }
  bool has(const RunningAnswer& answer) const {
    return std::ranges::find(answers_, &answer) != answers_.end();
  }

  const std::vector<StepInput>& inputs() const { return inputs_; }
  RunningAnswer& answer(size_t input) const { return *answers_[input]; }
  /// Returns how many tokens of its prompt an input brings; 0 behind the prompt.
  int64_t prompt_tokens(size_t input) const {
    return were_in_prompt_[input] ? std::ssize(inputs_[input].tokens) : 0;
  }
  int64_t tokens_left() const { return tokens_left_; }
  int64_t rows_left() const { return rows_left_; }

 private:
  std::vector<StepInput> inputs_;
  std::vector<RunningAnswer*> answers_;  // [inputs]
  std::vector<bool> were_in_prompt_;     // [inputs]
  int64_t tokens_left_ = 0, rows_left_ = 0;
};

}  // namespace vitrine::serve
