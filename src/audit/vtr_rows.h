// SPDX-License-Identifier: Apache-2.0
// Turns a record into a row of each column group, and back.
#pragma once

#include "attribution_rows.h"
#include "vtr_format.h"

namespace vitrine::audit {

/// The widths of a log's rows, from its head alone. Thread-safe once made.
class RowCodec {
 public:
  /// Throws kBadFile where the layers are impossible.
  explicit RowCodec(const VtrHeader& header);

  /// Returns the groups that a log with this head has, by id.
  const std::vector<GroupSpec>& groups() const { return groups_; }
  /// Returns the bytes of all fixed rows of a record.
  size_t record_bytes() const { return record_bytes_; }
  /// Returns the bytes of a row of hidden states that is not empty; 0: the log has no hidden
  /// states.
  size_t hidden_bytes() const {
    return sizeof(float) * hidden_layers_.size() * static_cast<size_t>(hidden_size_);
  }

  /// Appends `record` to the row groups of `columns` ([groups()]). Throws kBadFile where an id does
  /// not fit; then nothing has been appended.
  void append(const TokenRecord& record, std::vector<Bytes>& columns) const;

  /// Reads row `row` of group `group` into `record`. Digests are no part of a record.
  void read(GroupId group, ByteSpan row, TokenRecord& record) const;
  /// Appends `record` as a row of one group: what append() would have written.
  void write(GroupId group, const TokenRecord& record, Bytes& out) const;
  /// Returns a record with the layers of the log and values that are NaN, for what has been left
  /// out.
  TokenRecord blank() const;

 private:
  int value_bytes() const { return is_full_ ? 4 : 2; }
  void check_ids(const TokenRecord& record) const;

  bool is_full_ = false;
  uint32_t vocabulary_ = 0;  // 0: any id
  int id_bits_ = 31;
  void write_norms(const TokenRecord& record, bool of_embedding, uint8_t* to) const;
  void read_norms(const uint8_t* from, bool of_embedding, TokenRecord& record) const;
  void write_constraint(const ConstraintDecision& constraint, uint8_t* to) const;
  void read_constraint(const uint8_t* from, ConstraintDecision& constraint) const;
  void read_hidden_states(ByteSpan row, TokenRecord& record) const;

  std::vector<AuditLayout::Layer> layers_;
  std::vector<int32_t> hidden_layers_;
  int32_t hidden_size_ = 0;
  AttributionRows attribution_;
  size_t num_specialists_ = 0;
  std::vector<int> expert_bits_;
  std::vector<GroupSpec> groups_;
  size_t record_bytes_ = 0;
  size_t id_bytes_ = 0, prediction_bytes_ = 0, routing_bytes_ = 0, count_bytes_ = 0;
};

/// Returns SipHash-2-4 with the key 0 of a record's 32-bit words, unrounded (docs/vtr-format.md has
/// the order). Equal values give an equal digest at every level.
uint64_t record_digest(const TokenRecord& record, std::vector<uint32_t>& scratch);

/// Returns the two bytes of a layer's mark, of its unrounded words (docs/vtr-format.md).
LayerMark layer_mark(const LayerRecord& layer);

}  // namespace vitrine::audit
