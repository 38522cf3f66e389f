// SPDX-License-Identifier: Apache-2.0
// Blocks for the branches of draft trees, while a step runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace vitrine::kv {

/// Keeps the tables of branches. A branch sees a sequence's blocks before a position and has its
/// own from there on; the sequence takes these over where the branch was chosen. Allocates nothing
/// after it was made. Not thread-safe.
class BranchTables {
 public:
  /// Makes room for so many branches at once.
  BranchTables(BlockPool& pool, int64_t branches);

  /// Returns how many blocks a branch from `past` to `end` takes from a pool, for each kind of
  /// layers.
  static int64_t blocks_needed(const BlockPool& pool, int64_t past, int64_t end) {
    return (end + pool.block_size() - 1) / pool.block_size() - past / pool.block_size();
  }
  /// Adds a branch and returns its number. Positions before `past` are the sequence's, those up to
  /// `end` the branch's own; what the block at `past` holds is copied. The sequence keeps its
  /// blocks until adopt() or clear(). Throws kOutOfMemory where no block is free.
  int32_t add(uint64_t sequence, int64_t past, int64_t end);
  /// Returns the branch's tables, as a sequence has them.
  const int32_t* table(int32_t branch) { return full_table(branch).data(); }
  /// Gives the branch's blocks to its sequence, in place of the sequence's own.
  void adopt(int32_t branch);
  /// Gives back the blocks of all branches.
  void clear();
  int64_t size() const { return static_cast<int64_t>(branches_.size()); }
  int64_t capacity() const { return static_cast<int64_t>(branches_.capacity()); }

 private:
  struct Branch {
    uint64_t sequence = 0;
    // Where its own blocks begin and end in the tables, and where they end in layers within a
    // window.
    int64_t first = 0, end = 0, window_end = 0;
  };
  std::span<int32_t> full_table(int32_t branch) {
    return std::span(tables_).subspan(static_cast<size_t>(branch) * entries_, entries_);
  }
  std::span<int32_t> window_table(int32_t branch) {
    return full_table(branch).subspan(static_cast<size_t>(pool_.table_stride()));
  }

  BlockPool& pool_;
  size_t entries_;
  std::vector<Branch> branches_;
  std::vector<int32_t> tables_;  // [branches, entries] of both kinds of layers
};

}  // namespace vitrine::kv
