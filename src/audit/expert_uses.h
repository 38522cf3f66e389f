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

/// Counts uses and hands the counts over in lots, each over `least` tokens or more. What was
/// counted for a page goes to a later page until there are enough tokens. One whole lot is held
/// back, so that the last tokens of a run, which may be few, are told with it. Not thread-safe.
class UseCounter {
 public:
  UseCounter(const std::vector<AuditLayout::Layer>& layers, int32_t least);
  void add(const TokenRecord& record);
  /// Returns the counts that the next page tells.
  const ExpertUses& due() const { return due_; }
  /// Forgets due() when the page with it stands in the log.
  void clear_due() { clear(due_); }
  /// Ends the run: no token follows. Nothing is told of a run of fewer than `least` tokens, unless
  /// `even_few`.
  void finish(bool even_few);

 private:
  void move(ExpertUses& from, ExpertUses& to);
  static void clear(ExpertUses& uses);

  const uint64_t least_;
  ExpertUses due_, held_, current_;
};

}  // namespace vitrine::audit
