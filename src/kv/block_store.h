// SPDX-License-Identifier: Apache-2.0
// The blocks of one kind of layers: which are free, who shares one, and who cannot do without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vitrine::kv {

/// Numbers the blocks and keeps two counts for each: how many hold it, and how many of these need
/// it. A block that is held and not needed may be asked back. Not thread-safe.
class BlockStore {
 public:
  explicit BlockStore(int64_t blocks);

  /// Returns the bytes that a store of so many blocks takes.
  static uint64_t bytes_of(int64_t blocks) {
    return static_cast<uint64_t>(blocks) * (sizeof(Counts) + sizeof(int32_t));
  }
  uint64_t num_bytes() const {
    return counts_.capacity() * sizeof(Counts) + free_.capacity() * sizeof(int32_t);
  }

  int64_t num_blocks() const { return static_cast<int64_t>(counts_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  /// Returns how many blocks nobody needs, held or free.
  int64_t num_unneeded() const { return num_blocks() - num_needed_; }
  /// Returns the block that take() returns after `index` other calls, as things stand; -1: there is
  /// none.
  int32_t next_free(size_t index) const {
    return index < free_.size() ? free_[free_.size() - 1 - index] : -1;
  }
  int32_t references(int32_t block) const { return of(block).holders; }
  int32_t needs(int32_t block) const { return of(block).needs; }

  /// Returns a free block, which the caller holds from now on. Throws kOutOfMemory where none is
  /// free.
  int32_t take();
  /// Counts one more holder.
  void share(int32_t block) { ++of(block).holders; }
  /// Counts one holder less; the block is free where that was the last.
  void drop(int32_t block);
  /// Count one of the holders as one who needs it from now on (need), or needs it no longer
  /// (spare).
  void need(int32_t block);
  void spare(int32_t block);

  /// Returns whether the next of the holders who will write a shared block copies it, where they
  /// are counted one by one under the number of a tally. The last one keeps the block.
  bool makes_copy(uint64_t tally, int32_t block) const;

 private:
  struct Counts {
    int32_t holders = 0;
    int32_t needs = 0;
    // How many holders will have made their own copy, by the last tally that the block was counted
    // in.
    mutable int32_t leavers = 0;
    mutable uint64_t tally = 0;
  };
  Counts& of(int32_t block) { return counts_[static_cast<size_t>(block)]; }
  const Counts& of(int32_t block) const { return counts_[static_cast<size_t>(block)]; }

  std::vector<Counts> counts_;  // by block
  std::vector<int32_t> free_;
  int64_t num_needed_ = 0;
};

}  // namespace vitrine::kv
