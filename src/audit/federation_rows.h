// SPDX-License-Identifier: Apache-2.0
// The `federation` column of a `.vtr` and its part of the head (docs/vtr-format.md).
#pragma once

#include "bytes.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit {

/// How many specialists a log may name.
inline constexpr size_t kMaxSpecialists = 256;

/// Bytes of a row; 0 where a single model made the log.
size_t federation_bytes(const AuditLayout::Federation& federation);
/// Zeros where the record has no shares.
void write_federation(const TokenRecord& record, size_t num_specialists, uint8_t* to);
/// Throws kBadFile for a flag that is none.
void read_federation(const uint8_t* from, size_t num_specialists, TokenRecord& record);

/// At the head's end, and only where there is a federation.
void put_federation(ByteWriter& out, const AuditLayout::Federation& federation);
void get_federation(ByteReader& in, AuditLayout::Federation& federation);

}  // namespace vitrine::audit
