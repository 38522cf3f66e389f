// SPDX-License-Identifier: Apache-2.0
// What was guessed for passes and what came of it, as a page's column and as JSON.
#pragma once

#include <functional>

#include "bytes.h"
#include "json_buffer.h"
#include "vitrine/audit_sink.h"

namespace vitrine::audit {

inline constexpr size_t kMaxPageDrafts = 1024;  // passes

/// Whether it is one that a log takes: 1 to 255 guesses, each behind one before it; those that were
/// right on one path; and as many positions taken back as were wrong, at least.
bool is_plain_draft(const DraftedPass& drafts);

/// Each is_plain_draft(). Of a drafter's name 64 bytes are kept.
void encode_drafts(std::span<const DraftedPass> passes, Bytes& out);
std::vector<DraftedPass> parse_drafts(ByteSpan bytes);

/// Whether a guess of one of them stands at a row that is hidden.
bool touches(std::span<const DraftedPass> passes,
             const std::function<bool(uint64_t, int64_t)>& hides);

/// `"drafts":[…],` and a line feed; nothing where there is none.
void append_drafts(JsonBuffer& out, const std::vector<DraftedPass>& passes);

}  // namespace vitrine::audit
