// SPDX-License-Identifier: Apache-2.0
#include "stream_messages.h"

#include <algorithm>

#include "core/half_float.h"
#include "core/utf8.h"

namespace vitrine::audit {
namespace {

constexpr uint32_t kNoToken = 0xFFFFFFFF;

enum WireType : uint32_t { kVarint = 0, kLengthDelimited = 2 };

// ---- Fields; a zero, an empty string and an empty list are not written, as proto3 has it
// ---------

void put_tag(Bytes& out, uint32_t field, WireType type) {
  ByteWriter(out).varint(field << 3 | type);
}

void put_integer(Bytes& out, uint32_t field, uint64_t value) {
  if (value == 0) return;
  put_tag(out, field, kVarint);
  ByteWriter(out).varint(value);
}

void put_bytes(Bytes& out, uint32_t field, ByteSpan bytes) {
  if (bytes.empty()) return;
  put_tag(out, field, kLengthDelimited);
  ByteWriter(out).varint(bytes.size());
  ByteWriter(out).raw(bytes);
}

void put_string(Bytes& out, uint32_t field, std::string_view text) {
  put_bytes(out, field, bytes_of(text));
}

/// A message within a message, which may be empty.
void put_message(Bytes& out, uint32_t field, ByteSpan content) {
  put_tag(out, field, kLengthDelimited);
  ByteWriter(out).varint(content.size());
  ByteWriter(out).raw(content);
}

void put_map(Bytes& out, uint32_t field,
             const std::vector<std::pair<std::string, std::string>>& entries) {
  for (const auto& [key, value] : entries) {
    Bytes entry;
    put_string(entry, 1, key);
    put_string(entry, 2, value);
    put_message(out, field, entry);
  }
}

/// What a string field holds must be UTF-8; a path need not be. Each invalid byte becomes a U+FFFD.
std::string utf8(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character next = read_utf8(text, i);
    out += next.is_valid ? text.substr(i, next.size) : kReplacementText;
    i += next.is_valid ? next.size : 1;
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> utf8(
    std::vector<std::pair<std::string, std::string>> entries) {
  for (auto& [key, value] : entries) key = utf8(key), value = utf8(value);
  std::sort(entries.begin(), entries.end());  // a map has no order; this is the deterministic one
  return entries;
}

}  // namespace

StreamEncoder::StreamEncoder(const AuditLayout& layout, LogDetail detail)
    : layers_(layout.layers),
      terms_(layout.terms),
      num_terms_(layout.federation.num_terms),
      is_full_(detail == LogDetail::kFull) {
  for (AuditLayout::Layer& layer : layers_) {
    if (layer.expert_ids < 0) layer.top_k = 0;
    if (layer.expert_ids < 0 && layer.router_probs < 0) layer.num_experts = 0;
  }
}

ByteSpan StreamEncoder::finish(uint32_t content) {
  Bytes before;
  put_tag(before, content, kLengthDelimited);
  ByteWriter(before).varint(body_.size());
  message_.clear();
  ByteWriter writer(message_);
  writer.varint(before.size() + body_.size());
  writer.raw(before);
  writer.raw(body_);
  return message_;
}

ByteSpan StreamEncoder::head(const LogHeader& header, const std::string& trace_id,
                             uint64_t started_unix_ns) {
  body_.clear();
  put_string(body_, 1, engine_build());
  put_string(body_, 2, utf8(trace_id));
  put_integer(body_, 3, started_unix_ns);
  put_integer(body_, 4, is_full_ ? 2 : 1);
  put_string(body_, 5, utf8(header.model_path));
  put_string(body_, 6, utf8(header.architecture));
  put_string(body_, 7, utf8(header.device));
  put_string(body_, 8, utf8(header.kernels));
  put_string(body_, 9, utf8(header.isa));
  put_integer(body_, 10, static_cast<uint32_t>(header.threads));
  put_integer(body_, 11, static_cast<uint32_t>(header.num_layers));
  put_integer(body_, 12, static_cast<uint32_t>(header.vocab_size));
  put_integer(body_, 13, header.seed);
  put_map(body_, 14, utf8(header.sampler));
  put_map(body_, 15, utf8(header.hashes));
  for (const AuditLayout::Layer& from : layers_) {
    packed_.clear();
    put_integer(packed_, 1, static_cast<uint32_t>(from.layer));
    put_integer(packed_, 2, static_cast<uint32_t>(from.top_k));
    put_integer(packed_, 3, static_cast<uint32_t>(from.num_experts));
    put_integer(packed_, 4, static_cast<uint32_t>(from.router));
    put_integer(packed_, 5, from.router_scores >= 0 ? 1 : 0);
    put_message(body_, 16, packed_);
  }
  for (const AuditLayout::Term& from : terms_) {
    packed_.clear();
    put_integer(packed_, 1, static_cast<uint32_t>(from.kind));
    put_integer(packed_, 2, zigzag(from.layer));
    put_integer(packed_, 3, zigzag(from.slot));
    put_message(body_, 17, packed_);
  }
  put_map(body_, 18, utf8(header.engine));
  put_map(body_, 19, utf8(header.constraint));
  packed_.clear();
  for (const int32_t count : num_terms_) ByteWriter(packed_).varint(static_cast<uint64_t>(count));
  put_bytes(body_, 20, packed_);
  put_map(body_, 21, utf8(header.speculation));
  return finish(1);
}

/// values_, in the width of the level.
void StreamEncoder::put_values(uint32_t half_field, uint32_t float_field) {
  packed_.clear();
  ByteWriter writer(packed_);
  if (is_full_) {
    writer.raw({reinterpret_cast<const uint8_t*>(values_.data()), 4 * values_.size()});
  } else {
    for (const float value : values_) {
      const uint16_t half = to_half(value);
      writer.u8(static_cast<uint8_t>(half));
      writer.u8(static_cast<uint8_t>(half >> 8));
    }
  }
  put_bytes(body_, is_full_ ? float_field : half_field, packed_);
  values_.clear();
}

void StreamEncoder::put_tokens(std::span<const TokenRecord> records) {
  const auto put_packed = [&](uint32_t field, const auto& value_of) {
    packed_.clear();
    for (const TokenRecord& record : records) ByteWriter(packed_).varint(value_of(record));
    put_bytes(body_, field, packed_);
  };
  put_packed(1, [](const TokenRecord& record) { return record.sequence; });
  put_packed(2, [](const TokenRecord& record) { return static_cast<uint64_t>(record.position); });
  put_packed(3, [](const TokenRecord& record) { return static_cast<uint32_t>(record.token); });
  packed_.clear();
  for (const TokenRecord& record : records) {
    for (const LayerRecord& layer : record.layers) {
      for (const RouteRecord& route : layer.routes) {
        ByteWriter(packed_).varint(static_cast<uint32_t>(route.expert));
        values_.push_back(route.weight);
      }
    }
  }
  put_bytes(body_, 4, packed_);
  put_values(5, 6);
  packed_.clear();
  for (const TokenRecord& record : records) {
    for (const LayerRecord& layer : record.layers) {
      const float norm = layer.residual_norm;
      const uint32_t bits = is_full_ ? std::bit_cast<uint32_t>(norm) : to_bfloat16(norm);
      const size_t width = is_full_ ? 4 : 2;  // its low bytes come first
      ByteWriter(packed_).raw({reinterpret_cast<const uint8_t*>(&bits), width});
    }
  }
  put_bytes(body_, is_full_ ? 8 : 7, packed_);
  if (!is_full_) return;
  packed_.clear();
  for (const TokenRecord& record : records) {
    for (const LayerRecord& layer : record.layers) {
      ByteWriter(packed_).raw({reinterpret_cast<const uint8_t*>(layer.router_probs.data()),
                               4 * layer.router_probs.size()});
    }
  }
  put_bytes(body_, 9, packed_);
}

void StreamEncoder::put_predictions(std::span<const TokenRecord> records) {
  size_t count = 0, width = 0;
  bool has_scored = false, has_generated = false;
  for (const TokenRecord& record : records) {
    if (!record.has_prediction) continue;
    ++count;
    width = std::max(width, record.prediction.alternatives.size());
    has_scored |= !record.prediction.generated;
    has_generated |= record.prediction.generated;
  }
  if (count == 0) return;
  const auto put_packed = [&](uint32_t field, const auto& write) {
    packed_.clear();
    ByteWriter writer(packed_);
    for (size_t i = 0; i < records.size(); ++i) {
      if (records[i].has_prediction) write(writer, i, records[i].prediction);
    }
    put_bytes(body_, field, packed_);
  };
  using Prediction = const PredictionRecord&;
  if (count < records.size()) {
    put_packed(10, [](ByteWriter& writer, size_t i, Prediction) { writer.varint(i); });
  }
  put_packed(11, [](ByteWriter& writer, size_t, Prediction from) {
    writer.varint(static_cast<uint32_t>(from.token));
  });
  if (has_scored) {
    put_packed(
        12, [](ByteWriter& writer, size_t, Prediction from) { writer.u8(from.generated ? 0 : 1); });
  }
  const auto put_all = [&](uint32_t half_field, const auto& collect) {
    for (const TokenRecord& record : records) {
      if (record.has_prediction) collect(record.prediction);
    }
    put_values(half_field, half_field + 1);
  };
  put_all(13, [&](Prediction from) { values_.push_back(from.logprob); });
  put_all(15, [&](Prediction from) { values_.push_back(from.entropy); });
  put_packed(17, [&](ByteWriter& writer, size_t, Prediction from) {
    for (size_t rank = 0; rank < width; ++rank) {
      const bool is_there = rank < from.alternatives.size();
      writer.varint(is_there ? static_cast<uint32_t>(from.alternatives[rank].token) : kNoToken);
    }
  });
  put_all(18, [&](Prediction from) {
    for (size_t rank = 0; rank < width; ++rank) {
      const bool is_there = rank < from.alternatives.size();
      values_.push_back(is_there ? from.alternatives[rank].logprob : 0.0F);
    }
  });
  if (!terms_.empty()) put_attribution(records);
  if (!has_generated) return;
  put_packed(25, [](ByteWriter& writer, size_t, Prediction from) {
    writer.varint(static_cast<uint32_t>(from.sampled.candidates));
  });
  put_all(26, [&](Prediction from) { values_.push_back(from.sampled.probability); });
  const bool has_constraint = std::ranges::any_of(records, [](const TokenRecord& record) {
    return record.has_prediction && record.prediction.constraint.is_given();
  });
  if (!has_constraint) return;
  put_packed(28, [](ByteWriter& writer, size_t, Prediction from) {
    writer.varint(static_cast<uint32_t>(from.constraint.allowed));
  });
  put_all(29, [&](Prediction from) { values_.push_back(from.constraint.removed); });
  put_packed(31, [](ByteWriter& writer, size_t, Prediction from) {
    const ConstraintDecision& constraint = from.constraint;
    writer.varint(static_cast<uint32_t>((constraint.is_limited ? 1 : 0) |
                                        (constraint.first_ruled_out ? 2 : 0) |
                                        constraint.attempt << 2));
  });
}

void StreamEncoder::put_attribution(std::span<const TokenRecord> records) {
  Bytes ids, logits, roundings;
  const auto put_float = [](Bytes& to, float value) {
    ByteWriter(to).u32(std::bit_cast<uint32_t>(value));
  };
  for (const TokenRecord& record : records) {
    if (!record.has_prediction) continue;
    const PredictionRecord& prediction = record.prediction;
    const auto put_sum = [&](const AttributionRecord& from) {
      put_float(logits, from.logit);
      put_float(logits, from.runner_up_logit);
      put_float(roundings, from.rounding);
      put_float(roundings, from.runner_up_rounding);
      for (const TermRecord& term : from.terms) values_.push_back(term.value);
      for (const TermRecord& term : from.terms) values_.push_back(term.runner_up);
    };
    const std::vector<AttributionRecord>& all = prediction.federation.attributions;
    const int32_t runner_up = all.empty() ? prediction.attribution.runner_up : all[0].runner_up;
    ByteWriter(ids).varint(static_cast<uint32_t>(runner_up));
    if (all.empty()) put_sum(prediction.attribution);
    for (const AttributionRecord& from : all) put_sum(from);
  }
  put_bytes(body_, 20, ids);
  put_bytes(body_, 21, logits);
  put_bytes(body_, 22, roundings);
  put_values(23, 24);
}

void StreamEncoder::put_selection(std::span<const TokenRecord> records) {
  const auto put_all = [&](uint32_t half_field, float SelectionRecord::*value) {
    for (const TokenRecord& record : records) {
      for (const LayerRecord& layer : record.layers) {
        for (const SelectionRecord& of : layer.selection) values_.push_back(of.*value);
      }
    }
    put_values(half_field, half_field + 1);
  };
  put_all(32, &SelectionRecord::score);
  put_all(34, &SelectionRecord::key);
}

ByteSpan StreamEncoder::step(std::span<const TokenRecord> records) {
  body_.clear();
  put_tokens(records);
  put_predictions(records);
  put_selection(records);
  return finish(2);
}

ByteSpan StreamEncoder::event(const AuditEvent& event) {
  body_.clear();
  put_integer(body_, 1, static_cast<uint32_t>(event.kind));
  put_integer(body_, 2, event.sequence);
  put_integer(body_, 3, event.source);
  put_integer(body_, 4, static_cast<uint64_t>(event.length));
  put_integer(body_, 5, static_cast<uint64_t>(event.before));
  return finish(3);
}

ByteSpan StreamEncoder::failure(const ConstraintFailure& failure) {
  const ConstraintState& state = failure.state;
  body_.clear();
  put_integer(body_, 1, static_cast<uint32_t>(failure.kind));
  put_integer(body_, 2, static_cast<uint32_t>(failure.attempt));
  put_integer(body_, 3, failure.sequence);
  put_integer(body_, 4, static_cast<uint64_t>(failure.position));
  if (failure.token >= 0) put_integer(body_, 5, static_cast<uint32_t>(failure.token));
  put_integer(body_, 6, static_cast<uint32_t>(failure.allowed));
  put_integer(body_, 7, static_cast<uint32_t>(failure.in_time));
  put_string(body_, 8, utf8(failure.message));
  put_integer(body_, 9, static_cast<uint64_t>(state.num_bytes));
  for (const std::string& reading : state.readings) put_string(body_, 10, utf8(reading));
  put_integer(body_, 11, static_cast<uint64_t>(state.num_readings));
  put_string(body_, 12, utf8(state.next_bytes));
  put_string(body_, 13, utf8(state.completion));
  return finish(6);
}

ByteSpan StreamEncoder::drafts(const DraftedPass& drafts) {
  const auto put_numbers = [this](uint32_t field, const std::vector<int32_t>& values, int add) {
    packed_.clear();
    for (const int32_t value : values) {
      ByteWriter(packed_).varint(static_cast<uint64_t>(int64_t{value} + add));
    }
    put_bytes(body_, field, packed_);
  };
  body_.clear();
  put_integer(body_, 1, drafts.sequence);
  put_integer(body_, 2, static_cast<uint64_t>(drafts.position));
  put_string(body_, 3, utf8(drafts.drafter));
  put_numbers(4, drafts.tokens, 0);
  put_numbers(5, drafts.parents, 1);
  put_numbers(6, drafts.accepted, 0);
  put_integer(body_, 7, static_cast<uint64_t>(drafts.discarded));
  return finish(7);
}

ByteSpan StreamEncoder::lost(uint64_t sequence, int64_t first, int64_t count) {
  body_.clear();
  put_integer(body_, 1, sequence);
  put_integer(body_, 2, static_cast<uint64_t>(first));
  put_integer(body_, 3, static_cast<uint64_t>(count));
  return finish(4);
}

ByteSpan StreamEncoder::end(const StreamCounts& counts, const std::string& stop_reason,
                            uint64_t closed_unix_ns) {
  body_.clear();
  put_string(body_, 1, utf8(stop_reason));
  put_integer(body_, 2, closed_unix_ns);
  put_integer(body_, 3, counts.passes);
  put_integer(body_, 4, counts.tokens);
  put_integer(body_, 5, counts.generated);
  put_integer(body_, 6, counts.scored);
  put_integer(body_, 7, counts.events);
  put_integer(body_, 8, counts.lost);
  return finish(5);
}

}  // namespace vitrine::audit
