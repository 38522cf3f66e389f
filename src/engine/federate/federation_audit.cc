// SPDX-License-Identifier: Apache-2.0
#include "engine/federate/federation_audit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace vitrine::engine {

void RecordTap::open(const AuditLayout& layout, size_t max_record_bytes) {
  layout_ = layout;
  record_.resize((max_record_bytes + 7) / 8);
}

std::byte* RecordTap::reserve(size_t num_bytes) {
  if (num_bytes > record_.size() * 8) {
    throw Error(ErrorKind::kInternal, "a record of " + std::to_string(num_bytes) +
                                          " bytes is larger than was announced, " +
                                          std::to_string(record_.size() * 8));
  }
  return reinterpret_cast<std::byte*>(record_.data());
}

AuditPassHeader RecordTap::header() const {
  AuditPassHeader header;
  std::memcpy(&header, reinterpret_cast<const std::byte*>(record_.data()), sizeof(header));
  return header;
}

const std::byte* RecordTap::row_words(size_t row) const {
  const AuditPassHeader of = header();
  return reinterpret_cast<const std::byte*>(record_.data()) + sizeof(of) +
         of.num_tokens * sizeof(AuditToken) + of.num_rows * sizeof(int32_t) +
         row * static_cast<size_t>(layout_.row_words) * sizeof(int32_t);
}

const std::byte* RecordTap::token_words(size_t token) const {
  return row_words(header().num_rows) +
         token * static_cast<size_t>(layout_.token_words) * sizeof(int32_t);
}

AuditLayout make_federation_layout(std::span<const AuditLayout* const> sources,
                                   AuditLayout::Federation federation) {
  AuditLayout layout = *sources[0];
  const size_t num_specialists = federation.specialists.size();
  layout.terms.clear();
  layout.layers.clear();
  layout.hidden_states.clear();
  layout.token_words = 0;
  std::vector<AuditLayout::HiddenState> leaving;  // by source
  const auto moved = [&](int32_t word) { return word < 0 ? -1 : word + layout.token_words; };
  for (const AuditLayout* const& source : sources) {
    const auto first_layer = static_cast<int32_t>(layout.layers.size());
    const bool has_say = static_cast<size_t>(&source - sources.data()) < num_specialists;
    if (has_say && !source->terms.empty()) {
      federation.num_terms.push_back(static_cast<int32_t>(source->terms.size()));
      for (AuditLayout::Term term : source->terms) {
        if (term.layer >= 0) term.layer += first_layer;
        layout.terms.push_back(term);
      }
    }
    for (const AuditLayout::HiddenState& state : source->hidden_states) {
      if (state.layer == static_cast<int32_t>(source->layers.size())) {
        leaving.push_back({static_cast<int32_t>(&source - sources.data()), moved(state.values)});
      } else {
        layout.hidden_states.push_back({first_layer + state.layer, moved(state.values)});
      }
    }
    for (AuditLayout::Layer layer : source->layers) {
      layer.layer = static_cast<int32_t>(layout.layers.size());
      layer.residual_norm = moved(layer.residual_norm);
      layer.expert_ids = moved(layer.expert_ids);
      layer.expert_weights = moved(layer.expert_weights);
      layer.router_probs = moved(layer.router_probs);
      layer.router_scores = moved(layer.router_scores);
      layer.expert_norms = moved(layer.expert_norms);
      layout.layers.push_back(layer);
    }
    layout.token_words += source->token_words;
  }
  // The numbers after the last layer's: what leaves the first source, the second, …
  for (const AuditLayout::HiddenState& state : leaving) {
    layout.hidden_states.push_back(
        {static_cast<int32_t>(layout.layers.size()) + state.layer, state.values});
  }
  federation.values = sources[0]->attribution;  // behind what an engine records of a row
  layout.attribution = federation.values + federation.num_words();
  layout.row_words = layout.attribution +
                     2 * static_cast<int32_t>(layout.terms.size() + federation.num_terms.size());
  layout.federation = std::move(federation);
  return layout;
}

int32_t runner_up(const kernels::HeadStats& stats, int32_t chosen) {
  if (stats.count > 0 && stats.top_ids[0] != chosen) return stats.top_ids[0];
  return stats.count > 1 ? stats.top_ids[1] : -1;
}

double reconcile(ShareKind kind, const JointScore& score, std::span<const SpecialistShare> shares) {
  if (kind == ShareKind::kTerm) {
    double sum = -score.log_normaliser;
    for (const SpecialistShare& share : shares) sum += share.share;
    return score.logprob - sum;
  }
  double most = -std::numeric_limits<double>::infinity();
  for (const SpecialistShare& share : shares) most = std::max(most, share.logprob);
  double sum = 0;
  for (const SpecialistShare& share : shares) sum += share.weight * std::exp(share.logprob - most);
  return score.logprob - (most + std::log(sum));
}

void write_federation_row(const AuditLayout& layout, const FederationRow& row, std::byte* words) {
  const auto put = [words](int32_t word, auto value) {
    std::memcpy(words + static_cast<size_t>(word) * sizeof(int32_t), &value, sizeof(value));
  };
  const kernels::HeadStats& stats = *row.stats;
  put(layout.chosen_logit, row.logprob);
  put(layout.log_sum_exp, 0.0F);
  put(layout.entropy, stats.entropy);
  put(layout.logits_digest, stats.digest);
  for (int32_t i = 0; i < kAuditTopTokens; ++i) {
    put(layout.top_ids + i, i < stats.count ? stats.top_ids[i] : -1);
    put(layout.top_logits + i, i < stats.count ? stats.top_logits[i] : 0.0F);
  }
  int32_t word = layout.federation.values;
  const auto put_double = [&](double value) {
    put(word, value);
    word += 2;
  };
  for (const SpecialistShare& share : row.shares) {
    for (const double value : {share.logprob, share.weight, share.share}) put_double(value);
  }
  put_double(row.score.logprob);
  put_double(row.score.log_normaliser);
  put_double(row.residual);
}

}  // namespace vitrine::engine
