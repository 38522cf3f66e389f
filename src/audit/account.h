// SPDX-License-Identifier: Apache-2.0
// Which state each position of each sequence is in. The writer keeps one, and verification another:
// they must agree.
#pragma once

#include <unordered_map>
#include <vector>

#include "vtr_format.h"

namespace vitrine::audit {

/// Functions that report an impossible event throw kBadFile and change nothing.
class Account {
 public:
  /// Returns the sequence's positions so far; -1 where it is not known (or was released).
  int64_t length(uint64_t sequence) const;
  /// Counts `count` records at the sequence's next positions, which begin with `first`.
  void capture(uint64_t sequence, int64_t first, int64_t count);
  void apply(const VtrEvent& event);
  const VtrAccount& totals() const { return totals_; }
  uint64_t num_sequences() const { return num_sequences_; }

 private:
  enum State : uint8_t { kCaptured, kCounted, kReplayed, kLost };  // kLost + reason
  struct Run {
    uint8_t state;
    int64_t count;
  };
  struct Sequence {
    int64_t length = 0;
    int64_t copied_end = 0;  // records before this position are copies
    std::vector<Run> runs;
  };
  Sequence& known(uint64_t sequence);
  void create(uint64_t sequence);
  void extend(Sequence& sequence, uint64_t id, int64_t first, int64_t count, uint8_t state);
  uint64_t& total_of(uint8_t state);

  std::unordered_map<uint64_t, Sequence> sequences_;
  VtrAccount totals_;
  uint64_t num_sequences_ = 0;
};

}  // namespace vitrine::audit
