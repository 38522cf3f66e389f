// SPDX-License-Identifier: Apache-2.0
// The sequence that an answer is made in.
#pragma once

#include <exception>
#include <string>

#include "vitrine/step.h"

namespace vitrine::engine {

/// Releases a sequence for a destructor, which must not throw. What the stepper throws becomes a
/// warning: the host has released the sequence, or the destructor runs within a step.
inline void release_at_end(Stepper& stepper, SequenceId sequence) noexcept {
  const auto warn = [&](const std::string& problem) {
    log_message(LogLevel::kWarning, "releasing sequence " + std::to_string(sequence) +
                                        " with what used it failed: " + problem);
  };
  try {
    try {
      stepper.release(sequence);
    } catch (const std::exception& error) {
      warn(error.what());
    } catch (...) {
      warn("an exception of unknown type");
    }
  } catch (...) {  // the host's log throws too: nobody is left to tell
  }
}

/// A sequence of the host's, or a new one that the destructor releases. Where the destructor runs
/// within a step of the same stepper, the sequence stays until the host releases it.
class GenerationSequence {
 public:
  /// `given`: the host's; 0: a new one, under `adapter`.
  GenerationSequence(Stepper& stepper, SequenceId given, int adapter = -1)
      : stepper_(stepper),
        id_(given != 0 ? given : stepper.create_sequence(adapter)),
        is_own_(given == 0) {}
  ~GenerationSequence() {
    if (is_own_) release_at_end(stepper_, id_);
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
