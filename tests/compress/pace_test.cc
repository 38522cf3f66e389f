// SPDX-License-Identifier: Apache-2.0
// The time that is left, by a clock of the test's own.
#include <gtest/gtest.h>

#include "compress/progress.h"

namespace vitrine::compress {
namespace {

TEST(Pace, TellsTheTimeOfWhatIsLeft) {
  double now = 100;
  Pace pace({1, 2, 4, 1}, [&now] { return now; });
  EXPECT_LT(pace.seconds_left(), 0);
  pace.begin(0);
  now += 3;
  EXPECT_LT(pace.seconds_left(), 0);  // no part has ended
  pace.end(true);
  EXPECT_EQ(pace.seconds_left(), 21);
  pace.begin(1);
  now += 4;
  EXPECT_EQ(pace.seconds_left(), 17);
  now += 4;  // longer than its share
  EXPECT_EQ(pace.seconds_left(), 15);
  pace.end(true);  // 3 units took 11 seconds
  EXPECT_DOUBLE_EQ(pace.seconds_left(), 5 * 11.0 / 3);
}

TEST(Pace, LeavesOutWhatWasTakenUp) {
  double now = 0;
  Pace pace({1, 1, 1}, [&now] { return now; });
  pace.begin(0);
  now += 0.001;
  pace.end(false);
  EXPECT_LT(pace.seconds_left(), 0);
  pace.begin(1);
  now += 5;
  pace.end(true);
  EXPECT_EQ(pace.seconds_left(), 5);
  pace.begin(2);
  pace.end(true);
  EXPECT_EQ(pace.seconds_left(), 0);
}

}  // namespace
}  // namespace vitrine::compress
