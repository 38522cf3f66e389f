// SPDX-License-Identifier: Apache-2.0
// How a pass's record begins, for whoever writes one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "vitrine/audit_sink.h"

namespace vitrine::audit {

/// Says how much a pass's record holds.
AuditPassHeader record_header(const AuditLayout& layout, uint64_t pass, size_t tokens, size_t rows);
/// A sink's memory for a record of that header, which is written, and zeros behind the record's
/// words where there are any. Throws what reserve() throws, and kInvalidArgument where it gives
/// none.
std::byte* begin_record(AuditSink& sink, const AuditPassHeader& header);

/// Which of a pass's tokens stay in its record.
struct KeptTokens {
  std::span<const uint8_t> tokens;      // [tokens] 1: it stays
  std::span<const int32_t> row_tokens;  // [rows] ascending: whose output a row is
};
/// Writes a whole record without the others and their rows to a sink's memory, which it returns.
/// Throws as begin_record().
std::byte* write_kept(AuditSink& sink, const AuditLayout& layout, const KeptTokens& kept,
                      const std::byte* record);

}  // namespace vitrine::audit
