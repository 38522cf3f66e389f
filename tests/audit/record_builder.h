// SPDX-License-Identifier: Apache-2.0
// Hand-built audit layouts and records, with the structs that they must decode to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "vitrine/audit.h"

namespace vitrine::audit_test {

using Rng = std::mt19937_64;

inline int32_t uniform(Rng& rng, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(rng);
}

/// Floats of all magnitudes, some of them 0 or whole.
inline float any_float(Rng& rng) {
  switch (uniform(rng, 0, 5)) {
    case 0: return static_cast<float>(uniform(rng, -3, 3));
    case 1:
      return std::ldexp(std::uniform_real_distribution<float>(-1, 1)(rng), uniform(rng, -120, 120));
    default: return std::uniform_real_distribution<float>(-20, 20)(rng);
  }
}

struct LayerShape {
  int32_t top_k = 0;  // 0: dense
  int32_t num_experts = 0;
  RouterKind router = RouterKind::kPlain;
};

/// Offsets with gaps between the fields, so that nothing depends on a dense packing.
inline AuditLayout make_layout(const std::vector<LayerShape>& shapes, AuditLevel level, Rng& rng) {
  AuditLayout layout;
  layout.mode = AuditMode::kDeferred;
  layout.level = level;
  const auto take = [&](int32_t& cursor, int32_t words) {
    cursor += uniform(rng, 0, 2);
    const int32_t at = cursor;
    cursor += words;
    return at;
  };
  int32_t cursor = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    AuditLayout::Layer layer;
    layer.layer = static_cast<int32_t>(i);
    layer.reads_embedding = i == 0;
    if (shapes[i].top_k > 0) {
      layer.top_k = shapes[i].top_k;
      layer.num_experts = shapes[i].num_experts;
      if (level == AuditLevel::kFull) layer.router_probs = take(cursor, layer.num_experts);
      layer.expert_weights = take(cursor, layer.top_k);
      layer.expert_ids = take(cursor, layer.top_k);
      layer.router = shapes[i].router;
      if (layer.router != RouterKind::kPlain) {
        layer.router_scores = take(cursor, 2 * layer.top_k);
      }
    }
    layer.residual_norm = take(cursor, 1);
    layout.layers.push_back(layer);
  }
  layout.token_words = cursor + uniform(rng, 0, 3);
  cursor = 0;
  layout.entropy = take(cursor, 1);
  layout.top_logits = take(cursor, kAuditTopTokens);
  layout.chosen_logit = take(cursor, 1);
  layout.top_ids = take(cursor, kAuditTopTokens);
  layout.log_sum_exp = take(cursor, 1);
  layout.sampler_probability = take(cursor, 1);
  layout.logits_digest = take(cursor, 2);
  layout.sampler_candidates = take(cursor, 1);
  layout.row_words = cursor + uniform(rng, 0, 3);
  return layout;
}

/// Adds the terms that a model of these layers has.
inline AuditLayout with_terms(AuditLayout layout) {
  using Kind = AuditLayout::Term::Kind;
  layout.terms = {{Kind::kEmbedding, -1, -1}};
  for (const AuditLayout::Layer& layer : layout.layers) {
    layout.terms.push_back({Kind::kAttention, layer.layer, -1});
    for (int32_t slot = 0; slot < layer.top_k; ++slot) {
      layout.terms.push_back({Kind::kExpert, layer.layer, slot});
    }
    layout.terms.push_back({layer.top_k > 0 ? Kind::kShared : Kind::kDense, layer.layer, -1});
  }
  layout.attribution = layout.row_words + 1;
  layout.row_words = layout.attribution + 2 * static_cast<int32_t>(layout.terms.size());
  return layout;
}

/// Makes the layout a federation's; where there are terms, the second of three specialists has half
/// of them. decode_pass() says what its records are: the builder does not know of it.
inline AuditLayout with_specialists(AuditLayout layout) {
  layout.federation = {{"moss", "fern", "reed"}, "mixture", ShareKind::kResponsibility, -1};
  layout.federation.values = layout.row_words + 1;
  layout.row_words = layout.federation.values + layout.federation.num_words();
  const auto count = static_cast<int32_t>(layout.terms.size());
  if (count == 0) return layout;
  layout.federation.num_terms = {1, count / 2, count - 1 - count / 2};
  layout.attribution = layout.row_words;
  layout.row_words += 2 * (count + 3);
  return layout;
}

/// Adds what a constraint did to each choice.
inline AuditLayout with_constraint(AuditLayout layout) {
  layout.constraint = layout.row_words + 1;
  layout.row_words = layout.constraint + kAuditConstraintWords;
  return layout;
}

/// Adds the residual stream of some layers.
inline AuditLayout with_hidden_states(AuditLayout layout, const std::vector<int32_t>& layers,
                                      int32_t size) {
  layout.hidden_size = size;
  for (const int32_t layer : layers) {
    layout.hidden_states.push_back({layer, layout.token_words + 1});
    layout.token_words += 1 + size;
  }
  return layout;
}

/// The shipped model's shape: four layers, two of eight experts.
inline AuditLayout four_layers(AuditLevel level = AuditLevel::kStandard) {
  Rng rng(1);
  return make_layout({{2, 8}, {2, 8}, {2, 8}, {2, 8}}, level, rng);
}

struct BuiltPass {
  std::vector<std::byte> bytes;
  std::vector<TokenRecord> expected;
};

template <typename T>
void put(std::vector<std::byte>& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// A pass of `num_tokens` tokens of which about half have a row (in mixed order).
inline BuiltPass build_pass(const AuditLayout& layout, uint64_t pass, int32_t num_tokens, Rng& rng,
                            int32_t vocabulary = 8192) {
  std::vector<int32_t> row_of_token(static_cast<size_t>(num_tokens), -1);
  int32_t num_rows = 0;
  for (int32_t& row : row_of_token) {
    if (uniform(rng, 0, 1) == 1) row = num_rows++;
  }
  std::shuffle(row_of_token.begin(), row_of_token.end(), rng);

  const size_t tokens = static_cast<size_t>(num_tokens);
  const size_t rows = static_cast<size_t>(num_rows);
  BuiltPass built;
  const size_t unpadded =
      sizeof(AuditPassHeader) + 24 * tokens + 4 * layout.pass_words(rows, tokens);
  built.bytes.assign((unpadded + 7) / 8 * 8, std::byte{0xA5});
  put(built.bytes, 0,
      AuditPassHeader{pass, static_cast<uint32_t>(num_tokens), static_cast<uint32_t>(num_rows),
                      built.bytes.size(), 1000 + pass});
  const size_t ids_at = sizeof(AuditPassHeader) + 24 * tokens;
  const size_t rows_at = ids_at + 4 * rows;
  const size_t words_at = rows_at + 4 * rows * static_cast<size_t>(layout.row_words);
  for (size_t i = 0; i < tokens; ++i) {
    TokenRecord record;
    record.sequence = static_cast<uint64_t>(uniform(rng, 0, 1000)) << uniform(rng, 0, 40);
    record.position = uniform(rng, 0, 1 << 30);
    record.token = uniform(rng, 0, vocabulary - 1);
    record.has_prediction = row_of_token[i] >= 0;
    const int32_t generated = record.has_prediction ? uniform(rng, 0, 1) : 0;
    put(built.bytes, sizeof(AuditPassHeader) + 24 * i,
        AuditToken{record.sequence, static_cast<int32_t>(record.position), record.token,
                   row_of_token[i], generated});
    const auto word = [&](int32_t offset, auto value) {
      put(built.bytes,
          words_at +
              4 * (i * static_cast<size_t>(layout.token_words) + static_cast<size_t>(offset)),
          value);
    };
    for (const AuditLayout::Layer& from : layout.layers) {
      LayerRecord layer;
      layer.layer = from.layer;
      layer.residual_norm = any_float(rng);
      word(from.residual_norm, layer.residual_norm);
      for (int32_t slot = 0; from.expert_ids >= 0 && slot < from.top_k; ++slot) {
        layer.routes.push_back({uniform(rng, 0, from.num_experts - 1), any_float(rng)});
        word(from.expert_ids + slot, layer.routes.back().expert);
        word(from.expert_weights + slot, layer.routes.back().weight);
      }
      for (int32_t expert = 0; from.router_probs >= 0 && expert < from.num_experts; ++expert) {
        layer.router_probs.push_back(any_float(rng));
        word(from.router_probs + expert, layer.router_probs.back());
      }
      layer.router = from.router;
      for (int32_t slot = 0; from.router_scores >= 0 && slot < from.top_k; ++slot) {
        layer.selection.push_back({any_float(rng), any_float(rng)});
        word(from.router_scores + slot, layer.selection.back().score);
        word(from.router_scores + from.top_k + slot, layer.selection.back().key);
      }
      for (int32_t slot = 0; from.expert_norms >= 0 && slot < from.top_k; ++slot) {
        layer.expert_norms.push_back(any_float(rng));
        word(from.expert_norms + slot, layer.expert_norms.back());
      }
      record.layers.push_back(layer);
    }
    for (const AuditLayout::HiddenState& from : layout.hidden_states) {
      HiddenStateRecord state{from.layer, {}};
      for (int32_t at = 0; at < layout.hidden_size; ++at) {
        state.values.push_back(any_float(rng));
        word(from.values + at, state.values.back());
      }
      record.hidden_states.push_back(state);
    }
    if (record.has_prediction) {
      const size_t row = static_cast<size_t>(row_of_token[i]);
      const auto row_word = [&](int32_t offset, auto value) {
        put(built.bytes,
            rows_at +
                4 * (row * static_cast<size_t>(layout.row_words) + static_cast<size_t>(offset)),
            value);
      };
      PredictionRecord& prediction = record.prediction;
      prediction.generated = generated == 1;
      prediction.token = uniform(rng, 0, vocabulary - 1);
      put(built.bytes, ids_at + 4 * row, prediction.token);
      const float log_sum_exp = any_float(rng);
      const float chosen_logit = any_float(rng);
      prediction.entropy = any_float(rng);
      prediction.logprob = chosen_logit - log_sum_exp;
      row_word(layout.log_sum_exp, log_sum_exp);
      row_word(layout.chosen_logit, chosen_logit);
      row_word(layout.entropy, prediction.entropy);
      const SampleDecision sampled{uniform(rng, 0, vocabulary), any_float(rng)};
      row_word(layout.sampler_candidates, sampled.candidates);
      row_word(layout.sampler_probability, sampled.probability);
      if (prediction.generated) prediction.sampled = sampled;
      if (layout.constraint >= 0) {
        ConstraintDecision constraint{uniform(rng, 0, 1) * uniform(rng, 0, vocabulary),
                                      any_float(rng),
                                      any_float(rng),
                                      uniform(rng, 0, 1) == 1,
                                      uniform(rng, 0, 1) == 1,
                                      uniform(rng, 0, 2)};
        row_word(layout.constraint, constraint.allowed);
        row_word(layout.constraint + 1, constraint.removed);
        row_word(layout.constraint + 2, constraint.mask_microseconds);
        row_word(layout.constraint + 3, (constraint.is_limited ? 1 : 0) |
                                            (constraint.first_ruled_out ? 2 : 0) |
                                            constraint.attempt << 2);
        if (prediction.generated && constraint.is_given()) prediction.constraint = constraint;
      }
      prediction.logits_digest = rng();
      row_word(layout.logits_digest, static_cast<uint32_t>(prediction.logits_digest));
      row_word(layout.logits_digest + 1, static_cast<uint32_t>(prediction.logits_digest >> 32));
      const int32_t num_top = std::min(vocabulary, kAuditTopTokens);
      for (int32_t rank = 0; rank < kAuditTopTokens; ++rank) {
        const float logit = any_float(rng);
        const int32_t id = rank < num_top ? uniform(rng, 0, vocabulary - 1) : -1;
        row_word(layout.top_ids + rank, id);
        row_word(layout.top_logits + rank, logit);
        if (id >= 0) prediction.alternatives.push_back({id, logit - log_sum_exp});
        if (layout.terms.empty() || rank > 1) continue;
        if (prediction.attribution.runner_up < 0 && id != prediction.token) {
          prediction.attribution.runner_up = id;
          prediction.attribution.runner_up_logit = logit;
        }
      }
      AttributionRecord& attribution = prediction.attribution;
      const auto num_terms = static_cast<int32_t>(layout.terms.size());
      double sum = 0, runner_up_sum = 0;
      for (int32_t i = 0; i < num_terms; ++i) {
        const AuditLayout::Term& from = layout.terms[static_cast<size_t>(i)];
        TermRecord term{from.kind, from.layer, -1, any_float(rng), any_float(rng)};
        if (from.slot >= 0) {
          term.expert = record.layers[static_cast<size_t>(from.layer)]
                            .routes[static_cast<size_t>(from.slot)]
                            .expert;
        }
        row_word(layout.attribution + i, term.value);
        row_word(layout.attribution + num_terms + i, term.runner_up);
        sum += double{term.value};
        runner_up_sum += double{term.runner_up};
        attribution.terms.push_back(term);
      }
      if (num_terms > 0) {
        attribution.logit = chosen_logit;
        attribution.rounding = static_cast<float>(double{chosen_logit} - sum);
        attribution.runner_up_rounding =
            static_cast<float>(double{attribution.runner_up_logit} - runner_up_sum);
      }
    }
    built.expected.push_back(record);
  }
  return built;
}

/// Hands a record to a sink as the engine does.
inline void send(AuditSink& sink, const std::vector<std::byte>& bytes) {
  std::memcpy(sink.reserve(bytes.size()), bytes.data(), bytes.size());
  sink.commit();
}

}  // namespace vitrine::audit_test
