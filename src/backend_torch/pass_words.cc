// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/pass_words.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace vitrine::backend_torch {

PassWords::PassWords(const ops::Graph& graph, const AuditLayout& layout)
    : layout_(layout),
      parts_(ops::attribution_parts(graph)),
      soft_cap_(static_cast<float>(ops::attribution_soft_cap(graph))),
      hidden_(static_cast<float>(graph.width(graph.stream()))),
      top_count_(static_cast<int32_t>(std::min<int64_t>(kAuditTopTokens, graph.vocab_size))) {}

void PassWords::write_rows(int64_t rows, const float* row_floats, const float* top_ids,
                           const float* top_logits, std::byte* out) const {
  if (layout_.row_words == 0) return;
  for (int64_t row = 0; row < rows; ++row) {
    std::byte* base = out + (rows + row * layout_.row_words) * 4;
    auto* words = reinterpret_cast<int32_t*>(base);
    auto* floats = reinterpret_cast<float*>(base);
    floats[layout_.chosen_logit] = row_floats[row * 7];
    floats[layout_.log_sum_exp] = row_floats[row * 7 + 1];
    floats[layout_.entropy] = row_floats[row * 7 + 2];
    for (int32_t i = 0; i < 2; ++i) {
      const float* pieces = row_floats + row * 7 + 3 + 2 * i;  // of 16 bits, signed
      const auto low = static_cast<uint16_t>(static_cast<int32_t>(pieces[0]));
      const auto high = static_cast<uint16_t>(static_cast<int32_t>(pieces[1]));
      words[layout_.logits_digest + i] = static_cast<int32_t>(uint32_t{high} << 16 | low);
    }
    for (int32_t i = 0; i < kAuditTopTokens; ++i) {
      words[layout_.top_ids + i] =
          i < top_count_ ? static_cast<int32_t>(top_ids[row * top_count_ + i]) : -1;
      floats[layout_.top_logits + i] = i < top_count_ ? top_logits[row * top_count_ + i] : 0.0F;
    }
  }
}

float PassWords::norm(float mean_square) const { return std::sqrt(mean_square * hidden_); }

void PassWords::write_tokens(int64_t rows, int64_t tokens, const float* const* sources,
                             std::byte* out) const {
  std::byte* base = out + rows * (1 + layout_.row_words) * 4;
  int64_t all_k = 0, all_scores = 0, all_experts = 0;
  for (const AuditLayout::Layer& layer : layout_.layers) {
    all_k += layer.top_k;
    if (layer.router_scores >= 0) all_scores += 2 * int64_t{layer.top_k};
    if (layer.router_probs >= 0) all_experts += layer.num_experts;
  }
  const auto layers = static_cast<int64_t>(layout_.layers.size());
  for (int64_t token = 0; token < tokens; ++token, base += layout_.token_words * 4) {
    auto* words = reinterpret_cast<int32_t*>(base);
    auto* floats = reinterpret_cast<float*>(base);
    int64_t k = token * all_k, e = token * all_experts;
    const float* scores = all_scores > 0 ? sources[3] + token * all_scores : nullptr;
    const float* probs = all_experts > 0 ? sources[all_scores > 0 ? 4 : 3] : nullptr;
    for (int64_t i = 0; i < layers; ++i) {
      const AuditLayout::Layer& layer = layout_.layers[static_cast<size_t>(i)];
      floats[layer.residual_norm] = norm(sources[0][token * layers + i]);
      for (int32_t slot = 0; slot < layer.top_k; ++slot, ++k) {
        words[layer.expert_ids + slot] = static_cast<int32_t>(sources[1][k]);
        floats[layer.expert_weights + slot] = sources[2][k];
      }
      if (layer.router_scores >= 0) {
        std::copy_n(scores, 2 * layer.top_k, floats + layer.router_scores);
        scores += 2 * layer.top_k;
      }
      if (layer.router_probs < 0) continue;
      for (int32_t expert = 0; expert < layer.num_experts; ++expert, ++e) {
        floats[layer.router_probs + expert] = probs[e];
      }
    }
  }
}

void PassWords::write_hidden_states(int64_t rows, int64_t tokens, const float* values,
                                    std::byte* out) const {
  std::byte* base = out + rows * (1 + layout_.row_words) * 4;
  for (int64_t token = 0; token < tokens; ++token, base += layout_.token_words * 4) {
    for (const AuditLayout::HiddenState& state : layout_.hidden_states) {
      std::copy_n(values, layout_.hidden_size, reinterpret_cast<float*>(base) + state.values);
      values += layout_.hidden_size;
    }
  }
}

void PassWords::write_naive(const engine::StepBatch& batch,
                            const std::vector<std::vector<float>>& values, std::byte* out) const {
  const auto rows = static_cast<int64_t>(batch.row_tokens.size());
  const auto tokens = static_cast<int64_t>(batch.token_ids.size());
  std::byte* base = out + rows * (1 + layout_.row_words) * 4;
  size_t next = 0;
  auto scatter = [&](int32_t word, int32_t width, auto convert) {
    const std::vector<float>& source = values[next++];
    for (int64_t token = 0; token < tokens; ++token) {
      std::byte* record = base + token * layout_.token_words * 4;
      for (int32_t i = 0; i < width; ++i) {
        const auto value = convert(source[static_cast<size_t>(token * width + i)]);
        std::memcpy(record + (word + i) * 4, &value, 4);
      }
    }
  };
  auto as_float = [](float value) { return value; };
  auto as_id = [](float value) { return static_cast<int32_t>(value); };
  auto state = layout_.hidden_states.begin();
  const auto scatter_state = [&](size_t entering) {
    if (state == layout_.hidden_states.end() || state->layer != static_cast<int32_t>(entering)) {
      return;
    }
    scatter((state++)->values, layout_.hidden_size, as_float);
  };
  for (const AuditLayout::Layer& layer : layout_.layers) {
    scatter_state(static_cast<size_t>(layer.layer));
    scatter(layer.residual_norm, 1, [&](float value) { return norm(value); });
    if (layer.expert_ids < 0) continue;
    scatter(layer.expert_ids, layer.top_k, as_id);
    scatter(layer.expert_weights, layer.top_k, as_float);
    if (layer.router_scores >= 0) scatter(layer.router_scores, 2 * layer.top_k, as_float);
    if (layer.router_probs >= 0) scatter(layer.router_probs, layer.num_experts, as_float);
  }
  scatter_state(layout_.layers.size());
  if (rows == 0) return;
  write_rows(rows, values[next].data(), values[next + 1].data(), values[next + 2].data(), out);
}

void PassWords::write_attribution(const engine::StepBatch& batch, const float* dots,
                                  size_t num_streams, size_t vectors, std::byte* out) const {
  const size_t rows = batch.row_tokens.size();
  const std::byte* tokens = out + rows * (1 + static_cast<size_t>(layout_.row_words)) * 4;
  for (size_t row = 0; row < rows; ++row) {
    const std::byte* token = tokens + static_cast<size_t>(batch.row_tokens[row]) *
                                          static_cast<size_t>(layout_.token_words) * 4;
    const auto* ids = reinterpret_cast<const int32_t*>(token);
    auto* terms =
        reinterpret_cast<float*>(out + (rows + row * static_cast<size_t>(layout_.row_words)) * 4) +
        layout_.attribution;
    for (size_t side = 0; side < 2; ++side) {
      auto dot = [&](size_t vector) { return dots[(side * vectors + vector) * rows + row]; };
      size_t stream = 0, expert = num_streams;
      float before = 0;  // the stream, before the part at hand
      auto add_expert = [&](float term) {
        *terms++ = term;
        before += term;
      };
      for (const ops::AttributionPart& part : parts_) {
        if (part.kind == AuditLayout::Term::Kind::kExpert) {
          const AuditLayout::Layer& layer = layout_.layers[static_cast<size_t>(part.layer)];
          const auto multiplier = static_cast<float>(part.multiplier);
          for (int32_t slot = 0; slot < part.top_k; ++slot) {
            const auto id = static_cast<size_t>(ids[layer.expert_ids + slot]);
            add_expert(multiplier * dot(expert + id));
          }
          expert += static_cast<size_t>(layer.num_experts);
          if (part.has_shared) add_expert(multiplier * dot(expert++));
        } else {
          *terms++ = dot(stream) - before;
          before = dot(stream++);
        }
      }
      if (soft_cap_ > 0) *terms++ = soft_cap_ * std::tanh(before / soft_cap_) - before;
    }
  }
}

}  // namespace vitrine::backend_torch
