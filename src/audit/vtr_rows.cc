// SPDX-License-Identifier: Apache-2.0
#include "vtr_rows.h"

#include <sodium.h>

#include <algorithm>
#include <limits>

#include "federation_rows.h"
#include "row_values.h"

namespace vitrine::audit {
namespace {

// A prediction row's first byte: bits 0-1 none, scored or generated; bits 2-5 how many
// alternatives.
constexpr uint8_t kScored = 1, kGenerated = 2;
constexpr int32_t kMaxAttempt = 63;  // of a constraint's row; later ones count as this

/// Numbers of a few bits each, lowest bit first.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : out_(out) {}
  void put(uint32_t value, int bits) {
    pending_ |= uint64_t{value} << used_;
    for (used_ += bits; used_ >= 8; used_ -= 8) {
      *out_++ = static_cast<uint8_t>(pending_);
      pending_ >>= 8;
    }
  }
  uint8_t* finish() {
    if (used_ > 0) *out_++ = static_cast<uint8_t>(pending_);
    return out_;
  }

 private:
  uint8_t* out_;
  uint64_t pending_ = 0;
  int used_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const uint8_t* in) : in_(in) {}
  uint32_t get(int bits) {
    for (; have_ < bits; have_ += 8) pending_ |= uint64_t{*in_++} << have_;
    const auto value = static_cast<uint32_t>(pending_ & ((uint64_t{1} << bits) - 1));
    pending_ >>= bits;
    have_ -= bits;
    return value;
  }

 private:
  const uint8_t* in_;
  uint64_t pending_ = 0;
  int have_ = 0;
};

int bits_for(uint32_t count) {
  return count <= 2 ? 1 : static_cast<int>(std::bit_width(count - 1));
}

size_t byte_count(size_t bits) { return (bits + 7) / 8; }

// Puts a norm, which may be beyond binary16's range.
uint8_t* put_norm(uint8_t* to, float norm, bool is_full) {
  return is_full ? put_value(to, norm, true) : put(to, to_bfloat16(norm));
}
float take_norm(const uint8_t*& from, bool is_full) {
  return is_full ? take<float>(from) : from_bfloat16(take<uint16_t>(from));
}

}  // namespace

RowCodec::RowCodec(const VtrHeader& header)
    : is_full_(header.detail == LogDetail::kFull),
      layers_(header.layers),
      hidden_layers_(header.hidden_state_layers),
      hidden_size_(header.hidden_size),
      attribution_(header),
      num_specialists_(header.federation.specialists.size()) {
  if (header.log.vocab_size > 0) {
    vocabulary_ = static_cast<uint32_t>(header.log.vocab_size);
    id_bits_ = bits_for(vocabulary_);
  }
  groups_ = {{GroupId::kIndex, GroupKind::kWhole, 0}, {GroupId::kEvents, GroupKind::kWhole, 0}};
  const bool has_rows = header.detail != LogDetail::kCounters;
  if (!has_rows || header.counter_tokens > 0) {
    groups_.push_back({GroupId::kCounters, GroupKind::kWhole, 0});
  }
  if (!has_rows) return;
  const auto value = static_cast<size_t>(value_bytes());
  size_t expert_bits = 0, slots = 0, experts = 0, scored_slots = 0, norm_slots = 0;
  for (const AuditLayout::Layer& layer : layers_) {
    expert_bits_.push_back(bits_for(static_cast<uint32_t>(std::max(layer.num_experts, 1))));
    expert_bits += static_cast<size_t>(layer.top_k) * static_cast<size_t>(expert_bits_.back());
    slots += static_cast<size_t>(layer.top_k);
    experts += static_cast<size_t>(layer.num_experts);
    if (layer.router_scores >= 0) scored_slots += static_cast<size_t>(layer.top_k);
    if (layer.expert_norms >= 0) norm_slots += static_cast<size_t>(layer.top_k);
  }
  routing_bytes_ = byte_count(expert_bits) + value * slots;
  prediction_bytes_ = 1 + byte_count(static_cast<size_t>(id_bits_) * (1 + kAuditTopTokens)) +
                      value * (2 + kAuditTopTokens) + (is_full_ ? 8 : 0);
  const auto add = [this](GroupId id, size_t bytes) {
    if (bytes == 0) return;
    record_bytes_ += bytes;
    if (record_bytes_ > kMaxRowBytes) {
      throw_damaged("has records of more than " + std::to_string(kMaxRowBytes) + " bytes");
    }
    groups_.push_back({id, GroupKind::kRows, static_cast<uint32_t>(bytes)});
  };
  const auto tells_token = [](const AuditLayout::Layer& layer) { return layer.reads_embedding; };
  const auto num_first = static_cast<size_t>(std::ranges::count_if(layers_, tells_token));
  id_bytes_ = byte_count(static_cast<size_t>(id_bits_));
  add(GroupId::kTokens, id_bytes_ + value * num_first);
  if (header.has_text) groups_.push_back({GroupId::kText, GroupKind::kVariableRows, 0});
  add(GroupId::kPrediction, prediction_bytes_);
  add(GroupId::kRouting, routing_bytes_);
  add(GroupId::kNorms, value * (layers_.size() - num_first));
  add(GroupId::kDigests, sizeof(uint64_t));
  if (is_full_) add(GroupId::kRouterProbs, 4 * experts);
  add(GroupId::kAttribution, attribution_.row_bytes());
  // The count is any number up to that of the ids.
  count_bytes_ = byte_count(vocabulary_ > 0 ? std::bit_width(vocabulary_) : 31);
  add(GroupId::kSampler, count_bytes_ + value);
  if (hidden_bytes() > 0) groups_.push_back({GroupId::kHiddenStates, GroupKind::kVariableRows, 0});
  // The row has flags, the count, the probability taken away and the time.
  if (!header.log.constraint.empty()) add(GroupId::kConstraint, 1 + count_bytes_ + 2 * value);
  add(GroupId::kFederation, federation_bytes(header.federation));
  if (!header.log.constraint.empty()) groups_.push_back({GroupId::kFailures, GroupKind::kWhole, 0});
  // At full the values themselves say which layer differs.
  if (!is_full_) add(GroupId::kLayerMarks, sizeof(LayerMark) * layers_.size());
  add(GroupId::kSelection, 2 * value * scored_slots);
  if (!header.log.speculation.empty()) groups_.push_back({GroupId::kDrafts, GroupKind::kWhole, 0});
  add(GroupId::kExpertNorms, value * norm_slots);
}

void RowCodec::check_ids(const TokenRecord& record) const {
  const int64_t end = vocabulary_ > 0 ? int64_t{vocabulary_} : int64_t{1} << 31;
  if (record.token >= end) bad_id("a token's id", record.token, end);
  if (!record.has_prediction) return;
  if (record.prediction.token >= end) bad_id("a predicted id", record.prediction.token, end);
  for (const AlternativeRecord& other : record.prediction.alternatives) {
    if (other.token >= end) bad_id("an alternative's id", other.token, end);
  }
  const int32_t candidates = record.prediction.sampled.candidates;
  if (candidates < 0 || candidates > end) bad_id("a number of candidates", candidates, end + 1);
  const int32_t allowed = record.prediction.constraint.allowed;
  if (allowed < 0 || allowed > end) bad_id("a number of allowed tokens", allowed, end + 1);
}

void RowCodec::append(const TokenRecord& record, std::vector<Bytes>& columns) const {
  check_ids(record);
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupId id = groups_[i].id;
    if (groups_[i].kind == GroupKind::kRows && id != GroupId::kDigests) {
      write(id, record, columns[i]);
    }
  }
}

void RowCodec::write(GroupId group, const TokenRecord& record, Bytes& out) const {
  const auto found = std::find_if(groups_.begin(), groups_.end(),
                                  [group](const GroupSpec& spec) { return spec.id == group; });
  const size_t at = out.size();
  const bool is_hidden = group == GroupId::kHiddenStates;
  if (is_hidden && record.hidden_states.size() != hidden_layers_.size()) return;  // an empty row
  out.resize(at + (is_hidden ? hidden_bytes() : found->row_bytes));
  uint8_t* to = out.data() + at;
  switch (group) {
    case GroupId::kTokens: {
      const auto token = static_cast<uint32_t>(record.token);
      std::memcpy(to, &token, id_bytes_);
      write_norms(record, true, to + id_bytes_);
      break;
    }
    case GroupId::kPrediction: {
      if (!record.has_prediction) break;  // zeros
      const PredictionRecord& prediction = record.prediction;
      const size_t count = std::min<size_t>(prediction.alternatives.size(), kAuditTopTokens);
      *to++ = static_cast<uint8_t>((prediction.generated ? kGenerated : kScored) | count << 2);
      BitWriter ids(to);
      ids.put(static_cast<uint32_t>(prediction.token), id_bits_);
      for (size_t i = 0; i < kAuditTopTokens; ++i) {
        ids.put(i < count ? static_cast<uint32_t>(prediction.alternatives[i].token) : 0, id_bits_);
      }
      to = put_value(ids.finish(), prediction.logprob, is_full_);
      to = put_value(to, prediction.entropy, is_full_);
      for (size_t i = 0; i < count; ++i) {
        to = put_value(to, prediction.alternatives[i].logprob, is_full_);
      }
      if (is_full_) put(out.data() + out.size() - 8, prediction.logits_digest);
      break;
    }
    case GroupId::kRouting: {
      BitWriter ids(to);
      for (size_t i = 0; i < layers_.size(); ++i) {
        for (const RouteRecord& route : record.layers[i].routes) {
          ids.put(static_cast<uint32_t>(route.expert), expert_bits_[i]);
        }
      }
      to = ids.finish();
      for (const LayerRecord& layer : record.layers) {
        for (const RouteRecord& route : layer.routes) to = put_value(to, route.weight, is_full_);
      }
      break;
    }
    case GroupId::kSelection:
      for (const LayerRecord& layer : record.layers) {
        for (const SelectionRecord& of : layer.selection) to = put_value(to, of.score, is_full_);
        for (const SelectionRecord& of : layer.selection) to = put_value(to, of.key, is_full_);
      }
      break;
    case GroupId::kNorms: write_norms(record, false, to); break;
    case GroupId::kExpertNorms:
      for (const LayerRecord& layer : record.layers) {
        for (const float norm : layer.expert_norms) to = put_norm(to, norm, is_full_);
      }
      break;
    case GroupId::kLayerMarks:
      for (const LayerRecord& layer : record.layers) to = put(to, layer_mark(layer));
      break;
    case GroupId::kRouterProbs:
      for (const LayerRecord& layer : record.layers) {
        for (const float probability : layer.router_probs) to = put_value(to, probability, true);
      }
      break;
    case GroupId::kAttribution: attribution_.write(record, to); break;
    case GroupId::kFederation: write_federation(record, num_specialists_, to); break;
    case GroupId::kSampler: {
      const SampleDecision& sampled = record.prediction.sampled;
      if (sampled.candidates == 0) break;  // nothing was chosen: zeros
      std::memcpy(to, &sampled.candidates, count_bytes_);
      put_value(to + count_bytes_, sampled.probability, is_full_);
      break;
    }
    case GroupId::kConstraint: write_constraint(record.prediction.constraint, to); break;
    case GroupId::kHiddenStates:
      for (const HiddenStateRecord& state : record.hidden_states) {
        for (const float component : state.values) to = put_value(to, component, true);
      }
      break;
    default: break;
  }
}

/// Writes the norms of the layers that the embedding enters, or of the others.
void RowCodec::write_norms(const TokenRecord& record, bool of_embedding, uint8_t* to) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].reads_embedding != of_embedding) continue;
    const float norm = record.layers[i].residual_norm;
    to = put_norm(to, norm, is_full_);
  }
}

void RowCodec::read_norms(const uint8_t* from, bool of_embedding, TokenRecord& record) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].reads_embedding != of_embedding) continue;
    record.layers[i].residual_norm = take_norm(from, is_full_);
  }
}

void RowCodec::write_constraint(const ConstraintDecision& constraint, uint8_t* to) const {
  if (!constraint.is_given()) return;  // zeros
  const int32_t attempt = std::clamp(constraint.attempt, 0, kMaxAttempt);
  *to++ = static_cast<uint8_t>((constraint.is_limited ? 1 : 0) |
                               (constraint.first_ruled_out ? 2 : 0) | attempt << 2);
  std::memcpy(to, &constraint.allowed, count_bytes_);
  to = put_value(to + count_bytes_, constraint.removed, is_full_);
  if (is_full_) {
    put_value(to, constraint.mask_microseconds, true);
  } else {
    put(to, to_bfloat16(constraint.mask_microseconds));
  }
}

void RowCodec::read_constraint(const uint8_t* from, ConstraintDecision& constraint) const {
  const uint8_t flags = *from++;
  uint32_t allowed = 0;
  std::memcpy(&allowed, from, count_bytes_);
  from += count_bytes_;
  const uint32_t most = vocabulary_ > 0 ? vocabulary_ : uint32_t{1} << 31;
  if (allowed > most) bad_id("a number of allowed tokens", allowed, int64_t{most} + 1);
  constraint.allowed = static_cast<int32_t>(allowed);
  constraint.is_limited = (flags & 1) != 0;
  constraint.first_ruled_out = (flags & 2) != 0;
  constraint.attempt = flags >> 2;
  constraint.removed = take_value(from, is_full_);
  constraint.mask_microseconds = is_full_ ? take<float>(from) : from_bfloat16(take<uint16_t>(from));
}

void RowCodec::read_hidden_states(ByteSpan row, TokenRecord& record) const {
  record.hidden_states.clear();
  if (row.empty()) return;
  if (row.size() != hidden_bytes()) {
    throw_damaged("has hidden states of " + std::to_string(row.size()) + " bytes, expected " +
                  std::to_string(hidden_bytes()) + " or none");
  }
  const uint8_t* from = row.data();
  for (const int32_t layer : hidden_layers_) {
    HiddenStateRecord state{layer, std::vector<float>(static_cast<size_t>(hidden_size_))};
    for (float& component : state.values) component = take<float>(from);
    record.hidden_states.push_back(std::move(state));
  }
}

void RowCodec::read(GroupId group, ByteSpan row, TokenRecord& record) const {
  const uint8_t* from = row.data();
  const auto check_token = [this](uint32_t id) {
    if (vocabulary_ > 0 && id >= vocabulary_) bad_id("a token's id", id, vocabulary_);
    return static_cast<int32_t>(id);
  };
  switch (group) {
    case GroupId::kTokens: {
      uint32_t token = 0;
      std::memcpy(&token, from, id_bytes_);
      if (token >> 31 != 0) bad_id("a token's id", token, int64_t{1} << 31);
      record.token = check_token(token);
      read_norms(from + id_bytes_, true, record);
      break;
    }
    case GroupId::kPrediction: {
      const uint8_t flags = *from++;
      const uint8_t kind = flags & 3;
      const size_t count = flags >> 2;
      if (kind > kGenerated || count > kAuditTopTokens || (kind == 0 && flags != 0)) {
        throw_damaged("a prediction begins with " + std::to_string(flags));
      }
      record.has_prediction = kind != 0;
      PredictionRecord& prediction = record.prediction;
      prediction.alternatives.clear();
      if (kind == 0) break;
      prediction.generated = kind == kGenerated;
      BitReader ids(from);
      prediction.token = check_token(ids.get(id_bits_));
      prediction.alternatives.resize(count);
      for (AlternativeRecord& other : prediction.alternatives) {
        other.token = check_token(ids.get(id_bits_));
      }
      from += byte_count(static_cast<size_t>(id_bits_) * (1 + kAuditTopTokens));
      prediction.logprob = take_value(from, is_full_);
      prediction.entropy = take_value(from, is_full_);
      for (AlternativeRecord& other : prediction.alternatives) {
        other.logprob = take_value(from, is_full_);
      }
      if (!is_full_) break;
      from = row.data() + row.size() - 8;
      prediction.logits_digest = take<uint64_t>(from);
      break;
    }
    case GroupId::kRouting: {
      BitReader ids(from);
      size_t bits = 0;
      for (size_t i = 0; i < layers_.size(); ++i) {
        for (RouteRecord& route : record.layers[i].routes) {
          route.expert = static_cast<int32_t>(ids.get(expert_bits_[i]));
          bits += static_cast<size_t>(expert_bits_[i]);
          if (route.expert >= layers_[i].num_experts) {
            bad_id("an expert", route.expert, layers_[i].num_experts);
          }
        }
      }
      from += byte_count(bits);
      for (LayerRecord& layer : record.layers) {
        for (RouteRecord& route : layer.routes) route.weight = take_value(from, is_full_);
      }
      break;
    }
    case GroupId::kSelection:
      for (LayerRecord& layer : record.layers) {
        for (SelectionRecord& of : layer.selection) of.score = take_value(from, is_full_);
        for (SelectionRecord& of : layer.selection) of.key = take_value(from, is_full_);
      }
      break;
    case GroupId::kNorms: read_norms(from, false, record); break;
    case GroupId::kExpertNorms:
      for (LayerRecord& layer : record.layers) {
        for (float& norm : layer.expert_norms) norm = take_norm(from, is_full_);
      }
      break;
    case GroupId::kRouterProbs:
      for (size_t i = 0; i < layers_.size(); ++i) {
        record.layers[i].router_probs.resize(static_cast<size_t>(layers_[i].num_experts));
        for (float& probability : record.layers[i].router_probs) probability = take<float>(from);
      }
      break;
    case GroupId::kAttribution: attribution_.read(from, record); break;
    case GroupId::kFederation: read_federation(from, num_specialists_, record); break;
    case GroupId::kSampler: {
      uint32_t candidates = 0;
      std::memcpy(&candidates, from, count_bytes_);
      from += count_bytes_;
      const uint32_t most = vocabulary_ > 0 ? vocabulary_ : uint32_t{1} << 31;
      if (candidates > most) bad_id("a number of candidates", candidates, int64_t{most} + 1);
      record.prediction.sampled = {static_cast<int32_t>(candidates), take_value(from, is_full_)};
      break;
    }
    case GroupId::kConstraint: read_constraint(from, record.prediction.constraint); break;
    case GroupId::kHiddenStates: read_hidden_states(row, record); break;
    default: break;
  }
}

TokenRecord RowCodec::blank() const {
  TokenRecord record;
  record.token = -1;
  for (const AuditLayout::Layer& from : layers_) {
    LayerRecord layer;
    layer.layer = from.layer;
    layer.residual_norm = kNan;
    layer.routes.assign(static_cast<size_t>(from.top_k), {-1, kNan});
    layer.router = from.router;
    if (from.router_scores >= 0) layer.selection.assign(layer.routes.size(), {kNan, kNan});
    if (from.expert_norms >= 0) layer.expert_norms.assign(layer.routes.size(), kNan);
    record.layers.push_back(layer);
  }
  return record;
}

}  // namespace vitrine::audit
