// SPDX-License-Identifier: Apache-2.0
#include "engine/run/audit_layout.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "ops/attribution.h"
#include "ops/hidden_state.h"

namespace vitrine::engine {

// Kind by kind, not layer by layer: so the reference path can join each kind with one call.
AuditLayout make_audit_layout(const ops::Graph& graph, AuditMode mode, AuditLevel level,
                              bool record_rows, bool expert_norms) {
  AuditLayout layout;
  layout.mode = mode;
  layout.level = level;
  layout.layers.resize(static_cast<size_t>(graph.num_layers));
  int32_t word = 0;
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    layout.layers[static_cast<size_t>(layer)].layer = layer;
    layout.layers[static_cast<size_t>(layer)].residual_norm = word++;
    layout.layers[static_cast<size_t>(layer)].reads_embedding = layer == 0;
  }
  for (const ops::OpNode& node : graph.nodes) {
    const ops::RouterShape* router = node.parameters->router();
    if (router == nullptr) continue;
    AuditLayout::Layer& layer = layout.layers[static_cast<size_t>(node.layer)];
    layer.top_k = static_cast<int32_t>(router->top_k);
    layer.num_experts = static_cast<int32_t>(router->experts);
    layer.router = node.parameters->router_kind();
    layer.expert_ids = word;
    word += layer.top_k;
  }
  for (AuditLayout::Layer& layer : layout.layers) {
    if (layer.expert_ids < 0) continue;
    layer.expert_weights = word;
    word += layer.top_k;
  }
  for (AuditLayout::Layer& layer : layout.layers) {
    if (layer.router == RouterKind::kPlain) continue;
    layer.router_scores = word;
    word += 2 * layer.top_k;
  }
  for (AuditLayout::Layer& layer : layout.layers) {
    if (!expert_norms || layer.expert_ids < 0) continue;
    layer.expert_norms = word;
    word += layer.top_k;
  }
  if (level == AuditLevel::kFull) {
    for (AuditLayout::Layer& layer : layout.layers) {
      if (layer.expert_ids < 0) continue;
      layer.router_probs = word;
      word += layer.num_experts;
    }
  }
  layout.hidden_size = static_cast<int32_t>(ops::hidden_size(graph));
  for (const int layer : ops::hidden_state_layers(graph)) {
    layout.hidden_states.push_back({layer, word});
    word += layout.hidden_size;
  }
  layout.token_words = word;
  layout.chosen_logit = 0;
  layout.log_sum_exp = 1;
  layout.entropy = 2;
  layout.top_ids = 3;
  layout.top_logits = layout.top_ids + kAuditTopTokens;
  layout.logits_digest = layout.top_logits + kAuditTopTokens;
  layout.sampler_candidates = layout.logits_digest + 2;
  layout.sampler_probability = layout.sampler_candidates + 1;
  layout.constraint = layout.sampler_probability + 1;
  layout.attribution = layout.constraint + kAuditConstraintWords;
  layout.terms = ops::attribution_terms(graph);
  layout.row_words =
      record_rows ? layout.attribution + 2 * static_cast<int32_t>(layout.terms.size()) : 0;
  return layout;
}

namespace {

template <typename Call>
void call_sink(const char* name, uint64_t sequence, const Call& call) {
  try {
    call();
  } catch (...) {
    log_message(LogLevel::kWarning,
                std::string("an audit sink's ") + name + "() threw at sequence " +
                    std::to_string(sequence) +
                    ", which it must not; its account may lack what it was told");
  }
}

}  // namespace

void tell_sink(AuditSink* sink, const AuditEvent& event) {
  if (sink == nullptr) return;
  call_sink("on_event", event.sequence, [&] { sink->on_event(event); });
}

void tell_sink(AuditSink* sink, const ConstraintFailure& failure) {
  if (sink == nullptr) return;
  call_sink("on_failure", failure.sequence, [&] { sink->on_failure(failure); });
}

void tell_sink(AuditSink* sink, const DraftedPass& drafts) {
  if (sink == nullptr) return;
  call_sink("on_drafts", drafts.sequence, [&] { sink->on_drafts(drafts); });
}

void tell_fork_of_part(AuditSink* sink, uint64_t sequence, uint64_t source, int64_t whole,
                       int64_t length) {
  tell_sink(sink, AuditEvent{AuditEvent::Kind::kForked, sequence, source, whole, 0});
  if (length == whole) return;
  tell_sink(sink, AuditEvent{AuditEvent::Kind::kTruncated, sequence, 0, length, whole});
}

void commit_record(AuditSink& sink, std::byte* record, uint64_t step_ns, uint64_t& blamed) {
  // Written blind: since the step began its line has left the caches.
  std::memcpy(record + offsetof(AuditPassHeader, step_ns), &step_ns, sizeof(step_ns));
  try {
    sink.commit();
  } catch (...) {
    blamed = sink.failed_sequence();
    throw;
  }
}

size_t largest_record(const AuditLayout& layout, const EngineOptions& options) {
  const auto tokens = static_cast<size_t>(options.max_step_tokens);
  const auto rows = static_cast<size_t>(options.max_logit_rows);
  return sizeof(AuditPassHeader) + tokens * sizeof(AuditToken) +
         layout.pass_words(rows, tokens) * sizeof(int32_t) + 8;
}

void write_choice(const AuditLayout& layout, size_t rows, size_t row, int32_t token, float logit,
                  bool records, std::byte* words) {
  std::memcpy(words + row * sizeof(token), &token, sizeof(token));
  if (!records || layout.row_words == 0) return;
  const size_t word =
      rows + row * static_cast<size_t>(layout.row_words) + static_cast<size_t>(layout.chosen_logit);
  std::memcpy(words + word * sizeof(logit), &logit, sizeof(logit));
}

std::string broken_layer(const AuditLayout& layout, size_t token, size_t rows,
                         const std::byte* words) {
  if (words == nullptr) return "";
  const size_t record = rows + rows * static_cast<size_t>(layout.row_words) +
                        token * static_cast<size_t>(layout.token_words);
  for (const AuditLayout::Layer& layer : layout.layers) {
    if (layer.residual_norm < 0) continue;
    const size_t word = record + static_cast<size_t>(layer.residual_norm);
    float norm = 0;
    std::memcpy(&norm, words + word * sizeof(int32_t), sizeof(norm));
    if (std::isfinite(norm)) continue;
    return "; the residual stream's norm is not finite from the entry of layer " +
           std::to_string(layer.layer) + " on";
  }
  return "";
}

}  // namespace vitrine::engine
