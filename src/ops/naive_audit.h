// SPDX-License-Identifier: Apache-2.0
// The recorder done wrong, on purpose: it reads each value back inside the hook where it appears.
// Kept to measure what breaking the rule costs; nothing else may do this.
#pragma once

#include <vector>

#include "ops/plan.h"
#include "ops/readback.h"
#include "ops/reference.h"

namespace vitrine::ops {

/// Fused path: after each op, the slots that it wrote are copied one by one.
class NaivePlanAudit {
 public:
  NaivePlanAudit(const AuditLayout& layout, int64_t max_tokens);
  /// After the op of `type` in `layer` has run.
  void after_op(const OpNode& node, const StepState& step, Readback& readback);
  /// The token records as they were read value by value, [tokens] of token_words.
  const std::byte* token_records() const;

 private:
  void read(const StepState& step, int32_t word, int32_t count, Readback& readback);

  AuditLayout layout_;
  std::vector<int32_t> words_;
};

/// Reference path: each by-product is brought to the host where it appears.
class NaiveReferenceAudit : public ReferenceHook {
 public:
  explicit NaiveReferenceAudit(Readback& readback) : readback_(readback) {}
  void on_value(const at::Tensor& value) override;
  /// Everything read so far, in order, as float32 (ids too); then forgets it.
  std::vector<std::vector<float>> take();

 private:
  Readback& readback_;
  std::vector<std::vector<float>> values_;
};

}  // namespace vitrine::ops
