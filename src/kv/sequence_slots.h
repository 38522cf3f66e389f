// SPDX-License-Identifier: Apache-2.0
// The block tables and token histories of live sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/mapped_memory.h"

namespace vitrine::kv {

/// One reservation of address space, a slot for each sequence that may live: a table and a history
/// of the longest context in each. They grow where they stand, so kernels hold their addresses, and
/// take up pages only for what was written. Not thread-safe.
class SequenceSlots {
 public:
  /// Returns the bytes that so many slots take up when all of them are full.
  static uint64_t bytes_of(int64_t slots, int64_t table_entries, int64_t tokens);
  uint64_t num_bytes() const { return static_cast<uint64_t>(num_slots_) * slot_bytes_; }

  /// Throws kOutOfMemory.
  SequenceSlots(int64_t slots, int64_t table_entries, int64_t tokens);

  /// Returns a slot that nobody has, and takes it; -1: there is none.
  int32_t take();
  /// Gives the slot back; its memory goes back to the system, but for the first page.
  void give_back(int32_t slot);

  int32_t* table(int32_t slot) const { return at(slot, 0); }
  int32_t* history(int32_t slot) const { return at(slot, table_bytes_); }
  int64_t num_slots() const { return num_slots_; }
  int64_t num_taken() const { return num_slots_ - static_cast<int64_t>(free_.size()); }

 private:
  int32_t* at(int32_t slot, size_t offset) const {
    return reinterpret_cast<int32_t*>(memory_.data() + static_cast<size_t>(slot) * slot_bytes_ +
                                      offset);
  }

  int64_t num_slots_;
  size_t table_bytes_, slot_bytes_;
  MappedMemory memory_;
  std::vector<int32_t> free_;
};

}  // namespace vitrine::kv
