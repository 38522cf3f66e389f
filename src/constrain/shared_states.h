// SPDX-License-Identifier: Apache-2.0
// Many threads read what a grammar has compiled; one at a time adds to it.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>

namespace vitrine::constrain {

/// Thrown by must_write(): something has to be made first, by a thread that is alone.
struct NotMade {};

inline thread_local bool reads_only = false;

/// Stands before everything that adds to what a grammar has compiled.
inline void must_write() {
  if (reads_only) throw NotMade();
}

/// The lock of one compiled grammar. A thread that no other disturbs works alone, and adds as it
/// goes. Where threads meet, each first tries with what is there already, beside the others; only
/// who lacks something waits to be alone.
class SharedStates {
 public:
  /// Runs `work`. Where it has to be run again, `undo` runs before, with what `work` has done so
  /// far to its own memory. What `work` throws is thrown.
  template <typename Work, typename Undo>
  auto run(Work&& work, Undo&& undo) {
    if (!is_busy()) {
      const std::unique_lock alone(mutex_, std::try_to_lock);
      if (alone.owns_lock()) return work();
      busy_.store(kBusyFor, std::memory_order_relaxed);
    }
    try {
      const Reading reading(*this);
      return work();
    } catch (const NotMade&) {
      undo();
    }
    return run_alone(work);
  }
  template <typename Work>
  auto run_alone(Work&& work) {
    const std::lock_guard turn(turn_);
    const std::lock_guard alone(mutex_);
    return work();
  }
  /// For what adds nothing.
  template <typename Work>
  auto read(Work&& work) const {
    const Reading reading(*this);
    return work();
  }

 private:
  static constexpr uint32_t kBusyFor = 64;  // so often other threads are reckoned with

  class Reading {
   public:
    explicit Reading(const SharedStates& states) : states_(states) {
      // Who waits to be alone goes before those who come later.
      const std::lock_guard turn(states_.turn_);
      states_.mutex_.lock_shared();
      reads_only = true;
    }
    ~Reading() {
      reads_only = false;
      states_.mutex_.unlock_shared();
    }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const SharedStates& states_;
  };

  bool is_busy() {
    const uint32_t left = busy_.load(std::memory_order_relaxed);
    if (left == 0) return false;
    busy_.store(left - 1, std::memory_order_relaxed);
    return true;
  }

  mutable std::mutex turn_;
  mutable std::shared_mutex mutex_;
  std::atomic<uint32_t> busy_ = 0;
};

}  // namespace vitrine::constrain
