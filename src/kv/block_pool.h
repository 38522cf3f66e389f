// SPDX-License-Identifier: Apache-2.0
// KV blocks: which are free, who shares them, and which positions of a sequence each one holds.
// The memory itself belongs to the engine; this room only numbers it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::kv {

/// One sequence: its length and its block table.
struct SequenceBlocks {
  int64_t length = 0;
  std::vector<int32_t> blocks;   // capacity for the longest context: never reallocated in a step
  std::vector<int32_t> history;  // the tokens so far, likewise
  int32_t adapter = -1;          // which its keys and values were made with; -1: none
};

/// Hands out fixed-size blocks with reference counts. Not thread-safe.
class BlockPool {
 public:
  /// `copy_block(from, to)` copies one block's keys and values in every layer.
  BlockPool(int64_t num_blocks, int64_t block_size, int64_t max_context,
            std::function<void(int32_t from, int32_t to)> copy_block);

  uint64_t create(int32_t adapter = -1);
  /// Full blocks are shared; a partial last block is copied. Throws kOutOfMemory where none is
  /// free.
  uint64_t fork(uint64_t sequence);
  void truncate(uint64_t sequence, int64_t length);
  void release(uint64_t sequence);
  /// Throws kInvalidArgument for an unknown sequence.
  const SequenceBlocks& get(uint64_t sequence) const;

  /// New blocks that appending `count` tokens takes from the pool, once `sharers` of those that
  /// share its last block have made their own copies.
  int64_t blocks_needed(uint64_t sequence, int64_t count, int32_t sharers = 0) const;
  /// True where both end in the same block, partly filled.
  bool share_last_block(uint64_t one, uint64_t other) const;
  /// Makes room; a shared last block is copied before it is written. The caller has checked that
  /// enough blocks are free. Does not change the length.
  void prepare(uint64_t sequence, int64_t count);
  /// The tokens have been written.
  void append(uint64_t sequence, const int32_t* tokens, int64_t count);

  /// The block that is given out when `index` others have been, as things stand; -1: there is none.
  int32_t next_free(size_t index) const {
    return index < free_.size() ? free_[free_.size() - 1 - index] : -1;
  }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t block_size() const { return block_size_; }
  int32_t references(int32_t block) const { return references_[static_cast<size_t>(block)]; }

 private:
  SequenceBlocks& find(uint64_t sequence);
  int32_t take();
  void drop(int32_t block);
  int64_t blocks_for(int64_t positions) const {
    return (positions + block_size_ - 1) / block_size_;
  }

  int64_t block_size_;
  int64_t max_context_;
  std::function<void(int32_t, int32_t)> copy_block_;
  std::vector<int32_t> references_;  // by block
  std::vector<int32_t> free_;
  std::map<uint64_t, SequenceBlocks> sequences_;
  uint64_t next_sequence_ = 1;
};

}  // namespace vitrine::kv
