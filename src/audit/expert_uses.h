// SPDX-License-Identifier: Apache-2.0
// How often each expert was used, over so many tokens at once that none can be told from it.
#pragma once

#include <vector>

#include "vitrine/audit_log.h"

namespace vitrine::audit {

/// Counts over some tokens.
struct ExpertUses {
  uint64_t tokens = 0;                          // 0: nothing was counted
  std::vector<std::vector<uint64_t>> by_layer;  // [layer][expert]
};

/// Counts tokens and hands the counts over in lots. A lot is of `least` tokens or more: what a page
/// counted goes to a later one until there are enough, and one whole lot is held back, so that the
/// last tokens of a run are told with it. Not thread-safe.
class UseCounter {
 public:
  UseCounter(const std::vector<AuditLayout::Layer>& layers, int32_t least);
  void add(const TokenRecord& record);
  /// What the next page tells.
  const ExpertUses& due() const { return due_; }
  /// The page stands in the log.
  void clear_due() { clear(due_); }
  /// No token follows. Of a run of fewer than `least` tokens nothing is told, unless `even_few`.
  void finish(bool even_few);

 private:
  void move(ExpertUses& from, ExpertUses& to);
  static void clear(ExpertUses& uses);

  const uint64_t least_;
  ExpertUses due_, held_, current_;
};

}  // namespace vitrine::audit
