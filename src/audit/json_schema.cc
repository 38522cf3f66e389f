// SPDX-License-Identifier: Apache-2.0
#include "json_schema.h"

#include "draft_list.h"
#include "failure_list.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit {
namespace {

/// Readers that keep numbers as doubles have each whole number below; from here on they round.
constexpr uint64_t kMostWholeNumber = uint64_t{1} << 53;

std::string_view mode_name(AuditMode mode) {
  switch (mode) {
    case AuditMode::kNone: return "none";
    case AuditMode::kNaive: return "naive";
    case AuditMode::kDeferred: return "deferred";
  }
  return "?";
}

std::string_view level_name(AuditLevel level) {
  switch (level) {
    case AuditLevel::kStandard: return "standard";
    case AuditLevel::kFull: return "full";
  }
  return "?";
}

void string_field(JsonBuffer& out, std::string_view key_and_colon, std::string_view value) {
  out.raw(key_and_colon);
  out.string(value);
}

template <typename Integer>
void integer_field(JsonBuffer& out, std::string_view key_and_colon, Integer value) {
  out.raw(key_and_colon);
  out.integer(value);
}

void append_token(JsonBuffer& out, int32_t token, PieceCache& pieces) {
  integer_field(out, "\"token\":", token);
  if (!pieces.empty()) out.raw(pieces.fields(token));
}

/// Appends a key with its colon, and then the values by `append`, with a comma before all but the
/// first.
template <typename Values, typename Append>
void list_field(JsonBuffer& out, std::string_view key_and_colon, const Values& values,
                const Append& append) {
  out.raw(key_and_colon);
  out.raw('[');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out.raw(',');
    append(values[i]);
  }
  out.raw(']');
}

void append_layer(JsonBuffer& out, const LayerRecord& layer) {
  const auto real = [&out](float value) { out.real(value); };
  integer_field(out, "{\"layer\":", layer.layer);
  out.raw(",\"residual_norm\":");
  out.real(layer.residual_norm);
  list_field(out, ",\"experts\":", layer.routes,
             [&out](const RouteRecord& route) { out.integer(route.expert); });
  list_field(out, ",\"weights\":", layer.routes,
             [&out](const RouteRecord& route) { out.real(route.weight); });
  if (!layer.selection.empty()) {
    list_field(out, ",\"scores\":", layer.selection,
               [&out](const SelectionRecord& of) { out.real(of.score); });
    list_field(out, ",\"selection_keys\":", layer.selection,
               [&out](const SelectionRecord& of) { out.real(of.key); });
  }
  if (!layer.expert_norms.empty()) list_field(out, ",\"expert_norms\":", layer.expert_norms, real);
  if (!layer.router_probs.empty()) list_field(out, ",\"router_probs\":", layer.router_probs, real);
  out.raw('}');
}

void append_attribution(JsonBuffer& out, const AttributionRecord& attribution, PieceCache& pieces) {
  out.raw("\"attribution\":{\"logit\":");
  out.real(attribution.logit);
  out.raw(",\"rounding\":");
  out.real(attribution.rounding);
  out.raw(",\"runner_up\":{");
  append_token(out, attribution.runner_up, pieces);
  out.raw(",\"logit\":");
  out.real(attribution.runner_up_logit);
  out.raw(",\"rounding\":");
  out.real(attribution.runner_up_rounding);
  out.raw("},\"terms\":[");
  for (size_t i = 0; i < attribution.terms.size(); ++i) {
    const TermRecord& term = attribution.terms[i];
    string_field(out, i > 0 ? ",{\"part\":" : "{\"part\":", term_kind_name(term.kind));
    if (term.layer >= 0) integer_field(out, ",\"layer\":", term.layer);
    if (term.expert >= 0) integer_field(out, ",\"expert\":", term.expert);
    out.raw(",\"value\":");
    out.real(term.value);
    out.raw(",\"runner_up\":");
    out.real(term.runner_up);
    out.raw('}');
  }
  out.raw("]}");
}

/// Names and the kind of shares stand in the head. Either column may have been left out.
void append_federation(JsonBuffer& out, const FederationRecord& federation, PieceCache& pieces) {
  const size_t shares = federation.specialists.size(), sums = federation.attributions.size();
  out.raw(",\"federation\":{");
  if (shares > 0) {
    out.raw("\"joint\":");
    out.real(federation.joint);
    out.raw(",\"log_normaliser\":");
    out.real(federation.log_normaliser);
    out.raw(",\"residual\":");
    out.real(federation.residual);
    out.raw(',');
  }
  out.raw("\"specialists\":[");
  for (size_t i = 0; i < std::max(shares, sums); ++i) {
    out.raw(i > 0 ? ",{" : "{");
    if (i < shares) {
      const SpecialistShare& share = federation.specialists[i];
      out.raw("\"logprob\":");
      out.real(share.logprob);
      out.raw(",\"weight\":");
      out.real(share.weight);
      out.raw(",\"share\":");
      out.real(share.share);
    }
    if (i < std::min(shares, sums)) out.raw(',');
    if (i < sums) append_attribution(out, federation.attributions[i], pieces);
    out.raw('}');
  }
  out.raw("]}");
}

/// 16 digits: a JSON number would lose bits in most readers.
std::string hexadecimal(uint64_t value) {
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4) {
    *digit = "0123456789abcdef"[value & 15];
  }
  return text;
}

void append_constraint(JsonBuffer& out, const ConstraintDecision& constraint) {
  integer_field(out, ",\"constraint\":{\"allowed\":", constraint.allowed);
  out.raw(",\"removed\":");
  out.real(constraint.removed);
  out.raw(constraint.first_ruled_out ? ",\"first_ruled_out\":true" : ",\"first_ruled_out\":false");
  out.raw(constraint.is_limited ? ",\"limited\":true" : ",\"limited\":false");
  integer_field(out, ",\"attempt\":", constraint.attempt);
  out.raw(",\"mask_us\":");
  out.real(constraint.mask_microseconds);
  out.raw('}');
}

void append_prediction(JsonBuffer& out, const PredictionRecord& prediction, PieceCache& pieces) {
  out.raw('{');
  append_token(out, prediction.token, pieces);
  out.raw(prediction.generated ? ",\"generated\":true,\"logprob\":"
                               : ",\"generated\":false,\"logprob\":");
  out.real(prediction.logprob);
  out.raw(",\"entropy\":");
  out.real(prediction.entropy);
  if (prediction.logits_digest != 0) {
    out.raw(",\"logits_digest\":");
    out.string(hexadecimal(prediction.logits_digest));
  }
  if (prediction.sampled.candidates > 0) {
    integer_field(out, ",\"sampler\":{\"candidates\":", prediction.sampled.candidates);
    out.raw(",\"probability\":");
    out.real(prediction.sampled.probability);
    out.raw('}');
  }
  if (prediction.constraint.is_given()) append_constraint(out, prediction.constraint);
  out.raw(",\"top_logprobs\":[");
  for (size_t rank = 0; rank < prediction.alternatives.size(); ++rank) {
    out.raw(rank > 0 ? ",{" : "{");
    append_token(out, prediction.alternatives[rank].token, pieces);
    out.raw(",\"logprob\":");
    out.real(prediction.alternatives[rank].logprob);
    out.raw('}');
  }
  out.raw(']');
  if (!prediction.attribution.terms.empty()) {
    out.raw(',');
    append_attribution(out, prediction.attribution, pieces);
  }
  const FederationRecord& federation = prediction.federation;
  if (!federation.specialists.empty() || !federation.attributions.empty()) {
    append_federation(out, federation, pieces);
  }
  out.raw('}');
}

void append_pairs(JsonBuffer& out, const std::vector<std::pair<std::string, std::string>>& pairs) {
  out.raw('{');
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i > 0) out.raw(',');
    out.string(pairs[i].first);
    out.raw(':');
    out.string(pairs[i].second);
  }
  out.raw('}');
}

void append_hidden_states(JsonBuffer& out, const std::vector<HiddenStateRecord>& states) {
  out.raw(",\"hidden_states\":[");
  for (size_t i = 0; i < states.size(); ++i) {
    integer_field(out, i > 0 ? ",{\"layer\":" : "{\"layer\":", states[i].layer);
    out.raw(",\"values\":[");
    for (size_t at = 0; at < states[i].values.size(); ++at) {
      if (at > 0) out.raw(',');
      out.real(states[i].values[at]);
    }
    out.raw("]}");
  }
  out.raw(']');
}

void append_forks(JsonBuffer& out, const std::vector<LogFork>& forks) {
  if (forks.empty()) return;
  out.raw("\"forks\":[");
  for (size_t i = 0; i < forks.size(); ++i) {
    integer_field(out, i > 0 ? ",\n{\"record\":" : "\n{\"record\":", forks[i].record);
    integer_field(out, ",\"sequence\":", forks[i].sequence);
    integer_field(out, ",\"source\":", forks[i].source);
    integer_field(out, ",\"length\":", forks[i].length);
    out.raw('}');
  }
  out.raw("\n],\n");
}

}  // namespace

std::string_view PieceCache::fields(int32_t token) {
  constexpr int32_t kMaxCached = 1 << 20;  // beyond any vocabulary; bounds the table
  const auto make = [&] {
    scratch_.clear();
    const TokenPiece found = token_text_(token);
    if (found.bytes) {
      scratch_.raw(",\"text\":");
      scratch_.string(*found.bytes);
      scratch_.raw(",\"bytes\":[");
      for (size_t i = 0; i < found.bytes->size(); ++i) {
        if (i > 0) scratch_.raw(',');
        scratch_.integer(static_cast<int32_t>(static_cast<uint8_t>((*found.bytes)[i])));
      }
      scratch_.raw(']');
    }
    scratch_.raw(",\"piece\":");
    scratch_.string(found.piece);
    return scratch_.view();
  };
  if (token < 0 || token >= kMaxCached) return make();
  const size_t index = static_cast<size_t>(token);
  if (index >= pieces_.size()) pieces_.resize(index + 1);
  if (pieces_[index].empty()) pieces_[index] = make();
  return pieces_[index];
}

void append_head(JsonBuffer& out, const LogHeader& header, const LogStart& start,
                 const AuditLayout& layout, const std::string& trace_id, bool is_rounded) {
  string_field(out, "{\n\"schema\":", "vitrine.audit/1");
  // Nanoseconds are beyond what a reader of doubles keeps.
  string_field(out, ",\n\"started\":{\"utc\":", utc_text(start.unix_ns));
  string_field(out, ",\"unix_ns\":", std::to_string(start.unix_ns));
  if (start.monotonic_ns > 0) {
    string_field(out, ",\"monotonic_ns\":", std::to_string(start.monotonic_ns));
  }
  out.raw('}');
  string_field(out, ",\n\"engine_build\":", start.engine_build);
  if (!header.host_name.empty()) string_field(out, ",\n\"host_name\":", header.host_name);
  string_field(out, ",\n\"model\":{\"path\":", header.model_path);
  string_field(out, ",\"architecture\":", header.architecture);
  integer_field(out, ",\"num_layers\":", header.num_layers);
  integer_field(out, ",\"vocab_size\":", header.vocab_size);
  out.raw(",\"sha256\":");
  append_pairs(out, header.hashes);
  string_field(out, "},\n\"runtime\":{\"device\":", header.device);
  string_field(out, ",\"kernels\":", header.kernels);
  string_field(out, ",\"isa\":", header.isa);
  integer_field(out, ",\"threads\":", header.threads);
  out.raw(",\"options\":");
  append_pairs(out, header.engine);
  out.raw("},\n\"seed\":");
  if (header.seed < kMostWholeNumber) {
    out.integer(header.seed);
  } else {
    out.string(std::to_string(header.seed));
  }
  if (!trace_id.empty()) string_field(out, ",\n\"trace_id\":", trace_id);
  out.raw(",\n\"sampler\":{");
  for (size_t i = 0; i < header.sampler.size(); ++i) {
    if (i > 0) out.raw(',');
    out.string(header.sampler[i].first);
    out.raw(':');
    out.number_or_string(header.sampler[i].second);
  }
  out.raw('}');
  if (!header.constraint.empty()) {
    out.raw(",\n\"constraint\":");
    append_pairs(out, header.constraint);
  }
  if (!header.speculation.empty()) {
    out.raw(",\n\"speculation\":");
    append_pairs(out, header.speculation);
  }
  string_field(out, ",\n\"audit\":{\"mode\":", mode_name(layout.mode));
  string_field(out, ",\"level\":", level_name(layout.level));
  if (is_rounded) out.raw(",\"rounded\":true");
  out.raw(",\"layers\":[");
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const AuditLayout::Layer& layer = layout.layers[i];
    integer_field(out, i > 0 ? ",{\"layer\":" : "{\"layer\":", layer.layer);
    integer_field(out, ",\"top_k\":", layer.top_k);
    integer_field(out, ",\"num_experts\":", layer.num_experts);
    if (layer.router != RouterKind::kPlain) {
      string_field(out, ",\"router\":", router_kind_name(layer.router));
    }
    out.raw('}');
  }
  out.raw(']');
  if (!layout.hidden_states.empty()) {
    integer_field(out, ",\"hidden_size\":", layout.hidden_size);
    out.raw(",\"hidden_state_layers\":[");
    for (size_t i = 0; i < layout.hidden_states.size(); ++i) {
      if (i > 0) out.raw(',');
      out.integer(layout.hidden_states[i].layer);
    }
    out.raw(']');
  }
  if (const AuditLayout::Federation& of = layout.federation; !of.specialists.empty()) {
    string_field(out, ",\"federation\":{\"combiner\":", of.combiner);
    string_field(out, ",\"shares\":", share_kind_name(of.shares));
    out.raw(",\"specialists\":[");
    for (size_t i = 0; i < of.specialists.size(); ++i) {
      if (i > 0) out.raw(',');
      out.string(of.specialists[i]);
    }
    out.raw("]}");
  }
  out.raw("},\n\"records\":[");
}

void append_record(JsonBuffer& out, const TokenRecord& record, PieceCache& pieces, bool is_first,
                   bool is_redacted) {
  integer_field(out, is_first ? "\n{\"sequence\":" : ",\n{\"sequence\":", record.sequence);
  integer_field(out, ",\"position\":", record.position);
  out.raw(',');
  append_token(out, record.token, pieces);
  if (is_redacted) out.raw(",\"redacted\":true");
  out.raw(",\"layers\":[");
  for (size_t i = 0; i < record.layers.size(); ++i) {
    if (i > 0) out.raw(',');
    append_layer(out, record.layers[i]);
  }
  out.raw("],\"prediction\":");
  if (record.has_prediction) {
    append_prediction(out, record.prediction, pieces);
  } else {
    out.raw("null");
  }
  if (!record.hidden_states.empty()) append_hidden_states(out, record.hidden_states);
  out.raw('}');
}

void append_closing(JsonBuffer& out, std::string_view stop_reason, const LogCounts& counts,
                    const std::vector<ConstraintFailure>& failures,
                    const std::vector<DraftedPass>& drafts, const std::vector<LogFork>& forks) {
  out.raw("\n],\n");
  append_failures(out, failures);
  append_drafts(out, drafts);
  append_forks(out, forks);
  string_field(out, "\"stop_reason\":", stop_reason);
  integer_field(out, ",\n\"counts\":{\"passes\":", counts.passes);
  integer_field(out, ",\"tokens\":", counts.tokens);
  integer_field(out, ",\"generated\":", counts.generated);
  integer_field(out, ",\"scored\":", counts.scored);
  if (counts.lost > 0) integer_field(out, ",\"lost\":", counts.lost);
  out.raw("}\n}\n");
}

}  // namespace vitrine::audit
