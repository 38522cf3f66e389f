// SPDX-License-Identifier: Apache-2.0
// The recorder done wrong, on purpose: it reads each value back inside the hook where it appears.
// Kept to measure what breaking the rule costs; nothing else may do this.
#pragma once

#include <vector>

#include "ops/plan.h"
#include "ops/readback.h"

namespace vitrine::ops {

/// Fused path: after each op, the slots that it wrote are copied one by one.
class NaivePlanAudit {
 public:
  NaivePlanAudit(const Graph& graph, const AuditLayout& layout, int64_t max_tokens);
  /// After the graph's node of that number has run.
  void after_op(size_t node, const StepState& step, Readback& readback);
  /// The token records as they were read value by value, [tokens] of token_words.
  const std::byte* token_records() const;

 private:
  void read(const StepState& step, int32_t word, int32_t count, Readback& readback);

  AuditLayout layout_;
  std::vector<std::vector<RecordedWords>> recorded_;  // by node
  std::vector<int32_t> words_;
};

}  // namespace vitrine::ops
