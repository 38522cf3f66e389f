// SPDX-License-Identifier: Apache-2.0
// KV blocks: who holds which, how often each is counted, when one is copied.
#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace vitrine::kv {
namespace {

constexpr int64_t kBlocks = 12, kBlockSize = 16, kContext = 96, kSequences = 8, kLayers = 3;
constexpr PoolSizes kSizes{kBlocks, kBlockSize, kContext, kSequences, kLayers};

int64_t blocks_needed(const BlockPool& pool, std::initializer_list<uint64_t> sequences,
                      int64_t count) {
  BlockPool::Tally tally(pool);
  for (const uint64_t sequence : sequences) EXPECT_TRUE(tally.add(sequence, count));
  return tally.blocks();
}

std::vector<int32_t> copy_of(std::span<const int32_t> ids) { return {ids.begin(), ids.end()}; }

class BlockPoolTest : public ::testing::Test {
 protected:
  BlockPoolTest()
      : pool_(kSizes, [this](int32_t from, int32_t to) { copies_.emplace_back(from, to); }) {}

  void append(uint64_t sequence, int64_t count, int32_t first = 0) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i));
    const int64_t free = pool_.num_free(), needed = blocks_needed(pool_, {sequence}, count);
    pool_.prepare(sequence, count);
    EXPECT_EQ(free - pool_.num_free(), needed);
    pool_.append(sequence, tokens.data(), count);
  }
  std::vector<int32_t> references(uint64_t sequence) const {
    std::vector<int32_t> counts;
    for (int32_t block : pool_.get(sequence).blocks) counts.push_back(pool_.references(block));
    return counts;
  }
  ErrorKind error_kind(const std::function<void()>& action) const {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      return error.kind();
    }
    return ErrorKind::kInternal;
  }

  std::vector<std::pair<int32_t, int32_t>> copies_;
  BlockPool pool_;
};

TEST_F(BlockPoolTest, GrowsBlockByBlock) {
  const uint64_t sequence = pool_.create();
  EXPECT_EQ(pool_.num_free(), kBlocks);
  EXPECT_EQ(blocks_needed(pool_, {sequence}, 0), 0);
  EXPECT_EQ(blocks_needed(pool_, {sequence}, 16), 1);
  EXPECT_EQ(blocks_needed(pool_, {sequence}, 17), 2);
  append(sequence, 16);
  EXPECT_EQ(pool_.get(sequence).blocks.size(), 1u);
  append(sequence, 1, 16);
  EXPECT_EQ(pool_.get(sequence).blocks.size(), 2u);
  append(sequence, 15, 17);
  EXPECT_EQ(blocks_needed(pool_, {sequence}, 1), 1);
  EXPECT_EQ(pool_.num_free(), kBlocks - 2);
  EXPECT_EQ(pool_.get(sequence).length, 32);
  for (int32_t i = 0; i < 32; ++i)
    EXPECT_EQ(pool_.get(sequence).history[static_cast<size_t>(i)], i);
  EXPECT_TRUE(copies_.empty());
  pool_.release(sequence);
  EXPECT_EQ(pool_.num_free(), kBlocks);
}

TEST_F(BlockPoolTest, PreparingTwiceTakesNothingMore) {
  const uint64_t sequence = pool_.create();
  pool_.prepare(sequence, 20);
  pool_.prepare(sequence, 20);
  EXPECT_EQ(pool_.num_free(), kBlocks - 2);
  EXPECT_EQ(pool_.get(sequence).length, 0);
  pool_.truncate(sequence, 0);
  EXPECT_EQ(pool_.num_free(), kBlocks);
}

TEST_F(BlockPoolTest, ForkSharesFullBlocksAndCopiesAPartialOne) {
  const uint64_t one = pool_.create();
  append(one, 40);
  const uint64_t two = pool_.fork(one);
  EXPECT_EQ(references(one), (std::vector<int32_t>{2, 2, 1}));
  EXPECT_EQ(references(two), (std::vector<int32_t>{2, 2, 1}));
  ASSERT_EQ(copies_.size(), 1u);
  EXPECT_EQ(copies_[0].first, pool_.get(one).blocks[2]);
  EXPECT_EQ(copies_[0].second, pool_.get(two).blocks[2]);
  EXPECT_EQ(pool_.num_free(), kBlocks - 4);
  EXPECT_EQ(copy_of(pool_.get(two).history), copy_of(pool_.get(one).history));
  EXPECT_EQ(pool_.get(two).length, 40);
  append(two, 10, 100);
  EXPECT_EQ(copies_.size(), 1u);
  EXPECT_EQ(pool_.get(one).length, 40);
  const uint64_t three = pool_.fork(two);
  EXPECT_EQ(references(three), (std::vector<int32_t>{3, 3, 2, 1}));
  pool_.release(two);
  EXPECT_EQ(references(three), (std::vector<int32_t>{2, 2, 1, 1}));
  pool_.release(one);
  EXPECT_EQ(references(three), (std::vector<int32_t>{1, 1, 1, 1}));
  pool_.release(three);
  EXPECT_EQ(pool_.num_free(), kBlocks);
}

TEST_F(BlockPoolTest, ForkAtABorderCopiesNothing) {
  const uint64_t one = pool_.create();
  append(one, 32);
  const uint64_t two = pool_.fork(one);
  EXPECT_TRUE(copies_.empty());
  EXPECT_EQ(pool_.num_free(), kBlocks - 2);
  append(two, 1);
  append(one, 1);
  EXPECT_TRUE(copies_.empty());
  EXPECT_NE(pool_.get(one).blocks[2], pool_.get(two).blocks[2]);
  const uint64_t empty = pool_.fork(pool_.create());
  EXPECT_EQ(pool_.get(empty).length, 0);
}

TEST_F(BlockPoolTest, WritingIntoASharedBlockCopiesIt) {
  const uint64_t one = pool_.create();
  append(one, 32);
  const uint64_t two = pool_.fork(one);
  pool_.truncate(two, 20);
  EXPECT_EQ(references(two), (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(blocks_needed(pool_, {two}, 1), 1);
  const int32_t shared = pool_.get(one).blocks[1];
  append(two, 1, 50);
  ASSERT_EQ(copies_.size(), 1u);
  EXPECT_EQ(copies_[0].first, shared);
  EXPECT_EQ(copies_[0].second, pool_.get(two).blocks[1]);
  EXPECT_NE(pool_.get(two).blocks[1], shared);
  EXPECT_EQ(pool_.get(one).blocks[1], shared);
  EXPECT_EQ(references(one), (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(pool_.get(two).history[20], 50);
  append(two, 3);  // its own now
  EXPECT_EQ(copies_.size(), 1u);
}

TEST_F(BlockPoolTest, TheLastSharerKeepsTheBlock) {
  const uint64_t one = pool_.create();
  append(one, 16);
  const uint64_t two = pool_.fork(one), three = pool_.fork(one);
  for (uint64_t sequence : {one, two, three}) pool_.truncate(sequence, 10);
  EXPECT_EQ(pool_.get(one).blocks.back(), pool_.get(two).blocks.back());
  EXPECT_EQ(blocks_needed(pool_, {one}, 1), 1);
  EXPECT_EQ(blocks_needed(pool_, {two, three}, 1), 2);
  EXPECT_EQ(blocks_needed(pool_, {two, one, three}, 1), 2) << "the last of them has it alone";
  for (uint64_t sequence : {one, two, three}) append(sequence, 1);
  EXPECT_EQ(copies_.size(), 2u);
  EXPECT_EQ(pool_.num_free(), kBlocks - 3);
  EXPECT_NE(pool_.get(one).blocks.back(), pool_.get(two).blocks.back());
}

TEST_F(BlockPoolTest, TruncateGivesBlocksBack) {
  const uint64_t sequence = pool_.create();
  append(sequence, 50);
  pool_.truncate(sequence, 33);
  EXPECT_EQ(pool_.num_free(), kBlocks - 3);
  pool_.truncate(sequence, 32);
  EXPECT_EQ(pool_.num_free(), kBlocks - 2);
  EXPECT_EQ(pool_.get(sequence).history.size(), 32u);
  pool_.truncate(sequence, 32);
  EXPECT_EQ(pool_.num_free(), kBlocks - 2);
  pool_.truncate(sequence, 0);
  EXPECT_EQ(pool_.num_free(), kBlocks);
  for (int64_t length : {int64_t{1}, int64_t{-1}}) {
    EXPECT_EQ(error_kind([&] { pool_.truncate(sequence, length); }), ErrorKind::kInvalidArgument);
  }
}

TEST_F(BlockPoolTest, ForkWithoutAFreeBlockChangesNothing) {
  const uint64_t one = pool_.create(), two = pool_.create();
  append(one, 90);
  append(two, 96);
  EXPECT_EQ(pool_.num_free(), 0);
  EXPECT_EQ(error_kind([&] { pool_.fork(one); }), ErrorKind::kOutOfMemory);
  EXPECT_EQ(references(one), std::vector<int32_t>(6, 1));
  EXPECT_TRUE(copies_.empty());
  const uint64_t copy = pool_.fork(two);  // whole blocks need none
  EXPECT_EQ(references(copy), std::vector<int32_t>(6, 2));
  EXPECT_GT(blocks_needed(pool_, {copy}, 1), pool_.num_free());
}

TEST_F(BlockPoolTest, UnknownSequences) {
  const uint64_t sequence = pool_.create();
  pool_.release(sequence);
  EXPECT_EQ(error_kind([&] { pool_.get(sequence); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_kind([&] { pool_.release(sequence); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_kind([&] { pool_.fork(0); }), ErrorKind::kInvalidArgument);
  EXPECT_NE(pool_.create(), sequence) << "a released number names nothing else";
}

TEST_F(BlockPoolTest, ATallyTakesASequenceOnce) {
  const uint64_t one = pool_.create(), two = pool_.create();
  BlockPool::Tally tally(pool_);
  EXPECT_TRUE(tally.add(one, 17));
  EXPECT_TRUE(tally.add(two, 1));
  EXPECT_FALSE(tally.add(one, 1));
  EXPECT_EQ(tally.blocks(), 3);
  BlockPool::Tally next(pool_);
  EXPECT_TRUE(next.add(one, 1));
  EXPECT_EQ(next.blocks(), 1);
}

TEST_F(BlockPoolTest, OnlySoManySequencesLive) {
  std::vector<uint64_t> live;
  for (int64_t i = 0; i < kSequences; ++i) live.push_back(pool_.create());
  append(live[0], 16);
  EXPECT_EQ(error_kind([&] { pool_.create(); }), ErrorKind::kOutOfMemory);
  EXPECT_EQ(error_kind([&] { pool_.fork(live[0]); }), ErrorKind::kOutOfMemory);
  EXPECT_EQ(references(live[0]), (std::vector<int32_t>{1}));
  EXPECT_EQ(pool_.num_sequences(), kSequences);
  pool_.release(live[3]);
  const uint64_t fork = pool_.fork(live[0]);
  EXPECT_EQ(references(fork), (std::vector<int32_t>{2}));
}

TEST_F(BlockPoolTest, WhoGaveUpItsBlocksCountsFromItsNextStepOn) {
  std::vector<uint64_t> live;
  for (int64_t i = 0; i < kSequences; ++i) live.push_back(pool_.create());
  append(live[0], 20);
  const std::vector<int32_t> tokens = copy_of(pool_.get(live[0]).history);
  pool_.give_up(live[0]);
  pool_.give_up(live[0]);
  EXPECT_EQ(pool_.num_sequences(), kSequences - 1);
  EXPECT_EQ(pool_.num_free(), kBlocks);
  const uint64_t other = pool_.create();
  append(other, 20);
  EXPECT_EQ(copy_of(pool_.get(live[0]).history), tokens);
  EXPECT_EQ(error_kind([&] { pool_.take_place(live[0]); }), ErrorKind::kOutOfMemory);
  pool_.truncate(live[0], 18);
  pool_.release(live[1]);
  pool_.take_place(live[0]);
  pool_.take_place(live[0]);
  EXPECT_EQ(error_kind([&] { pool_.create(); }), ErrorKind::kOutOfMemory);
  EXPECT_EQ(pool_.computed_length(live[0]), 0);
  pool_.prepare_again(live[0], 18);
  pool_.set_computed_length(live[0], 18);
  append(live[0], 4);
  EXPECT_TRUE(
      std::ranges::equal(pool_.get(live[0]).history.first(18), std::span(tokens).first(18)));
  EXPECT_EQ(references(live[0]), (std::vector<int32_t>{1, 1}));
  pool_.give_up(live[0]);
  pool_.release(live[0]);
  EXPECT_EQ(pool_.num_sequences(), kSequences - 1);
}

TEST_F(BlockPoolTest, WhoGaveUpItsBlocksFindsThoseThatItsOwnPrefixHas) {
  const uint64_t one = pool_.create(), other = pool_.create();
  append(one, 40);
  append(other, 40);  // the same tokens: whose they are may not be told by the time that it takes
  const uint64_t part = pool_.retain(one, 25), others = pool_.retain(other, 40);
  pool_.give_up(one);
  EXPECT_EQ(pool_.computed_length(one), 16);  // what is full of 25
  EXPECT_EQ(blocks_needed(pool_, {one}, 1), 2);
  pool_.take_place(one);
  EXPECT_EQ(pool_.computed_length(one), 16);
  EXPECT_EQ(references(one), (std::vector<int32_t>{2}));
  pool_.prepare_again(one, 24);
  pool_.set_computed_length(one, 40);
  EXPECT_EQ(references(one), (std::vector<int32_t>{2, 1, 1}));
  const uint64_t whole = pool_.retain(one, 40);
  pool_.give_up(one);
  EXPECT_EQ(pool_.computed_length(one), 40);
  EXPECT_EQ(blocks_needed(pool_, {one}, 1), 1);  // the last one is shared, and is written
  pool_.take_place(one);
  EXPECT_EQ(references(one), (std::vector<int32_t>{3, 2, 2}));
  append(one, 1);
  EXPECT_EQ(references(one), (std::vector<int32_t>{3, 2, 1}));
  pool_.give_up(one);
  pool_.truncate(one, 20);
  EXPECT_EQ(pool_.computed_length(one), 0);  // no prefix of it is that short
  append(other, 1);
  pool_.release_prefix(whole);
  pool_.release_prefix(part);
  pool_.release_prefix(others);
  pool_.release(one);
  pool_.release(other);
  EXPECT_EQ(pool_.num_free(), kBlocks);
}

TEST_F(BlockPoolTest, APrefixOutlivesItsSequence) {
  const uint64_t one = pool_.create(3);
  append(one, 40);
  const uint64_t prefix = pool_.retain(one, 25);
  EXPECT_EQ(references(one), (std::vector<int32_t>{2, 2, 1}));
  EXPECT_EQ(pool_.prefix(prefix).history, copy_of(pool_.get(one).history.first(25)));
  EXPECT_EQ(pool_.prefix(prefix).adapter, 3);
  append(one, 3);  // behind the prefix's blocks
  EXPECT_TRUE(copies_.empty());
  pool_.truncate(one, 25);
  EXPECT_EQ(blocks_needed(pool_, {one}, 1), 1);
  append(one, 1);  // into the block that both have
  ASSERT_EQ(copies_.size(), 1u);
  EXPECT_EQ(copies_[0].first, pool_.prefix(prefix).blocks[1]);
  EXPECT_EQ(copies_[0].second, pool_.get(one).blocks[1]);
  pool_.release(one);
  EXPECT_EQ(pool_.num_free(), kBlocks - 2);
  const uint64_t two = pool_.attach(prefix, 25), three = pool_.attach(prefix, 16);
  EXPECT_EQ(references(two), (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(references(three), (std::vector<int32_t>{3}));
  EXPECT_EQ(pool_.get(two).adapter, 3);
  pool_.release_prefix(prefix);
  EXPECT_EQ(blocks_needed(pool_, {two}, 1), 0) << "it has the last block alone";
  EXPECT_EQ(references(two), (std::vector<int32_t>{2, 1}));
  pool_.release(three);
  pool_.release(two);
  EXPECT_EQ(pool_.num_free(), kBlocks);
  EXPECT_EQ(error_kind([&] { pool_.attach(prefix, 0); }), ErrorKind::kInvalidArgument);
}

// Kernels hold the address of a table, and hosts that of a history.
TEST_F(BlockPoolTest, TablesAndHistoriesStayWhereTheyAre) {
  const uint64_t one = pool_.create(), two = pool_.create();
  append(one, 1, 7);
  append(two, 1, 8);
  const SequenceBlocks& blocks = pool_.get(one);
  const int32_t* const table = blocks.blocks.data();
  const int32_t* const history = blocks.history.data();
  for (int i = 1; i < kContext; ++i) append(one, 1, 7 + i);
  EXPECT_EQ(blocks.blocks.data(), table);
  EXPECT_EQ(blocks.history.data(), history);
  EXPECT_EQ(history[kContext - 1], 7 + kContext - 1);
  EXPECT_EQ(pool_.get(two).history[0], 8);
  pool_.prepare(two, kContext - 1);
  EXPECT_EQ(error_kind([&] { pool_.prepare(two, kContext); }), ErrorKind::kInternal);
}

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<int64_t>(MappedMemory::page_bytes());
}

// A thousand sequences of a long context take what they hold, and a long one's room comes back.
TEST(SequenceMemory, IsWhatWasWritten) {
  constexpr int64_t kLong = 1 << 17;
  BlockPool pool({4096, 64, kLong, 1000}, [](int32_t, int32_t) {});
  std::vector<uint64_t> sequences;
  const std::vector<int32_t> tokens(kLong, 5);
  const int64_t before = resident_bytes();
  for (int i = 0; i < 1000; ++i) {
    sequences.push_back(pool.create());
    pool.prepare(sequences.back(), 100);
    pool.append(sequences.back(), tokens.data(), 100);
  }
  EXPECT_LT(resident_bytes() - before, 16 << 20) << "of " << (1000 * kLong * 4 >> 20);
  for (size_t i = 0; i < 30; ++i) {
    pool.release(sequences[i]);
    const uint64_t whole = pool.create();
    pool.prepare(whole, kLong);
    pool.append(whole, tokens.data(), kLong);
    pool.release(whole);
    sequences[i] = pool.create();
    EXPECT_EQ(pool.get(sequences[i]).length, 0);
  }
  EXPECT_LT(resident_bytes() - before, 16 << 20);
}

// Against a model of it: every sequence remembers what its positions hold, blocks are plain memory.
TEST_F(BlockPoolTest, RandomWalkKeepsEveryPast) {
  std::vector<std::vector<int32_t>> memory(kBlocks, std::vector<int32_t>(kBlockSize, -1));
  BlockPool pool(kSizes, [&](int32_t from, int32_t to) {
    memory[static_cast<size_t>(to)] = memory[static_cast<size_t>(from)];
  });
  std::map<uint64_t, std::vector<int32_t>> pasts;
  std::mt19937 random(3);
  int32_t next = 0;
  std::map<uint64_t, std::vector<int32_t>> prefixes;
  int forks = 0, attached = 0;
  for (int step = 0; step < 20000; ++step) {
    if (pasts.empty() || (random() % 40 == 0 && std::ssize(pasts) < kSequences))
      pasts[pool.create()];
    auto chosen = pasts.begin();
    std::advance(chosen, static_cast<long>(random() % pasts.size()));
    auto& [sequence, past] = *chosen;
    const uint32_t what = random() % 10;
    if (what < 5) {
      const auto count = static_cast<int64_t>(1 + random() % 20);
      if (static_cast<int64_t>(past.size()) + count > kContext ||
          blocks_needed(pool, {sequence}, count) > pool.num_free()) {
        continue;
      }
      pool.prepare(sequence, count);
      const SequenceBlocks& blocks = pool.get(sequence);
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < count; ++i, ++next) {
        const auto position = static_cast<int64_t>(past.size());
        const int32_t block = blocks.blocks[static_cast<size_t>(position / kBlockSize)];
        ASSERT_EQ(pool.references(block), 1) << "a shared block is written";
        memory[static_cast<size_t>(block)][static_cast<size_t>(position % kBlockSize)] = next;
        past.push_back(next);
        tokens.push_back(next);
      }
      pool.append(sequence, tokens.data(), count);
    } else if (what < 8) {
      past.resize(random() % (past.size() + 1));
      pool.truncate(sequence, static_cast<int64_t>(past.size()));
    } else if (what < 9 && std::ssize(pasts) < kSequences && pool.num_free() > 0) {
      const std::vector<int32_t> copy = past;
      pasts[pool.fork(sequence)] = copy;
      ++forks;
    } else if (random() % 2 == 0) {
      pool.release(sequence);
      pasts.erase(chosen);
    } else if (prefixes.size() < 3) {
      std::vector<int32_t> kept = past;
      kept.resize(random() % (past.size() + 1));
      prefixes[pool.retain(sequence, std::ssize(kept))] = kept;
    } else {
      const auto& [prefix, kept] = *prefixes.begin();
      if (random() % 4 == 0) {
        pool.release_prefix(prefix);
        prefixes.erase(prefixes.begin());
      } else if (std::ssize(pasts) < kSequences) {
        std::vector<int32_t> part = kept;
        part.resize(random() % (kept.size() + 1));
        pasts[pool.attach(prefix, std::ssize(part))] = part;
        ++attached;
      }
    }
    std::map<int32_t, int32_t> counts;
    for (const auto& [id, tokens] : prefixes) {
      const PrefixBlocks& blocks = pool.prefix(id);
      ASSERT_EQ(blocks.history, tokens);
      for (const int32_t block : blocks.blocks) ++counts[block];
      for (size_t i = 0; i < tokens.size(); ++i) {
        const auto block = static_cast<size_t>(blocks.blocks[i / kBlockSize]);
        ASSERT_EQ(memory[block][i % kBlockSize], tokens[i]);
      }
    }
    for (const auto& [id, tokens] : pasts) {
      const SequenceBlocks& blocks = pool.get(id);
      ASSERT_EQ(copy_of(blocks.history), tokens);
      for (int32_t block : blocks.blocks) ++counts[block];
      for (size_t i = 0; i < tokens.size(); ++i) {
        const int32_t block = blocks.blocks[i / kBlockSize];
        ASSERT_EQ(memory[static_cast<size_t>(block)][i % kBlockSize], tokens[i]);
      }
    }
    ASSERT_EQ(pool.num_free(), kBlocks - static_cast<int64_t>(counts.size()));
    for (const auto& [block, count] : counts) ASSERT_EQ(pool.references(block), count);
  }
  EXPECT_GT(forks, 100);
  EXPECT_GT(attached, 100);
}

TEST_F(BlockPoolTest, KnowsEachLayersLength) {
  const uint64_t sequence = pool_.create();
  append(sequence, 10);
  EXPECT_EQ(pool_.first_lagging_layer(sequence), -1);
  EXPECT_EQ(pool_.layer_length(sequence, 2), 10);
  pool_.hold_layers(sequence);
  append(sequence, 4);
  pool_.set_layer_length(sequence, 0, 1, 14);
  EXPECT_EQ(pool_.first_lagging_layer(sequence), 1);
  EXPECT_EQ(pool_.layer_length(sequence, 1), 10);
  EXPECT_EQ(error_kind([&] { pool_.retain(sequence, 11); }), ErrorKind::kInvalidArgument);
  pool_.release_prefix(pool_.retain(sequence, 10));
  const uint64_t fork = pool_.fork(sequence);
  pool_.set_layer_length(sequence, 1, 3, 14);
  EXPECT_EQ(pool_.first_lagging_layer(sequence), -1);
  EXPECT_EQ(pool_.first_lagging_layer(fork), 1);
  pool_.truncate(fork, 12);
  EXPECT_EQ(pool_.layer_length(fork, 0), 12);
  EXPECT_EQ(pool_.layer_length(fork, 2), 10);
  pool_.truncate(fork, 10);
  EXPECT_EQ(pool_.first_lagging_layer(fork), -1);
  // A sequence in the slot of one that lagged does not.
  pool_.hold_layers(fork);
  pool_.release(fork);
  EXPECT_EQ(pool_.first_lagging_layer(pool_.create()), -1);
}

TEST_F(BlockPoolTest, ForgetsALayerOfAllSequences) {
  const uint64_t sequence = pool_.create(), empty = pool_.create();
  append(sequence, 10);
  const uint64_t prefix = pool_.retain(sequence, 10);
  EXPECT_EQ(error_kind([&] { pool_.forget_layer(1); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(pool_.first_lagging_layer(sequence), -1);
  pool_.release_prefix(prefix);
  pool_.forget_layer(1);
  EXPECT_EQ(pool_.first_lagging_layer(sequence), 1);
  EXPECT_EQ(pool_.layer_length(sequence, 0), 10);
  EXPECT_EQ(pool_.first_lagging_layer(empty), -1);
  pool_.set_layer_length(sequence, 1, 2, 10);  // computed again
  EXPECT_EQ(pool_.first_lagging_layer(sequence), -1);
}

}  // namespace
}  // namespace vitrine::kv
