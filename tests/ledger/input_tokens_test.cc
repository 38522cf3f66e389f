// SPDX-License-Identifier: Apache-2.0
// Which records of a run put in a token, and which read it again.
#include "ledger/input_tokens.h"

#include <gtest/gtest.h>

namespace vitrine::testing {
namespace {

class InputTokensTest : public ::testing::Test {
 protected:
  /// How many of these, from `position` on, count; the last ones `generates` a token each.
  int read(uint64_t sequence, int64_t position, const std::vector<int32_t>& tokens,
           size_t generates = 0) {
    int count = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      TokenRecord record;
      record.sequence = sequence;
      record.position = position + static_cast<int64_t>(i);
      record.token = tokens[i];
      record.has_prediction = record.prediction.generated = i + generates >= tokens.size();
      count += input_.is_first_reading(record) ? 1 : 0;
    }
    return count;
  }
  void fork(uint64_t sequence, uint64_t source, int64_t length) {
    input_.on_event(
        {.kind = VtrEvent::Kind::kForked, .sequence = sequence, .source = source, .count = length});
  }
  void release(uint64_t sequence) {
    input_.on_event({.kind = VtrEvent::Kind::kReleased, .sequence = sequence});
  }
  InputTokens input_;
};

TEST_F(InputTokensTest, APromptAndItsAnswer) {
  EXPECT_EQ(read(1, 0, {5, 6, 7, 8, 9}, 3), 3);  // 8 and 9 were chosen
  EXPECT_EQ(read(1, 5, {4, 3}, 1), 1);           // 4 was chosen, 3 comes with the next message
  EXPECT_EQ(read(2, 0, {5, 6, 7}, 1), 3);        // another request
  EXPECT_FALSE(input_.is_unknown());
}

TEST_F(InputTokensTest, Candidates) {
  EXPECT_EQ(read(1, 0, {5, 6}), 2);
  fork(2, 1, 2);
  EXPECT_EQ(read(2, 2, {7, 8, 9}, 3), 1);
  release(2);
  fork(3, 1, 2);
  EXPECT_EQ(read(3, 2, {7, 1}, 2), 0);
  fork(4, 1, 2);
  EXPECT_EQ(read(4, 2, {7, 5, 5}, 1), 2);  // goes on with what it was given
  fork(5, 1, 2);
  EXPECT_EQ(read(5, 2, {2, 7}, 1), 2);  // another prompt
  EXPECT_EQ(read(1, 2, {3}, 1), 1);     // the source itself goes on
  fork(6, 1, 3);
  EXPECT_EQ(read(6, 3, {4}, 1), 0);  // what the source chose
  fork(7, 1, 1);                     // shorter than the source: nothing is known of it
  EXPECT_EQ(read(7, 1, {6, 7}, 1), 2);
}

TEST_F(InputTokensTest, AForkOfNothing) {
  for (uint64_t fork_id = 2; fork_id < 5; ++fork_id) {
    fork(fork_id, 1, 0);
    EXPECT_EQ(read(fork_id, 0, {7, 8, 9}, 3), fork_id == 2 ? 1 : 0);
  }
}

TEST_F(InputTokensTest, Attempts) {
  EXPECT_EQ(read(1, 0, {5, 6, 7, 8}, 2), 3);
  EXPECT_EQ(read(1, 2, {7, 9, 9}, 3), 0);
  EXPECT_EQ(read(1, 2, {7, 8}, 2), 0);
  EXPECT_EQ(read(1, 1, {6, 7, 1}, 2), 0);
  EXPECT_EQ(read(1, 1, {6, 4, 1}, 1), 2);  // 4 stands where 7 was
  EXPECT_EQ(read(1, 0, {1, 6, 4}, 1), 3);  // behind another token they are others
}

TEST_F(InputTokensTest, WhatIsLeftOutIsUnknownWhereItMatters) {
  EXPECT_EQ(read(1, 0, {-1, -1, -1, -1}, 2), 3);
  EXPECT_FALSE(input_.is_unknown());
  read(1, 2, {-1}, 1);
  EXPECT_TRUE(input_.is_unknown());
}

TEST_F(InputTokensTest, ManyTruncationsTakeNoLongerThanTheirRecords) {
  read(1, 0, std::vector<int32_t>(100000, 5));
  for (int i = 0; i < 100000; ++i) {
    fork(2, 1, 100000);
    read(2, 100000, {5});
    read(2, 0, {6});
    release(2);
  }
}

}  // namespace
}  // namespace vitrine::testing
