// SPDX-License-Identifier: Apache-2.0
// Measures how long steps take, for their records. A read costs as little as it can, since it is on
// the hot path.
#pragma once

#include <chrono>
#include <cstdint>

namespace vitrine::engine {

/// The processor's time stamp where it counts evenly (x86's invariant TSC), else steady_clock: that
/// one's page is out of the caches when a step has gone through its weights.
class StepClock {
 public:
  StepClock();
  /// Measures the ticks since construction, 2 ms of them at least, before the first reading.
  void calibrate();
  void begin() { began_ = ticks(); }
  /// Returns the time since begin(), 0 before calibrate(), which keeps a tick below 100 ns.
  uint64_t nanoseconds() const {
    const uint64_t now = ticks();  // behind, where a machine was moved to another processor
    return now > began_ ? static_cast<uint64_t>(static_cast<double>(now - began_) * ns_per_tick_)
                        : 0;
  }

 private:
  uint64_t ticks() const;

  bool has_time_stamp_;
  double ns_per_tick_ = 0;
  uint64_t made_ticks_ = 0, began_ = 0;
  std::chrono::steady_clock::time_point made_;
};

}  // namespace vitrine::engine
