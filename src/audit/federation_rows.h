// SPDX-License-Identifier: Apache-2.0
// The `federation` column of a `.vtr` and its part of the head (docs/vtr-format.md).
#pragma once

#include "bytes.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit {

/// How many specialists a log may name.
inline constexpr size_t kMaxSpecialists = 256;

/// Returns the bytes of a row; 0 where a single model made the log.
size_t federation_bytes(const AuditLayout::Federation& federation);
/// Writes the record's row; zeros where the record has no shares.
void write_federation(const TokenRecord& record, size_t num_specialists, uint8_t* to);
/// Reads a row into the record. Throws kBadFile for a flag that is none.
void read_federation(const uint8_t* from, size_t num_specialists, TokenRecord& record);

/// Put the head's part to its end, and get it from there; a head has it only where there is a
/// federation.
void put_federation(ByteWriter& out, const AuditLayout::Federation& federation);
void get_federation(ByteReader& in, AuditLayout::Federation& federation);

}  // namespace vitrine::audit
