// SPDX-License-Identifier: Apache-2.0
// The sequence that an answer is made in.
#pragma once

#include "vitrine/step.h"

namespace vitrine::engine {

/// One of the host's, or one that is released whatever happens.
class GenerationSequence {
 public:
  GenerationSequence(Stepper& stepper, SequenceId given)
      : stepper_(stepper),
        id_(given != 0 ? given : stepper.create_sequence()),
        is_own_(given == 0) {}
  ~GenerationSequence() {
    if (is_own_) stepper_.release(id_);
  }
  GenerationSequence(const GenerationSequence&) = delete;
  GenerationSequence& operator=(const GenerationSequence&) = delete;
  SequenceId id() const { return id_; }
  /// Forgets what stands from `length` on; returns how many positions that were.
  int64_t cut(int64_t length) {
    const int64_t before = stepper_.length(id_);
    if (before <= length) return 0;
    stepper_.truncate(id_, length);
    return before - length;
  }

 private:
  Stepper& stepper_;
  SequenceId id_;
  bool is_own_;
};

}  // namespace vitrine::engine
