// SPDX-License-Identifier: Apache-2.0
// States of sequences: who holds which slot, when one is copied, what is left where positions go.
#include <gtest/gtest.h>

#include "kv/block_pool.h"

namespace vitrine::kv {
namespace {

class StatePoolTest : public ::testing::Test {
 protected:
  StatePoolTest()
      : pool_(
            {64, 16, 96, 3, 2, /*states=*/6}, [](int32_t, int32_t) {},
            [this](int32_t from, int32_t to) {
              contents_[static_cast<size_t>(to)] =
                  from < 0 ? 0 : contents_[static_cast<size_t>(from)];
            }) {}

  /// A pass of so many tokens: the state's content is how many it has taken in.
  void step(uint64_t sequence, int64_t count, bool keeps = false) {
    const int64_t past = pool_.get(sequence).length;
    ASSERT_EQ(pool_.state_length(sequence), past);
    pool_.prepare(sequence, count);
    const int32_t slot = pool_.own_state(sequence, count, keeps);
    EXPECT_EQ(contents_[static_cast<size_t>(slot)], past) << "the state of the positions before";
    const std::vector<int32_t> tokens(static_cast<size_t>(count));
    pool_.append(sequence, tokens.data(), count);
    pool_.set_state_length(sequence, past + count);
    contents_[static_cast<size_t>(slot)] = past + count;
  }
  /// What a pass over the tokens does that the state has not taken in.
  void catch_up(uint64_t sequence) {
    const int32_t slot = pool_.own_state(sequence, 2, false);
    EXPECT_EQ(contents_[static_cast<size_t>(slot)], pool_.state_length(sequence));
    contents_[static_cast<size_t>(slot)] = pool_.get(sequence).length;
    pool_.set_state_length(sequence, pool_.get(sequence).length);
  }

  int64_t contents_[6] = {-1, -1, -1, -1, -1, -1};
  BlockPool pool_;
};

TEST_F(StatePoolTest, ForksShareUntilTheyWrite) {
  const uint64_t first = pool_.create();
  step(first, 5);
  const uint64_t second = pool_.fork(first);
  step(first, 2);
  step(second, 9);
  step(first, 1);
  EXPECT_EQ(pool_.state_length(first), 8);
  EXPECT_EQ(pool_.state_length(second), 14);
}

TEST_F(StatePoolTest, PrefixesThatWereUsedLeastRecentlyGiveFirst) {
  std::vector<uint64_t> prefixes;
  for (int64_t length = 10; length < 13; ++length) {
    const uint64_t sequence = pool_.create();
    step(sequence, length);
    prefixes.push_back(pool_.retain(sequence, length));
    pool_.release(sequence);
  }
  pool_.release(pool_.attach(prefixes[0], 10));
  const uint64_t first = pool_.create(), second = pool_.create();
  step(first, 3);
  step(second, 4);
  EXPECT_EQ(pool_.resumed_length(prefixes[1], 11), 11);
  step(first, 2, /*keeps=*/true);   // the sixth slot
  step(second, 2, /*keeps=*/true);  // one more
  EXPECT_EQ(pool_.resumed_length(prefixes[0], 10), 10);
  EXPECT_EQ(pool_.resumed_length(prefixes[1], 11), 0);
  EXPECT_EQ(pool_.resumed_length(prefixes[2], 12), 12);
  EXPECT_EQ(pool_.resumed_length(prefixes[2], 11), 0) << "its state has taken in more";
  EXPECT_THROW(pool_.resumed_length(prefixes[2], 13), Error);
}

TEST_F(StatePoolTest, TruncationGoesBackToAnEarlierStateOrToNone) {
  const uint64_t sequence = pool_.create();
  step(sequence, 10);
  step(sequence, 4, /*keeps=*/true);
  pool_.keep(sequence, 2);
  EXPECT_EQ(pool_.state_length(sequence), 10);
  catch_up(sequence);
  pool_.truncate(sequence, 11);
  EXPECT_EQ(pool_.state_length(sequence), 10) << "a prompt's end";
  catch_up(sequence);
  step(sequence, 3, /*keeps=*/true);
  pool_.truncate(sequence, 14);
  EXPECT_EQ(pool_.state_length(sequence), 14);
  pool_.truncate(sequence, 7);
  EXPECT_EQ(pool_.state_length(sequence), 0);
}

TEST_F(StatePoolTest, TurnsLeaveCheckpoints) {
  const uint64_t sequence = pool_.create();
  step(sequence, 20);
  for (int i = 0; i < 4; ++i) step(sequence, 1);  // an answer of four tokens
  step(sequence, 9);                              // the next prompt, in two chunks
  step(sequence, 7);
  step(sequence, 1);
  pool_.truncate(sequence, 40);  // the end of the second prompt
  EXPECT_EQ(pool_.state_length(sequence), 40);
  catch_up(sequence);
  step(sequence, 1);
  pool_.truncate(sequence, 39);
  EXPECT_EQ(pool_.state_length(sequence), 24) << "the end of the first answer";
  const uint64_t copy = pool_.fork(sequence);
  pool_.truncate(sequence, 23);
  EXPECT_EQ(pool_.state_length(sequence), 0) << "the end of the first prompt had to go";
  pool_.truncate(copy, 30);
  EXPECT_EQ(pool_.state_length(copy), 24);
}

TEST(StateCheckpoints, KeepTheNewestAndSpreadTheOthers) {
  StateCheckpoints checkpoints;
  EXPECT_EQ(checkpoints.last_length(), 0);
  EXPECT_LT(checkpoints.add({0, 100}).slot, 0);
  EXPECT_LT(checkpoints.add({1, 200}).slot, 0);
  EXPECT_EQ(checkpoints.add({2, 300}).slot, 0);
  EXPECT_EQ(checkpoints.last_length(), 300);
  EXPECT_EQ(checkpoints.remove(0).slot, 1);
  EXPECT_EQ(checkpoints.all().size(), 1U);
  EXPECT_EQ(checkpoints.all()[0].slot, 2);
}

TEST(StatePoolDistances, LongPromptsLeaveCheckpoints) {
  BlockPool pool(
      {256, 64, 16384, 1, 2, /*states=*/4}, [](int32_t, int32_t) {}, [](int32_t, int32_t) {});
  const uint64_t sequence = pool.create();
  const std::vector<int32_t> tokens(512);
  for (int64_t length = 0; length < 8192; length += 512) {
    pool.prepare(sequence, 512);
    pool.own_state(sequence, 512, false);
    pool.append(sequence, tokens.data(), 512);
    pool.set_state_length(sequence, length + 512);
  }
  pool.truncate(sequence, 7000);
  EXPECT_EQ(pool.state_length(sequence), 6144);
}

TEST_F(StatePoolTest, PrefixesKeepWhatTheyCan) {
  const uint64_t sequence = pool_.create();
  step(sequence, 20);
  const uint64_t whole = pool_.retain(sequence, 20), part = pool_.retain(sequence, 12);
  step(sequence, 3);
  const uint64_t one = pool_.attach(whole, 20), two = pool_.attach(part, 12);
  EXPECT_EQ(pool_.state_length(one), 20);
  EXPECT_EQ(pool_.state_length(two), 0);
  step(one, 1);
  catch_up(two);
  step(two, 1);
  pool_.release(two);
  const uint64_t three = pool_.attach(whole, 16);
  EXPECT_EQ(pool_.state_length(three), 0);
}

TEST_F(StatePoolTest, WhoRunsTakesTheSlotsOfWhoDoesNot) {
  std::vector<uint64_t> prefixes;
  for (int i = 0; i < 12; ++i) {
    const uint64_t sequence = pool_.create();
    step(sequence, 3 + i);
    prefixes.push_back(pool_.retain(sequence, 3 + i));
    pool_.release(sequence);
  }
  std::vector<uint64_t> sequences;
  for (int i = 0; i < 3; ++i) sequences.push_back(pool_.create());
  for (int pass = 0; pass < 4; ++pass) {
    for (const uint64_t sequence : sequences) step(sequence, 2, /*keeps=*/true);
  }
  for (const uint64_t prefix : prefixes) pool_.release_prefix(prefix);
  for (const uint64_t sequence : sequences) pool_.release(sequence);
}

TEST_F(StatePoolTest, AFailedPassLosesTheState) {
  const uint64_t sequence = pool_.create();
  step(sequence, 4);
  pool_.own_state(sequence, 1, false);
  pool_.lose_state(sequence);
  EXPECT_EQ(pool_.state_length(sequence), 4) << "the prompt's end";
  pool_.own_state(sequence, 1, false);
  pool_.truncate(sequence, 3);
  EXPECT_EQ(pool_.state_length(sequence), 0);
  catch_up(sequence);
  step(sequence, 1);
}

TEST_F(StatePoolTest, ForcedPositionsAreRemembered) {
  const uint64_t sequence = pool_.create();
  step(sequence, 6);
  pool_.set_forced_end(sequence, 6);
  EXPECT_EQ(pool_.forced_end(pool_.fork(sequence)), 6);
  pool_.truncate(sequence, 2);
  EXPECT_EQ(pool_.forced_end(sequence), 2);
}

}  // namespace
}  // namespace vitrine::kv
