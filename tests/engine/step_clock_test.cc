// SPDX-License-Identifier: Apache-2.0
// The clock of steps against steady_clock.
#include "engine/run/step_clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace vitrine::engine {
namespace {

TEST(StepClock, AgreesWithTheSystems) {
  StepClock clock;
  clock.begin();
  EXPECT_EQ(clock.nanoseconds(), 0u);  // it knows no rate yet
  clock.calibrate();
  for (int round = 0; round < 3; ++round) {
    const auto before = std::chrono::steady_clock::now();
    clock.begin();
    const auto begun = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    const auto ends = std::chrono::steady_clock::now();
    const auto found = static_cast<double>(clock.nanoseconds());
    const auto after = std::chrono::steady_clock::now();
    // A thread may be taken away between any two readings.
    EXPECT_GE(found, 0.97 * static_cast<double>(std::chrono::nanoseconds(ends - begun).count()));
    EXPECT_LE(found, 1.03 * static_cast<double>(std::chrono::nanoseconds(after - before).count()));
  }
}

}  // namespace
}  // namespace vitrine::engine
