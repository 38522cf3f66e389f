// SPDX-License-Identifier: Apache-2.0
#include "ops/naive_audit.h"

namespace vitrine::ops {

NaivePlanAudit::NaivePlanAudit(const AuditLayout& layout, int64_t max_tokens)
    : layout_(layout),
      words_(static_cast<size_t>(max_tokens) * static_cast<size_t>(layout.token_words)) {}

void NaivePlanAudit::after_op(const OpNode& node, const StepState& step, Readback& readback) {
  if (node.type == "hidden_state") {
    for (const AuditLayout::HiddenState& state : layout_.hidden_states) {
      if (state.layer != node.integer("entering")) continue;
      read(step, state.values, layout_.hidden_size, readback);
    }
    return;
  }
  const bool norm = node.type == "rms_norm" && node.flag("audit");
  if (!norm && node.type != "router") return;
  for (const AuditLayout::Layer& layer : layout_.layers) {
    if (layer.layer != node.layer) continue;
    if (norm) {
      read(step, layer.residual_norm, 1, readback);
    } else if (layer.expert_ids >= 0) {
      read(step, layer.expert_ids, layer.top_k, readback);
      read(step, layer.expert_weights, layer.top_k, readback);
      if (layer.router_probs >= 0) read(step, layer.router_probs, layer.num_experts, readback);
    }
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
