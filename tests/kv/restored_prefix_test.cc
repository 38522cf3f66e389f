// SPDX-License-Identifier: Apache-2.0
// Prefixes that are made again from what another pool told of them.
#include <gtest/gtest.h>

#include "kv/block_pool.h"

namespace vitrine::kv {
namespace {

constexpr int64_t kBlocks = 12, kBlockSize = 16;

PoolSizes sizes_of(int64_t states = 0, int64_t window_blocks = 0) {
  return {kBlocks,       kBlockSize, 160, 4, 1, states, window_blocks > 0 ? int64_t{20} : 0,
          window_blocks, 64};
}

class RestoredPrefix : public ::testing::Test {
 protected:
  static BlockPool make(const PoolSizes& sizes) {
    const auto ignore = [](int32_t, int32_t) {};
    return {sizes, ignore, ignore, ignore};
  }
  static uint64_t grow(BlockPool& pool, int64_t count, int32_t first = 0) {
    const uint64_t sequence = pool.create();
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i));
    pool.prepare(sequence, count);
    if (pool.has_states()) {
      pool.own_state(sequence, count, false);
      pool.set_state_length(sequence, count);
    }
    pool.append(sequence, tokens.data(), count);
    pool.settle(sequence, false);
    return sequence;
  }
  static ErrorKind kind_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  }
};

TEST_F(RestoredPrefix, SharesTheBlocksOfItsParent) {
  BlockPool from = make(sizes_of()), to = make(sizes_of());
  const uint64_t sequence = grow(from, 70);
  const uint64_t whole = from.retain(sequence, 70), part = from.retain(sequence, 40);
  const uint64_t parent = to.restore(from.shape(part, 0), 0);
  EXPECT_EQ(to.num_free(), kBlocks - 3);
  const PrefixShape shape = from.shape(whole, 2);
  EXPECT_EQ(shape.first_block, 2);
  const uint64_t made = to.restore(shape, parent);
  EXPECT_EQ(to.num_free(), kBlocks - 3 - 3);
  EXPECT_EQ(to.prefix(made).history, from.prefix(whole).history);
  EXPECT_EQ(to.prefix(made).blocks[1], to.prefix(parent).blocks[1]);
  EXPECT_NE(to.prefix(made).blocks[2], to.prefix(parent).blocks[2]);
  EXPECT_EQ(to.resumed_length(made, 55), 55);
  to.release_prefix(parent);
  const uint64_t going_on = to.attach(made, 70);
  to.prepare(going_on, 20);
  to.release(going_on);
  to.release_prefix(made);
  EXPECT_EQ(to.num_free(), kBlocks);
}

TEST_F(RestoredPrefix, WhatDoesNotFitChangesNothing) {
  BlockPool pool = make(sizes_of());
  const uint64_t sequence = grow(pool, 100);
  const uint64_t whole = pool.retain(sequence, 100), other = pool.retain(grow(pool, 32, 7), 32);
  const PrefixShape shape = pool.shape(whole, 1);
  const int64_t free = pool.num_free();
  const auto refused = [&](const std::function<void(PrefixShape&)>& change, uint64_t parent) {
    PrefixShape changed = shape;
    change(changed);
    return kind_of([&] { pool.restore(changed, parent); });
  };
  const auto kInvalid = ErrorKind::kInvalidArgument;
  EXPECT_EQ(refused([](PrefixShape&) {}, whole), ErrorKind::kOutOfMemory);
  EXPECT_EQ(refused([](PrefixShape&) {}, other), kInvalid) << "which begins otherwise";
  EXPECT_EQ(refused([](PrefixShape&) {}, 99), kInvalid);
  EXPECT_EQ(refused([](PrefixShape& one) { one.first_block = 8; }, whole), kInvalid);
  EXPECT_EQ(refused([](PrefixShape& one) { one.adapter = 1; }, whole), kInvalid);
  EXPECT_EQ(refused([](PrefixShape& one) { one.history.resize(200); }, whole), kInvalid);
  EXPECT_EQ(refused([](PrefixShape& one) { one.state_length = 4; }, whole), kInvalid);
  EXPECT_EQ(refused([](PrefixShape& one) { one.holds_window = {1}; }, whole), kInvalid);
  EXPECT_EQ(refused([](PrefixShape& one) { one.window_points = {1}; }, whole), kInvalid);
  EXPECT_EQ(pool.num_free(), free);
}

TEST_F(RestoredPrefix, StatesAndWindowsTakeThePlaceOfWhatNobodyNeeds) {
  BlockPool from = make(sizes_of(8)), to = make(sizes_of(2));
  const PrefixShape with_state = from.shape(from.retain(grow(from, 40), 40), 0);
  EXPECT_EQ(with_state.state_length, 40);
  uint64_t last = 0;
  for (int i = 0; i < 4; ++i) {
    last = to.restore(with_state, 0);
    EXPECT_EQ(to.resumed_length(last, 40), 40);
    if (i < 3) to.release_prefix(last);
  }
  to.restore(with_state, 0);
  to.restore(with_state, 0);
  EXPECT_EQ(to.resumed_length(last, 40), 0) << "its state gave way";

  BlockPool window_from = make(sizes_of(0, 12)), window_to = make(sizes_of(0, 5));
  const uint64_t sequence = grow(window_from, 64);
  const PrefixShape with_window = window_from.shape(window_from.retain(sequence, 64), 0);
  EXPECT_EQ(with_window.window_points, std::vector<int64_t>{64});
  const uint64_t first = window_to.restore(with_window, 0);
  EXPECT_EQ(window_to.resumed_length(first, 64), 64);
  const uint64_t second = window_to.restore(with_window, 0);
  EXPECT_EQ(window_to.resumed_length(second, 64), 64);
  EXPECT_EQ(window_to.resumed_length(first, 64), 0) << "its window gave way";
}

}  // namespace
}  // namespace vitrine::kv
