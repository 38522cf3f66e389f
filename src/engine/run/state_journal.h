// SPDX-License-Identifier: Apache-2.0
// Says which rows of an executor's journal hold what a pass's drafts bring to sequences' states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vitrine::engine {

class StateJournal {
 public:
  struct Entry {
    uint64_t sequence = 0;
    int64_t begin = 0;  // the position of the first row
    int32_t row = 0;
    int64_t count = 0;
  };

  /// Makes room for so many rows, once. Adding allocates nothing.
  void reserve(int64_t rows) {
    rows_ = rows;
    entries_.reserve(static_cast<size_t>(rows));
  }
  /// Forgets all, before a pass that writes over the rows.
  void clear() {
    entries_.clear();
    used_ = 0;
  }
  /// Takes so many rows and returns the first one, -1 where there is no room.
  int32_t add(uint64_t sequence, int64_t begin, int64_t count) {
    if (count > rows_ - used_) return -1;
    entries_.push_back({sequence, begin, static_cast<int32_t>(used_), count});
    used_ += count;
    return entries_.back().row;
  }
  /// Forgets what a sequence had, which is of no use any more.
  void forget(uint64_t sequence) {
    std::erase_if(entries_, [sequence](const Entry& entry) { return entry.sequence == sequence; });
  }
  /// Returns the sequence's rows, null where the last pass kept none.
  const Entry* find(uint64_t sequence) const {
    const auto found = std::ranges::find(entries_, sequence, &Entry::sequence);
    return found == entries_.end() ? nullptr : &*found;
  }

 private:
  std::vector<Entry> entries_;
  int64_t rows_ = 0, used_ = 0;
};

}  // namespace vitrine::engine
