// SPDX-License-Identifier: Apache-2.0
// The `attribution` column of a `.vtr` (docs/vtr-format.md).
#pragma once

#include "bytes.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit {

/// The rows of a log: one model's logit as a sum, or that of each specialist. Thread-safe.
class AttributionRows {
 public:
  explicit AttributionRows(const VtrHeader& header);
  /// Returns the bytes of a row; 0 where nothing is attributed.
  size_t row_bytes() const;
  /// Writes the record's row; zeros where the record has no such terms.
  void write(const TokenRecord& record, uint8_t* to) const;
  /// Reads a row into the record, whose routing has been read before. Throws kBadFile for a flag or
  /// a runner-up that is none.
  void read(const uint8_t* from, TokenRecord& record) const;

 private:
  uint8_t* write_sum(const AttributionRecord& sum, uint8_t* to) const;
  void read_sum(const uint8_t*& from, std::span<const AuditLayout::Term> terms,
                const TokenRecord& record, AttributionRecord& sum) const;

  bool is_full_;
  std::vector<AuditLayout::Term> terms_;
  std::vector<int32_t> num_terms_;  // [specialists]; empty: one model's
};

}  // namespace vitrine::audit
