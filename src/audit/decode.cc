// SPDX-License-Identifier: Apache-2.0
#include "decode.h"

#include <cstring>
#include <limits>
#include <string>

namespace vitrine {
namespace {

using audit::check_layout;
using audit::is_split;

[[noreturn]] void bad_layout(const std::string& what) {
  throw Error(ErrorKind::kBadFile, "audit layout: " + what);
}

[[noreturn]] void bad_record(uint64_t pass, const std::string& what) {
  throw Error(ErrorKind::kBadFile, "audit record of pass " + std::to_string(pass) + ": " + what);
}

/// Throws unless `offset` .. `offset + count` lies in a record of `words` words.
void check_field(const char* name, int64_t offset, int64_t count, int64_t words) {
  if (offset < 0 || offset + count > words) {
    bad_layout(std::string(name) + " is at word " + std::to_string(offset) + " with " +
               std::to_string(count) + " words, expected it inside the record's " +
               std::to_string(words) + " words");
  }
}

/// Fields that overlap would let a small record decode into a large one.
void check_used(int64_t used_words, int64_t words) {
  if (used_words <= words) return;
  bad_layout("the layers need at least " + std::to_string(used_words) +
             " words, expected no more than token_words, " + std::to_string(words));
}

/// Bytes of a record, or false where they do not fit into size_t.
bool record_bytes(const AuditLayout& layout, size_t rows, size_t tokens, size_t& bytes) {
  size_t row_bytes = 0;
  size_t token_bytes = 0;
  const size_t bytes_per_row = 4 * (1 + static_cast<size_t>(layout.row_words));
  const size_t bytes_per_token = sizeof(AuditToken) + 4 * static_cast<size_t>(layout.token_words);
  if (__builtin_mul_overflow(rows, bytes_per_row, &row_bytes) ||
      __builtin_mul_overflow(tokens, bytes_per_token, &token_bytes) ||
      __builtin_add_overflow(row_bytes, token_bytes, &bytes) ||
      __builtin_add_overflow(bytes, sizeof(AuditPassHeader) + 7, &bytes)) {
    return false;
  }
  bytes &= ~size_t{7};
  return true;
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// One token's or row's words; offsets were checked with the layout.
struct Words {
  const std::byte* data;
  float real(int32_t offset) const { return load<float>(data + 4 * static_cast<size_t>(offset)); }
  int32_t integer(int32_t offset) const {
    return load<int32_t>(data + 4 * static_cast<size_t>(offset));
  }
  uint64_t digest(int32_t offset) const {
    return uint64_t{static_cast<uint32_t>(integer(offset + 1))} << 32 |
           static_cast<uint32_t>(integer(offset));
  }
};

void decode_layers(const AuditLayout& layout, uint64_t pass, Words words, TokenRecord& record) {
  record.layers.resize(layout.layers.size());
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const AuditLayout::Layer& from = layout.layers[i];
    LayerRecord& to = record.layers[i];
    to.layer = from.layer;
    to.residual_norm = words.real(from.residual_norm);
    to.routes.resize(from.expert_ids < 0 ? 0 : static_cast<size_t>(from.top_k));
    for (int32_t slot = 0; slot < static_cast<int32_t>(to.routes.size()); ++slot) {
      const int32_t expert = words.integer(from.expert_ids + slot);
      if (expert < 0 || expert >= from.num_experts) {
        bad_record(pass, "layer " + std::to_string(from.layer) + " has expert " +
                             std::to_string(expert) + ", expected 0 to " +
                             std::to_string(from.num_experts - 1));
      }
      to.routes[static_cast<size_t>(slot)] = {expert, words.real(from.expert_weights + slot)};
    }
    to.router = from.router;
    to.selection.resize(from.router_scores < 0 ? 0 : to.routes.size());
    for (int32_t slot = 0; slot < static_cast<int32_t>(to.selection.size()); ++slot) {
      to.selection[static_cast<size_t>(slot)] = {
          words.real(from.router_scores + slot),
          words.real(from.router_scores + from.top_k + slot)};
    }
    const auto take = [&](std::vector<float>& values, int32_t offset, size_t count) {
      values.resize(offset < 0 ? 0 : count);
      if (values.empty()) return;
      std::memcpy(values.data(), words.data + 4 * static_cast<size_t>(offset), 4 * count);
    };
    take(to.expert_norms, from.expert_norms, to.routes.size());
    take(to.router_probs, from.router_probs, static_cast<size_t>(from.num_experts));
  }
}

void decode_hidden_states(const AuditLayout& layout, Words words, TokenRecord& record) {
  record.hidden_states.resize(layout.hidden_states.size());
  for (size_t i = 0; i < layout.hidden_states.size(); ++i) {
    HiddenStateRecord& to = record.hidden_states[i];
    to.layer = layout.hidden_states[i].layer;
    to.values.resize(static_cast<size_t>(layout.hidden_size));
    std::memcpy(to.values.data(),
                words.data + 4 * static_cast<size_t>(layout.hidden_states[i].values),
                4 * to.values.size());
  }
}

void decode_row(const AuditLayout& layout, uint64_t pass, Words words,
                PredictionRecord& prediction) {
  prediction.alternatives.clear();
  if (layout.row_words == 0) {
    prediction.logprob = std::numeric_limits<float>::quiet_NaN();
    prediction.entropy = std::numeric_limits<float>::quiet_NaN();
    prediction.logits_digest = 0;
    prediction.sampled = {};
    prediction.constraint = {};
    return;
  }
  const float log_sum_exp = words.real(layout.log_sum_exp);
  prediction.logprob = words.real(layout.chosen_logit) - log_sum_exp;
  prediction.entropy = words.real(layout.entropy);
  prediction.logits_digest = words.digest(layout.logits_digest);
  prediction.sampled = {};
  if (prediction.generated) {
    prediction.sampled = {std::max(words.integer(layout.sampler_candidates), 0),
                          words.real(layout.sampler_probability)};
  }
  prediction.constraint = {};
  if (prediction.generated && layout.constraint >= 0) {
    const int32_t flags = words.integer(layout.constraint + 3);
    ConstraintDecision& constraint = prediction.constraint;
    constraint.allowed = std::max(words.integer(layout.constraint), 0);
    constraint.attempt = std::max(flags, 0) >> 2;
    if (constraint.is_given()) {
      constraint.removed = words.real(layout.constraint + 1);
      constraint.mask_microseconds = words.real(layout.constraint + 2);
      constraint.is_limited = (flags & 1) != 0;
      constraint.first_ruled_out = (flags & 2) != 0;
    }
  }
  for (int32_t rank = 0; rank < kAuditTopTokens; ++rank) {
    const int32_t token = words.integer(layout.top_ids + rank);
    if (token == -1) break;  // past the vocabulary
    if (token < 0) {
      bad_record(pass, "top id " + std::to_string(rank) + " is " + std::to_string(token) +
                           ", expected a token id or -1");
    }
    prediction.alternatives.push_back({token, words.real(layout.top_logits + rank) - log_sum_exp});
  }
}

/// The terms at `word`; the experts' names come from the token's routes. `to` has the logits.
void decode_terms(std::span<const AuditLayout::Term> terms, int32_t word, Words words,
                  const TokenRecord& token, AttributionRecord& to) {
  const auto count = static_cast<int32_t>(terms.size());
  to.terms.resize(terms.size());
  double sum = 0, runner_up_sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    const AuditLayout::Term& from = terms[static_cast<size_t>(i)];
    TermRecord& term = to.terms[static_cast<size_t>(i)];
    term = {from.kind, from.layer, -1, words.real(word + i), words.real(word + count + i)};
    if (from.kind == AuditLayout::Term::Kind::kExpert) {
      const LayerRecord& layer = token.layers[static_cast<size_t>(from.layer)];
      term.expert = layer.routes[static_cast<size_t>(from.slot)].expert;
    }
    sum += double{term.value};
    runner_up_sum += double{term.runner_up};
  }
  to.rounding = static_cast<float>(double{to.logit} - sum);
  to.runner_up_rounding = static_cast<float>(double{to.runner_up_logit} - runner_up_sum);
}

/// Decodes the row's attribution: one model's into the prediction, or each specialist's beside its
/// share.
void decode_attribution(const AuditLayout& layout, Words words, TokenRecord& token) {
  PredictionRecord& prediction = token.prediction;
  const bool is_attributed = layout.row_words > 0 && !layout.terms.empty();
  const std::vector<int32_t>& num_terms = layout.federation.num_terms;
  prediction.attribution.terms.clear();
  prediction.federation.attributions.resize(is_attributed ? num_terms.size() : 0);
  if (!is_attributed) return;
  const int32_t rank = words.integer(layout.top_ids) == prediction.token ? 1 : 0;
  const int32_t runner_up = words.integer(layout.top_ids + rank);
  int32_t word = layout.attribution;
  if (num_terms.empty()) {
    AttributionRecord& to = prediction.attribution;
    to.runner_up = runner_up;
    to.logit = words.real(layout.chosen_logit);
    to.runner_up_logit = words.real(layout.top_logits + rank);
    return decode_terms(layout.terms, word, words, token, to);
  }
  std::span<const AuditLayout::Term> left = layout.terms;
  for (size_t i = 0; i < num_terms.size(); ++i) {
    AttributionRecord& to = prediction.federation.attributions[i];
    to.runner_up = runner_up;
    to.logit = words.real(word);
    to.runner_up_logit = words.real(word + 1);
    decode_terms(left.first(static_cast<size_t>(num_terms[i])), word + 2, words, token, to);
    left = left.subspan(static_cast<size_t>(num_terms[i]));
    word += 2 + 2 * num_terms[i];
  }
}

/// Numbers are two words each.
void decode_federation(const AuditLayout& layout, Words words, FederationRecord& to) {
  to.specialists.resize(layout.row_words == 0 ? 0 : layout.federation.specialists.size());
  if (to.specialists.empty()) return;
  const std::byte* from = words.data + 4 * static_cast<size_t>(layout.federation.values);
  const auto take = [&from] {
    from += sizeof(double);
    return load<double>(from - sizeof(double));
  };
  for (SpecialistShare& share : to.specialists) {
    share.logprob = take();
    share.weight = take();
    share.share = take();
  }
  to.joint = take();
  to.log_normaliser = take();
  to.residual = take();
}

/// Each term names a layer of the layout, and an expert's a slot of it.
void check_terms(const AuditLayout& layout) {
  for (size_t i = 0; i < layout.terms.size(); ++i) {
    const AuditLayout::Term& term = layout.terms[i];
    bool is_good = term.is_of_layer()
                       ? term.layer >= 0 && static_cast<size_t>(term.layer) < layout.layers.size()
                       : term.layer == -1;
    if (is_good && term.kind == AuditLayout::Term::Kind::kExpert) {
      const AuditLayout::Layer& layer = layout.layers[static_cast<size_t>(term.layer)];
      is_good = layer.expert_ids >= 0 && term.slot >= 0 && term.slot < layer.top_k;
    }
    if (!is_good) {
      bad_layout("term " + std::to_string(i) + " is of layer " + std::to_string(term.layer) +
                 " and slot " + std::to_string(term.slot) + ", expected ones that the layout has");
    }
  }
  const AuditLayout::Federation& federation = layout.federation;
  if (!is_split(federation, layout.terms.size())) {
    bad_layout("the terms are those of " + std::to_string(federation.num_terms.size()) +
               " specialists of " + std::to_string(federation.specialists.size()) +
               ", expected all terms to be somebody's");
  }
  if (!layout.terms.empty() && layout.row_words > 0) {
    check_field("attribution", layout.attribution,
                2 * static_cast<int64_t>(layout.terms.size() + federation.num_terms.size()),
                layout.row_words);
  }
}

}  // namespace

namespace audit {

bool is_split(const AuditLayout::Federation& federation, size_t num_terms) {
  if (num_terms == 0 || federation.specialists.empty()) return federation.num_terms.empty();
  if (federation.num_terms.size() != federation.specialists.size()) return false;
  size_t sum = 0;
  for (const int32_t count : federation.num_terms) {
    if (count < 1 || static_cast<size_t>(count) > num_terms) return false;
    sum += static_cast<size_t>(count);
  }
  return sum == num_terms;
}

void check_layout(const AuditLayout& layout) {
  if (layout.token_words < 0 || layout.row_words < 0) {
    bad_layout("token_words is " + std::to_string(layout.token_words) + " and row_words is " +
               std::to_string(layout.row_words) + ", expected 0 or more");
  }
  int64_t used_words = 0;
  const int64_t words = layout.token_words;
  for (const AuditLayout::Layer& layer : layout.layers) {
    check_field("residual_norm", layer.residual_norm, 1, words);
    used_words += 1;
    if ((layer.expert_ids < 0) != (layer.expert_weights < 0)) {
      bad_layout("layer " + std::to_string(layer.layer) +
                 " has only one of expert_ids and expert_weights, expected both or none");
    }
    if (layer.expert_ids >= 0) {
      if (layer.top_k < 1 || layer.num_experts < layer.top_k) {
        bad_layout("layer " + std::to_string(layer.layer) + " has top_k " +
                   std::to_string(layer.top_k) + " of " + std::to_string(layer.num_experts) +
                   " experts, expected 1 or more and no more than there are experts");
      }
      check_field("expert_ids", layer.expert_ids, layer.top_k, words);
      check_field("expert_weights", layer.expert_weights, layer.top_k, words);
      used_words += 2 * int64_t{layer.top_k};
    }
    const auto check_of_experts = [&](const char* name, int32_t offset, int64_t count) {
      if (offset < 0) return;
      if (layer.expert_ids < 0) {
        bad_layout("layer " + std::to_string(layer.layer) + " has " + name +
                   " and no expert_ids, expected both");
      }
      check_field(name, offset, count, words);
      used_words += count;
    };
    check_of_experts("router_scores", layer.router_scores, 2 * int64_t{layer.top_k});
    check_of_experts("expert_norms", layer.expert_norms, layer.top_k);
    if (layer.router_probs >= 0) {
      if (layer.num_experts < 1) {
        bad_layout("layer " + std::to_string(layer.layer) + " has router_probs of " +
                   std::to_string(layer.num_experts) + " experts, expected 1 or more");
      }
      check_field("router_probs", layer.router_probs, layer.num_experts, words);
      used_words += layer.num_experts;
    }
    check_used(used_words, words);
  }
  for (const AuditLayout::HiddenState& state : layout.hidden_states) {
    if (layout.hidden_size < 1 || state.layer < 0 ||
        static_cast<size_t>(state.layer) >
            layout.layers.size() + layout.federation.specialists.size()) {
      bad_layout("a hidden state of layer " + std::to_string(state.layer) + " has " +
                 std::to_string(layout.hidden_size) +
                 " values, expected a layer that the layout has, and 1 or more");
    }
    check_field("hidden_states", state.values, layout.hidden_size, words);
    used_words += layout.hidden_size;
    check_used(used_words, words);
  }
  if (layout.row_words > 0) {
    check_field("chosen_logit", layout.chosen_logit, 1, layout.row_words);
    check_field("log_sum_exp", layout.log_sum_exp, 1, layout.row_words);
    check_field("entropy", layout.entropy, 1, layout.row_words);
    check_field("top_ids", layout.top_ids, kAuditTopTokens, layout.row_words);
    check_field("top_logits", layout.top_logits, kAuditTopTokens, layout.row_words);
    check_field("logits_digest", layout.logits_digest, 2, layout.row_words);
    check_field("sampler_candidates", layout.sampler_candidates, 1, layout.row_words);
    check_field("sampler_probability", layout.sampler_probability, 1, layout.row_words);
    if (layout.constraint >= 0) {
      check_field("constraint", layout.constraint, kAuditConstraintWords, layout.row_words);
    }
    if (!layout.federation.specialists.empty()) {
      check_field("federation", layout.federation.values, layout.federation.num_words(),
                  layout.row_words);
    }
  }
  check_terms(layout);
}

bool same_layout(const AuditLayout& a, const AuditLayout& b) {
  const auto same_layer = [](const AuditLayout::Layer& x, const AuditLayout::Layer& y) {
    return x.layer == y.layer && x.residual_norm == y.residual_norm &&
           x.expert_ids == y.expert_ids && x.expert_weights == y.expert_weights &&
           x.router_probs == y.router_probs && x.router_scores == y.router_scores &&
           x.expert_norms == y.expert_norms && x.router == y.router && x.top_k == y.top_k &&
           x.num_experts == y.num_experts;
  };
  if (a.layers.size() != b.layers.size()) return false;
  for (size_t i = 0; i < a.layers.size(); ++i) {
    if (!same_layer(a.layers[i], b.layers[i])) return false;
  }
  return a.mode == b.mode && a.level == b.level && a.token_words == b.token_words &&
         a.row_words == b.row_words && a.chosen_logit == b.chosen_logit &&
         a.log_sum_exp == b.log_sum_exp && a.entropy == b.entropy && a.top_ids == b.top_ids &&
         a.top_logits == b.top_logits && a.logits_digest == b.logits_digest &&
         a.sampler_candidates == b.sampler_candidates &&
         a.sampler_probability == b.sampler_probability && a.constraint == b.constraint &&
         a.attribution == b.attribution && a.terms == b.terms &&
         a.hidden_states == b.hidden_states && a.hidden_size == b.hidden_size &&
         a.federation == b.federation;
}

size_t decode_pass_into(const AuditLayout& layout, std::span<const std::byte> record,
                        std::vector<TokenRecord>& pool) {
  if (record.size() < sizeof(AuditPassHeader)) {
    throw Error(ErrorKind::kBadFile, "audit record: has " + std::to_string(record.size()) +
                                         " bytes, expected at least " +
                                         std::to_string(sizeof(AuditPassHeader)) +
                                         " for its header");
  }
  const auto header = load<AuditPassHeader>(record.data());
  size_t expected_bytes = 0;
  if (!record_bytes(layout, header.num_rows, header.num_tokens, expected_bytes)) {
    bad_record(header.pass, "num_tokens is " + std::to_string(header.num_tokens) +
                                " and num_rows is " + std::to_string(header.num_rows) +
                                ", expected sizes that fit into memory");
  }
  if (header.num_bytes != expected_bytes || record.size() != expected_bytes) {
    bad_record(header.pass, "num_bytes is " + std::to_string(header.num_bytes) + " and there are " +
                                std::to_string(record.size()) + " bytes, expected " +
                                std::to_string(expected_bytes) + " for " +
                                std::to_string(header.num_tokens) + " tokens and " +
                                std::to_string(header.num_rows) + " rows");
  }
  const size_t num_rows = header.num_rows;
  const size_t num_tokens = header.num_tokens;
  const std::byte* tokens = record.data() + sizeof(AuditPassHeader);
  const std::byte* chosen_ids = tokens + num_tokens * sizeof(AuditToken);
  const std::byte* rows = chosen_ids + 4 * num_rows;
  const std::byte* token_words = rows + 4 * num_rows * static_cast<size_t>(layout.row_words);

  if (pool.size() < num_tokens) pool.resize(num_tokens);
  for (size_t i = 0; i < num_tokens; ++i) {
    const auto token = load<AuditToken>(tokens + i * sizeof(AuditToken));
    if (token.position < 0 || token.token < 0 || (token.generated != 0 && token.generated != 1)) {
      bad_record(header.pass, "token " + std::to_string(i) + " has position " +
                                  std::to_string(token.position) + ", id " +
                                  std::to_string(token.token) + " and generated " +
                                  std::to_string(token.generated) +
                                  ", expected 0 or more, 0 or more, and 0 or 1");
    }
    if (token.row < -1 || token.row >= static_cast<int64_t>(num_rows)) {
      bad_record(header.pass, "token " + std::to_string(i) + " has row " +
                                  std::to_string(token.row) + ", expected -1 or one of " +
                                  std::to_string(num_rows) + " rows");
    }
    TokenRecord& to = pool[i];
    to.sequence = token.sequence;
    to.position = token.position;
    to.token = token.token;
    const Words words{token_words + 4 * i * static_cast<size_t>(layout.token_words)};
    decode_layers(layout, header.pass, words, to);
    decode_hidden_states(layout, words, to);
    to.has_prediction = token.row >= 0;
    if (!to.has_prediction) {
      to.prediction.alternatives.clear();
      to.prediction.attribution.terms.clear();
      to.prediction.federation.specialists.clear();
      to.prediction.federation.attributions.clear();
      continue;
    }
    const size_t row = static_cast<size_t>(token.row);
    to.prediction.token = load<int32_t>(chosen_ids + 4 * row);
    to.prediction.generated = token.generated == 1;
    if (to.prediction.token < 0) {
      bad_record(header.pass, "row " + std::to_string(row) + " has chosen id " +
                                  std::to_string(to.prediction.token) + ", expected 0 or more");
    }
    const Words row_words{rows + 4 * row * static_cast<size_t>(layout.row_words)};
    decode_row(layout, header.pass, row_words, to.prediction);
    decode_attribution(layout, row_words, to);
    decode_federation(layout, row_words, to.prediction.federation);
  }
  return num_tokens;
}

}  // namespace audit

std::string_view term_kind_name(AuditLayout::Term::Kind kind) {
  switch (kind) {
    case AuditLayout::Term::Kind::kEmbedding: return "embedding";
    case AuditLayout::Term::Kind::kAttention: return "attention";
    case AuditLayout::Term::Kind::kDense: return "dense_ffn";
    case AuditLayout::Term::Kind::kExpert: return "expert";
    case AuditLayout::Term::Kind::kShared: return "shared_expert";
    case AuditLayout::Term::Kind::kLayerInput: return "layer_input";
    case AuditLayout::Term::Kind::kSoftCap: return "soft_cap";
  }
  return "?";
}

std::string_view router_kind_name(RouterKind kind) {
  switch (kind) {
    case RouterKind::kPlain: return "plain";
    case RouterKind::kSoftmaxScores: return "softmax";
    case RouterKind::kSigmoidScores: return "sigmoid";
  }
  return "?";
}

std::string_view share_kind_name(ShareKind kind) {
  return kind == ShareKind::kTerm ? "term" : "responsibility";
}

size_t audit_record_bytes(const AuditLayout& layout, size_t rows, size_t tokens) {
  check_layout(layout);
  size_t bytes = 0;
  if (!record_bytes(layout, rows, tokens, bytes)) {
    bad_layout("a pass of " + std::to_string(tokens) + " tokens and " + std::to_string(rows) +
               " rows, expected a size that fits into memory");
  }
  return bytes;
}

std::vector<TokenRecord> decode_pass(const AuditLayout& layout, std::span<const std::byte> record) {
  check_layout(layout);
  std::vector<TokenRecord> records;
  records.resize(audit::decode_pass_into(layout, record, records));
  return records;
}

}  // namespace vitrine
