// SPDX-License-Identifier: Apache-2.0
// Which thread is inside an engine or a federation: they serve one thread at a time.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "vitrine/core.h"

namespace vitrine::engine {

/// The thread that is inside, if any.
class Occupant {
 public:
  /// `host`: who is occupied, for messages ("an engine"); must stay.
  explicit Occupant(const char* host) : host_(host) {}

  /// Goes inside where nobody is, for no longer than a step takes: whoever comes meanwhile waits.
  /// Returns false where somebody is inside; else leave_soon() has to follow, on the same thread.
  bool enter_if_free() {
    // This is counted before the thread is inside, so that whoever finds it there knows.
    brief_.fetch_add(1, std::memory_order_relaxed);
    std::thread::id nobody;
    if (thread_.compare_exchange_strong(nobody, std::this_thread::get_id(),
                                        std::memory_order_acq_rel)) {
      return true;
    }
    brief_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  void leave_soon() {
    thread_.store({}, std::memory_order_release);
    thread_.notify_all();
    brief_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  friend class Occupied;
  const char* host_;
  std::atomic<std::thread::id> thread_{};  // the thread that is inside; the id of no thread: nobody
  std::atomic<int> brief_{0};              // who is inside, or tries to be, for a moment alone
};

/// Occupies an engine or a federation for a scope. Allocates nothing where nobody else is inside.
class Occupied {
 public:
  enum Waiting { kThrows, kWaits, kReads };

  /// Goes inside. Where another thread is inside, kThrows throws kInvalidArgument, and the others
  /// wait until it has left; all wait for a thread that is inside for a moment only
  /// (enter_if_free). Where this thread is inside already (a sampler, sink or combiner of its step
  /// calls), kReads goes on within that, and the others throw.
  explicit Occupied(Occupant& occupant, Waiting waiting = kThrows) : occupant_(occupant) {
    const std::thread::id self = std::this_thread::get_id();
    while (true) {
      std::thread::id found;
      if (occupant_.thread_.compare_exchange_strong(found, self, std::memory_order_acquire)) return;
      is_entered_ = waiting != kReads || found != self;
      if (!is_entered_) return;
      if (found == self || (waiting == kThrows && stays(found))) refuse(found == self);
      occupant_.thread_.wait(found, std::memory_order_relaxed);
    }
  }
  ~Occupied() {
    if (!is_entered_) return;
    occupant_.thread_.store({}, std::memory_order_release);
    occupant_.thread_.notify_all();
  }
  Occupied(const Occupied&) = delete;
  Occupied& operator=(const Occupied&) = delete;

 private:
  /// Returns true where the thread that was found inside is there for more than a moment.
  bool stays(std::thread::id found) const {
    return occupant_.brief_.load(std::memory_order_acquire) == 0 &&
           occupant_.thread_.load(std::memory_order_relaxed) == found;
  }
  [[noreturn]] void refuse(bool is_own) const {
    const std::string host(occupant_.host_);
    throw Error(ErrorKind::kInvalidArgument,
                host + " serves one step at a time, and " +
                    (is_own ? "what this step calls (a sampler, sink or combiner) called it again"
                            : "another thread is in one") +
                    "; expected the next call when that has returned" +
                    (is_own ? "" : ", or " + host + " for each thread"));
  }

  Occupant& occupant_;
  bool is_entered_ = true;
};

}  // namespace vitrine::engine
