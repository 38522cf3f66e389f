// SPDX-License-Identifier: Apache-2.0
// The flags by which hosts end work that is under way, and who has seen one raised.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::core {

/// Whether a host's flag is raised; null: there is none.
inline bool is_raised(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

/// Throws kCancelled where it is raised. `what`: that is ended, as "tokenizing".
inline void throw_if_raised(const std::atomic<bool>* flag, const char* what) {
  if (!is_raised(flag)) return;
  throw Error(ErrorKind::kCancelled, std::string(what) + " was cancelled by its host");
}

/// Watches the hosts' flags during one step at a time. What one thread has seen all threads see
/// until the next step, so that pieces which were left out stay so where the host lowers its flag.
/// A look takes a load or two, and no lock.
class alignas(64) CancelWatch {
 public:
  /// Room for the flags of so many inputs, and of all steps.
  void reserve(size_t inputs) { flags_.reserve(inputs + 1); }

  void begin() {
    is_seen_.store(false, std::memory_order_relaxed);
    flags_.clear();
  }
  /// Null: none. One that was added last is not added again.
  void add(const std::atomic<bool>* flag) {
    if (flag != nullptr && (flags_.empty() || flags_.back() != flag)) flags_.push_back(flag);
  }
  /// Nobody can end the step.
  bool is_idle() const { return flags_.empty(); }

  /// From any thread of the step.
  bool is_cancelled() {
    if (is_seen_.load(std::memory_order_relaxed)) return true;
    if (std::ranges::none_of(flags_, is_raised)) return false;
    is_seen_.store(true, std::memory_order_relaxed);
    return true;
  }

  /// Throws kCancelled where it is. By the thread that leads, behind the pieces of the others.
  void check() {
    if (!is_cancelled()) return;
    throw Error(ErrorKind::kCancelled,
                "the step was cancelled by its host (StepInput::cancelled, "
                "EngineOptions::cancelled); its sequences are as they were before it");
  }

 private:
  std::vector<const std::atomic<bool>*> flags_;  // of the step
  std::atomic<bool> is_seen_{false};
};

}  // namespace vitrine::core
