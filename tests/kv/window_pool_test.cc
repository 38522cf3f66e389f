// SPDX-License-Identifier: Apache-2.0
// Blocks of layers within a window: which stay, which are asked back, and what a sequence can go on
// from where positions go.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/kv/window_model.h"

namespace vitrine::kv {
namespace {

constexpr int64_t kBlock = 64, kWindow = 100;

PoolSizes sizes_of(int64_t window_blocks, int64_t sequences = 4) {
  return {400, kBlock, 3200, sequences, 2, 0, kWindow, window_blocks, 128};
}

int64_t held(const SequenceBlocks& blocks) {
  return std::ranges::count_if(blocks.window_blocks, [](int32_t block) { return block >= 0; });
}

TEST(WindowPool, GivesBackWhatLiesBelow) {
  WindowModel model(sizes_of(40));
  const uint64_t sequence = model.create();
  for (int64_t length = 128; length <= 1280; length += 128) model.step(sequence, 128);
  EXPECT_EQ(model.pool().num_free(), 400 - 20) << "other layers keep all";
  // Positions from 1,181 on are seen, from 1,152 on they are read, and a block below stays.
  EXPECT_EQ(held(model.pool().get(sequence)), 3);
  EXPECT_EQ(model.pool().num_free_window(), 37);
  for (int i = 0; i < 200; ++i) {
    model.step(sequence, 1);
    EXPECT_GE(model.pool().num_free_window(), 40 - 4);
  }
  EXPECT_EQ(held(model.pool().get(sequence)), 4 + 2) << "the prompt's end is a checkpoint";
  EXPECT_EQ(model.pool().num_free_window(), 36) << "which nobody needs";
  model.release(sequence);
  EXPECT_EQ(model.pool().num_free_window(), 40);
  EXPECT_EQ(model.pool().num_free(), 400);
}

TEST(WindowPool, AFewPositionsGoWithoutRunningAny) {
  WindowModel model(sizes_of(40));
  const uint64_t sequence = model.create();
  model.step(sequence, 700);
  for (const int64_t dropped : {1, 3, 7, 13}) {
    const int64_t length = model.pool().get(sequence).length;
    model.truncate(sequence, length - dropped);
    EXPECT_EQ(model.pool().window_length(sequence), length - dropped);
    model.check_seen(sequence);
  }
  model.step(sequence, 300);
  model.truncate(sequence, model.pool().get(sequence).length - kBlock);
  EXPECT_EQ(model.pool().window_length(sequence), model.pool().get(sequence).length);
  model.step(sequence, 6, /*keeps=*/true);
  model.keep(sequence, 2, 6);
  model.step(sequence, 100, /*keeps=*/true);
  model.keep(sequence, 0, 100);
  model.step(sequence, 1);
  EXPECT_EQ(model.run_again(), 0);
}

TEST(WindowPool, TruncationGoesBackToACheckpointOrToNone) {
  WindowModel model(sizes_of(60));
  const uint64_t sequence = model.create();
  model.step(sequence, 500);
  for (int i = 0; i < 300; ++i) model.step(sequence, 1);  // an answer
  model.step(sequence, 400);                              // the next prompt
  model.truncate(sequence, 950);
  EXPECT_EQ(model.pool().window_length(sequence), 800) << "the answer's end";
  model.step(sequence, 10);
  EXPECT_EQ(model.run_again(), 150);
  model.truncate(sequence, 700);
  EXPECT_EQ(model.pool().window_length(sequence), 500) << "the prompt's end";
  model.step(sequence, 1);
  EXPECT_EQ(model.run_again(), 150 + 200);
  const uint64_t copy = model.fork(sequence);
  model.truncate(copy, 500);
  EXPECT_EQ(model.pool().window_length(copy), 500);
  model.truncate(sequence, 400);
  EXPECT_EQ(model.pool().window_length(sequence), 0);
  model.step(sequence, 1);
  EXPECT_EQ(model.run_again(), 150 + 200 + 400);
  model.check_all();
}

TEST(WindowPool, LongPromptsLeaveCheckpoints) {
  WindowModel model(sizes_of(60));
  const uint64_t sequence = model.create();
  for (int i = 0; i < 25; ++i) model.step(sequence, 128);
  model.truncate(sequence, 2700);
  EXPECT_EQ(model.pool().window_length(sequence), 2048);
}

/// A prefix of a text of its own.
uint64_t retain_text(WindowModel& model, int64_t length) {
  const uint64_t sequence = model.create();
  model.step(sequence, length);
  const uint64_t prefix = model.pool().retain(sequence, length);
  model.release(sequence);
  return prefix;
}

TEST(WindowPool, PrefixesThatWereUsedLeastRecentlyGiveFirst) {
  WindowModel model(sizes_of(22));
  std::vector<uint64_t> prefixes;
  for (int i = 0; i < 6; ++i) prefixes.push_back(retain_text(model, 300));
  model.release(model.attach(prefixes[0], 300));
  const uint64_t runs = model.create();
  for (int i = 0; i < 4; ++i) model.step(runs, 128);
  const auto is_whole = [&](size_t i) {
    return model.pool().resumed_length(prefixes[i], 300) == 300;
  };
  EXPECT_FALSE(is_whole(1));
  for (const size_t i : {0U, 3U, 4U, 5U}) EXPECT_TRUE(is_whole(i)) << i;
  // The one that has given says what is left of it.
  EXPECT_EQ(model.pool().resumed_length(prefixes[1], 300), 0);
  const uint64_t again = model.attach(prefixes[1], 300);
  EXPECT_EQ(model.pool().computed_length(again), 0);
  model.step(again, 1);
  EXPECT_EQ(model.run_again(), 300);
  model.check_all();
}

TEST(WindowPool, WhatManyShareStaysLongest) {
  WindowModel model(sizes_of(12));
  const uint64_t sequence = model.create();
  model.step(sequence, 300);
  std::vector<uint64_t> shared;
  for (int i = 0; i < 100; ++i) shared.push_back(model.pool().retain(sequence, 300));
  model.release(sequence);
  const uint64_t own = retain_text(model, 300), other = retain_text(model, 300);
  const uint64_t runs = model.create();
  for (int i = 0; i < 4; ++i) model.step(runs, 128);
  EXPECT_EQ(model.pool().resumed_length(own, 300), 0);
  for (const uint64_t prefix : shared) EXPECT_EQ(model.pool().resumed_length(prefix, 300), 300);
  // Where there is nothing else, they give, too.
  for (const uint64_t prefix : {own, other}) model.pool().release_prefix(prefix);
  const uint64_t more = model.create(), last = model.create();
  for (int i = 0; i < 2; ++i) {
    for (const uint64_t each : {more, last}) model.step(each, 128);
  }
  EXPECT_EQ(model.pool().resumed_length(shared[0], 300), 0);
  model.check_all();
}

TEST(WindowPool, PrefixesHoldTheirWindow) {
  WindowModel model(sizes_of(60));
  const uint64_t sequence = model.create();
  model.step(sequence, 500);
  for (int i = 0; i < 300; ++i) model.step(sequence, 1);
  const uint64_t whole = model.pool().retain(sequence, 800);
  const uint64_t part = model.pool().retain(sequence, 600);
  const uint64_t early = model.pool().retain(sequence, 450);
  const uint64_t none = model.pool().retain(sequence, 0);
  const int64_t free = model.pool().num_free_window();
  for (int i = 0; i < 400; ++i) model.step(sequence, 1);
  model.release(sequence);
  EXPECT_GE(model.pool().num_free_window(), free);
  for (const auto& [prefix, length, expected] : {std::tuple{whole, 800, 800},
                                                 {whole, 790, 790},
                                                 {whole, 700, 700},
                                                 {whole, 660, 500},
                                                 {whole, 500, 500},
                                                 {whole, 490, 490},
                                                 {whole, 480, 0},
                                                 {whole, 0, 0},
                                                 {part, 600, 500},
                                                 {part, 480, 0},
                                                 {early, 450, 0},
                                                 {none, 0, 0}}) {
    const uint64_t attached = model.attach(prefix, length);
    EXPECT_EQ(model.pool().window_length(attached), expected) << length;
    model.check_seen(attached);
    model.step(attached, 70);
    model.check_all();
    model.release(attached);
  }
  for (const uint64_t prefix : {whole, part, early, none}) model.pool().release_prefix(prefix);
  EXPECT_EQ(model.pool().num_free_window(), 60);
}

TEST(WindowPool, WhoRunsTakesWhatNobodyNeeds) {
  const PoolSizes sizes = sizes_of(11, 2);
  WindowModel model(sizes);
  std::vector<uint64_t> prefixes;
  const uint64_t sequence = model.create();
  for (int i = 0; i < 12; ++i) {
    model.step(sequence, i % 2 == 0 ? 128 : 1);
    prefixes.push_back(model.pool().retain(sequence, model.pool().get(sequence).length));
  }
  const auto has_lost = [&](uint64_t prefix) {
    return model.pool().prefix(prefix).window_points.empty();
  };
  const auto lost = std::ranges::find_if(prefixes, has_lost);
  ASSERT_NE(lost, prefixes.end());
  const uint64_t other = model.attach(*lost, 128);
  EXPECT_EQ(model.pool().window_length(other), 0);
  const WindowModel::Part parts[] = {{sequence, 60}, {other, 60}};
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(model.fits(parts));
    model.step(parts);
    model.check_all();
  }
  for (const uint64_t prefix : prefixes) model.pool().release_prefix(prefix);
}

TEST(WindowPool, ATallyKnowsWhatItTakesToRunTokensAgain) {
  WindowModel model(sizes_of(12, 3));
  const uint64_t sequence = model.create();
  const WindowModel::Part whole{sequence, 12 * kBlock + 1};
  EXPECT_FALSE(model.fits({&whole, 1}));
  for (int i = 0; i < 6; ++i) model.step(sequence, 128);
  model.truncate(sequence, 400);
  const WindowModel::Part one{sequence, 1};
  EXPECT_TRUE(model.fits({&one, 1}));
  const uint64_t other = model.create();
  model.step(other, 128);
  const uint64_t third = model.create();
  model.step(third, 128);
  EXPECT_TRUE(model.fits({&one, 1}));
  model.step(third, 64);
  EXPECT_FALSE(model.fits({&one, 1}));
  model.release(third);
  model.step(sequence, 1);
  model.check_all();
}

TEST(WindowPool, ForksNeedABlockForAPartialOne) {
  WindowModel model(sizes_of(2, 3));
  const uint64_t sequence = model.create();
  model.step(sequence, 2 * kBlock - 1);
  try {
    model.fork(sequence);
    FAIL() << "it was forked";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  }
  EXPECT_EQ(model.pool().num_sequences(), 1);
  model.step(sequence, 1);
  EXPECT_NO_THROW(model.fork(sequence));
  model.check_all();
}

TEST(WindowPool, LayersThatLagKeepWhatTheySee) {
  WindowModel model(sizes_of(40));
  const uint64_t sequence = model.create();
  model.step(sequence, 128);
  model.pool().hold_layers(sequence);
  for (int i = 1; i < 6; ++i) {
    model.step(sequence, 128);
    model.pool().set_layer_length(sequence, 0, 1, 128 + 128 * i);
    model.pool().settle(sequence, false);
  }
  // The last layer has 128 positions, of which it sees the last 99.
  EXPECT_GE(model.pool().get(sequence).window_blocks[0], 0);
  const uint64_t copy = model.fork(sequence);
  EXPECT_GE(model.pool().get(copy).window_blocks[0], 0);
  model.truncate(copy, 200);
  EXPECT_GE(model.pool().get(copy).window_blocks[0], 0);
  model.pool().set_layer_length(sequence, 1, 2, 768);
  model.pool().settle(sequence, false);
  EXPECT_LT(model.pool().get(sequence).window_blocks[0], 0);
  model.check_all();
}

/// Windows, block lengths and steps of all kinds; a pool that has enough refuses no step, and one
/// that has not does not fail where the tally says that it fits.
struct Walk {
  int64_t window, block_size;
  int64_t missing;  // blocks less than enough
};

class WindowWalk : public ::testing::TestWithParam<Walk> {};

TEST_P(WindowWalk, KeepsEveryWindow) {
  PoolSizes sizes{4000, GetParam().block_size, 700, 5, 2, 0, GetParam().window, 0, 150};
  sizes.window_blocks = enough_window_blocks(sizes) - GetParam().missing;
  WindowModel model(sizes);
  std::mt19937 random(7);
  std::vector<uint64_t> prefixes;
  int64_t refused = 0, forks = 0, attached = 0, failed = 0;
  const auto any = [&] {
    auto chosen = model.pasts().begin();
    std::advance(chosen, static_cast<long>(random() % model.pasts().size()));
    return chosen->first;
  };
  for (int turn = 0; turn < 3000; ++turn) {
    const bool has_room = std::ssize(model.pasts()) < sizes.max_sequences;
    if (model.pasts().empty()) model.create();
    const uint32_t what = random() % 20;
    const uint64_t sequence = any();
    const int64_t length = model.pool().get(sequence).length;
    if (what < 11) {
      std::vector<WindowModel::Part> parts;
      int64_t left = sizes.max_step_tokens;
      const bool is_drafted = random() % 4 == 0, is_decode = random() % 2 == 0;
      for (const auto& [each, past] : model.pasts()) {
        if (each != sequence && random() % 2 == 0) continue;
        int64_t count = is_drafted ? 8 : is_decode ? 1 : 1 + random() % 140;
        count = std::min({count, left, sizes.max_context - std::ssize(past)});
        if (count <= 0) continue;
        left -= count;
        parts.push_back({each, count, is_drafted});
      }
      if (parts.empty()) continue;
      if (!model.fits(parts)) {
        ++refused;
        model.release(sequence);
        continue;
      }
      const bool fails = random() % 12 == 0;
      failed += fails;
      model.step(parts, fails);
      for (const WindowModel::Part& part : parts) {
        if (part.keeps && !fails)
          model.keep(part.sequence, random() % (part.count + 1), part.count);
      }
    } else if (what < 14) {
      const int64_t back = random() % 2 == 0 ? random() % 30 : random() % (length + 1);
      model.truncate(sequence, std::max<int64_t>(0, length - back));
    } else if (what < 16 && has_room && model.pool().num_free_window() > 0) {
      model.fork(sequence);
      ++forks;
    } else if (what == 16) {
      model.release(sequence);
    } else if (what == 17 && prefixes.size() < 4) {
      prefixes.push_back(model.pool().retain(sequence, random() % (length + 1)));
    } else if (what == 18 && has_room && !prefixes.empty()) {
      const uint64_t prefix = prefixes[random() % prefixes.size()];
      model.attach(prefix, random() % (model.pool().prefix(prefix).length + 1));
      ++attached;
    } else if (what == 19 && !prefixes.empty()) {
      model.pool().release_prefix(prefixes.front());
      prefixes.erase(prefixes.begin());
    }
    model.check_all();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(forks, 50);
  EXPECT_GT(attached, 30);
  EXPECT_GT(failed, 50);
  EXPECT_GT(model.run_again(), 500);
  EXPECT_EQ(refused > 0, GetParam().missing > 0) << refused;
  while (!model.pasts().empty()) model.release(model.pasts().begin()->first);
  for (const uint64_t prefix : prefixes) model.pool().release_prefix(prefix);
  EXPECT_EQ(model.pool().num_free_window(), sizes.window_blocks);
  // Nobody holds any: all of them can be taken.
  int64_t left = sizes.window_blocks;
  while (left > 0) {
    const int64_t blocks = std::min(left, sizes.max_context / sizes.block_size);
    model.pool().prepare(model.create(), blocks * sizes.block_size);
    left -= blocks;
    if (std::ssize(model.pasts()) == sizes.max_sequences) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, WindowWalk,
                         ::testing::Values(Walk{1, 16, 0}, Walk{23, 16, 0}, Walk{64, 32, 0},
                                           Walk{65, 48, 0}, Walk{100, 64, 0}, Walk{129, 64, 0},
                                           Walk{37, 128, 0}, Walk{23, 16, 85}, Walk{100, 64, 37}));

}  // namespace
}  // namespace vitrine::kv
