// SPDX-License-Identifier: Apache-2.0
// The messages of docs/audit_stream.proto, encoded by hand: the fields are few, and a library would
// be one more thing that a host must have in the right version.
#pragma once

#include "bytes.h"
#include "vitrine/audit_stream.h"

namespace vitrine::audit {

/// Encodes into a buffer that is used again for each message.
class StreamEncoder {
 public:
  /// Takes the layers and terms of all later steps.
  StreamEncoder(const AuditLayout& layout, LogDetail detail);

  /// Return one whole message each, with its length before it, valid until the next call.
  ByteSpan head(const LogHeader& header, const std::string& trace_id, uint64_t started_unix_ns);
  ByteSpan step(std::span<const TokenRecord> records);
  ByteSpan event(const AuditEvent& event);
  ByteSpan failure(const ConstraintFailure& failure);
  ByteSpan drafts(const DraftedPass& drafts);
  ByteSpan lost(uint64_t sequence, int64_t first, int64_t count);
  ByteSpan end(const StreamCounts& counts, const std::string& stop_reason, uint64_t closed_unix_ns);

 private:
  ByteSpan finish(uint32_t content);
  void put_tokens(std::span<const TokenRecord> records);
  void put_predictions(std::span<const TokenRecord> records);
  void put_attribution(std::span<const TokenRecord> records);
  void put_selection(std::span<const TokenRecord> records);
  void put_values(uint32_t half_field, uint32_t float_field);

  std::vector<AuditLayout::Layer> layers_;
  std::vector<AuditLayout::Term> terms_;
  std::vector<int32_t> num_terms_;  // of each specialist
  bool is_full_;
  Bytes body_;     // the fields of a message's content
  Bytes message_;  // the whole message
  Bytes packed_;   // a packed field
  std::vector<float> values_;
};

}  // namespace vitrine::audit
