// SPDX-License-Identifier: Apache-2.0
// How a pass's record begins, for whoever writes one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "vitrine/audit_sink.h"

namespace vitrine::audit {

/// Returns the header of a pass's record, which says how much it holds.
AuditPassHeader record_header(const AuditLayout& layout, uint64_t pass, size_t tokens, size_t rows);
/// Reserves a sink's memory for a record of that header, writes the header, and zeros into the
/// bytes behind the record's words, where there are any. Returns the memory. Throws what reserve()
/// throws, and kInvalidArgument where it gives none.
std::byte* begin_record(AuditSink& sink, const AuditPassHeader& header);

/// Which of a pass's tokens stay in its record.
struct KeptTokens {
  std::span<const uint8_t> tokens;      // [tokens] 1: the token stays
  std::span<const int32_t> row_tokens;  // [rows] ascending: the token whose output a row is
};
/// Copies `record` to a sink's memory without the tokens that go and their rows, and returns the
/// memory. Throws as begin_record().
std::byte* write_kept(AuditSink& sink, const AuditLayout& layout, const KeptTokens& kept,
                      const std::byte* record);

}  // namespace vitrine::audit
