// SPDX-License-Identifier: Apache-2.0
#include "ops/naive_audit.h"

namespace vitrine::ops {

NaivePlanAudit::NaivePlanAudit(const Graph& graph, const AuditLayout& layout, int64_t max_tokens)
    : layout_(layout),
      words_(static_cast<size_t>(max_tokens) * static_cast<size_t>(layout.token_words)) {
  for (const OpNode& node : graph.nodes) {
    recorded_.push_back(node.parameters->recorded(layout, node));
  }
}

void NaivePlanAudit::after_op(size_t node, const StepState& step, Readback& readback) {
  for (const RecordedWords& words : recorded_[node]) {
    read(step, words.first, words.count, readback);
  }
}

void NaivePlanAudit::read(const StepState& step, int32_t word, int32_t count, Readback& readback) {
  const auto stride = static_cast<size_t>(layout_.token_words);
  for (int32_t token = 0; token < step.tokens; ++token) {
    const size_t at = static_cast<size_t>(token) * stride + static_cast<size_t>(word);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      readback.copy(&words_[at + i], step.token_records + (at + i) * sizeof(int32_t),
                    sizeof(int32_t));
    }
  }
}

const std::byte* NaivePlanAudit::token_records() const {
  return reinterpret_cast<const std::byte*>(words_.data());
}

}  // namespace vitrine::ops
