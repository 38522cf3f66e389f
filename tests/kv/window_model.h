// SPDX-License-Identifier: Apache-2.0
// A block pool of layers within a window beside plain memory, which says what each block holds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace vitrine::kv {

/// A pool and what its window blocks hold. Each sequence's past is remembered beside it.
class WindowModel {
 public:
  explicit WindowModel(const PoolSizes& sizes)
      : sizes_(sizes),
        memory_(static_cast<size_t>(sizes.window_blocks * sizes.block_size), -1),
        pool_(
            sizes, [](int32_t, int32_t) {}, nullptr,
            [this](int32_t from, int32_t to) {
              std::copy_n(memory_.begin() + from * sizes_.block_size, sizes_.block_size,
                          memory_.begin() + to * sizes_.block_size);
            }) {}

  struct Part {
    uint64_t sequence;
    int64_t count;
    bool keeps = false;
  };

  uint64_t create() {
    const uint64_t sequence = pool_.create();
    pasts_[sequence];
    return sequence;
  }
  bool fits(std::span<const Part> parts) const {
    BlockPool::Tally tally(pool_);
    for (const Part& part : parts) tally.add(part.sequence, part.count);
    return tally.window_blocks() <= pool_.num_free_window() && tally.blocks() <= pool_.num_free();
  }
  /// One step of some sequences, each brought up to its length before.
  void step(std::span<const Part> parts, bool fails = false) {
    for (const Part& part : parts) catch_up(part.sequence);
    for (const Part& part : parts) {
      pool_.prepare(part.sequence, part.count);
      check_seen(part.sequence);
      const std::vector<int32_t>& past = pasts_[part.sequence];
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < part.count; ++i) tokens.push_back(next_++);
      write(part.sequence, std::ssize(past), tokens);
      pool_.append(part.sequence, tokens.data(), part.count);
      pasts_[part.sequence].insert(pasts_[part.sequence].end(), tokens.begin(), tokens.end());
    }
    for (const Part& part : parts) {
      if (fails) {
        truncate(part.sequence, std::ssize(pasts_[part.sequence]) - part.count);
        EXPECT_EQ(pool_.window_length(part.sequence), pool_.get(part.sequence).length);
      } else {
        pool_.settle(part.sequence, part.keeps);
      }
    }
  }
  void step(uint64_t sequence, int64_t count, bool keeps = false) {
    const Part part{sequence, count, keeps};
    step({&part, 1});
  }
  void catch_up(uint64_t sequence) {
    const std::vector<int32_t>& past = pasts_[sequence];
    int64_t begin = pool_.window_length(sequence);
    while (begin < std::ssize(past)) {
      const int64_t count = std::min(sizes_.max_step_tokens, std::ssize(past) - begin);
      pool_.prepare_again(sequence, count);
      check_seen(sequence);
      write(sequence, begin,
            std::span(past).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
      begin += count;
      run_again_ += count;
      pool_.set_computed_length(sequence, begin);
    }
  }
  void truncate(uint64_t sequence, int64_t length) {
    pool_.truncate(sequence, length);
    pasts_[sequence].resize(static_cast<size_t>(length));
  }
  void keep(uint64_t sequence, int64_t count, int64_t brought) {
    pool_.keep(sequence, count);
    EXPECT_EQ(pool_.window_length(sequence), pool_.get(sequence).length) << "keep() drops no more";
    pasts_[sequence].resize(pasts_[sequence].size() - static_cast<size_t>(brought - count));
  }
  uint64_t fork(uint64_t sequence) {
    const uint64_t copy = pool_.fork(sequence);
    pasts_[copy] = pasts_[sequence];
    return copy;
  }
  uint64_t attach(uint64_t prefix, int64_t length) {
    const uint64_t sequence = pool_.attach(prefix, length);
    const std::vector<int32_t>& history = pool_.prefix(prefix).history;
    pasts_[sequence].assign(history.begin(), history.begin() + length);
    return sequence;
  }
  void release(uint64_t sequence) {
    pool_.release(sequence);
    pasts_.erase(sequence);
  }

  /// What is seen of a sequence from where it can go on.
  void check_seen(uint64_t sequence) const {
    const SequenceBlocks& blocks = pool_.get(sequence);
    const int64_t length = pool_.window_length(sequence), size = sizes_.block_size;
    const int64_t first = first_window_block(length, sizes_.window, size) * size;
    ASSERT_LE(first, std::max<int64_t>(0, length - sizes_.window + 1));
    for (int64_t i = first; i < length; ++i) {
      const int32_t block = blocks.window_blocks[static_cast<size_t>(i / size)];
      ASSERT_GE(block, 0) << "sequence " << sequence << ", position " << i << " of " << length;
      ASSERT_EQ(memory_[static_cast<size_t>(block * size + i % size)],
                pasts_.at(sequence)[static_cast<size_t>(i)]);
    }
  }
  void check_all() const {
    int64_t most = 0;
    for (const auto& [sequence, past] : pasts_) {
      ASSERT_EQ(pool_.get(sequence).length, std::ssize(past));
      ASSERT_LE(pool_.window_length(sequence), std::ssize(past));
      check_seen(sequence);
      most += most_window_blocks(8, sizes_.window, sizes_.block_size);
    }
    ASSERT_GE(pool_.num_free_window(), sizes_.window_blocks - most);
  }

  BlockPool& pool() { return pool_; }
  const std::map<uint64_t, std::vector<int32_t>>& pasts() const { return pasts_; }
  int64_t run_again() const { return run_again_; }

 private:
  void write(uint64_t sequence, int64_t begin, std::span<const int32_t> tokens) {
    const std::span<const int32_t> blocks = pool_.get(sequence).window_blocks;
    for (const int32_t token : tokens) {
      const int32_t block = blocks[static_cast<size_t>(begin / sizes_.block_size)];
      memory_.at(static_cast<size_t>(block * sizes_.block_size + begin % sizes_.block_size)) =
          token;
      ++begin;
    }
  }

  PoolSizes sizes_;
  std::vector<int32_t> memory_;
  BlockPool pool_;
  std::map<uint64_t, std::vector<int32_t>> pasts_;
  int64_t run_again_ = 0;
  int32_t next_ = 0;
};

}  // namespace vitrine::kv
