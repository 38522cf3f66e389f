// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_clock.h"

#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace vitrine::engine {

namespace {

bool has_even_time_stamp() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
#else
  return false;
#endif
}

}  // namespace

StepClock::StepClock()
    : has_time_stamp_(has_even_time_stamp()),
      made_ticks_(ticks()),
      made_(std::chrono::steady_clock::now()) {}

uint64_t StepClock::ticks() const {
#if defined(__x86_64__)
  if (has_time_stamp_) return __rdtsc();
#endif
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}

void StepClock::calibrate() {
  constexpr std::chrono::milliseconds kLeast(2);
  if (ns_per_tick_ > 0) return;
  if (!has_time_stamp_) {
    ns_per_tick_ = 1;
    return;
  }
  std::this_thread::sleep_until(made_ + kLeast);
  const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - made_;
  const uint64_t now = ticks();
  const double each =
      now > made_ticks_ ? passed.count() / static_cast<double>(now - made_ticks_) : 0;
  // A counter that began anew, or that stood still, is none.
  has_time_stamp_ = each > 0.01 && each < 100;
  ns_per_tick_ = has_time_stamp_ ? each : 1;
}

}  // namespace vitrine::engine
