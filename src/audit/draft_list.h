// SPDX-License-Identifier: Apache-2.0
// What was guessed for passes and what came of it, as a page's column and as JSON.
#pragma once

#include <functional>

#include "bytes.h"
#include "json_buffer.h"
#include "vitrine/audit_sink.h"

namespace vitrine::audit {

inline constexpr size_t kMaxPageDrafts = 1024;  // passes

/// Returns true for a pass that a log takes: it has 1 to 255 guesses, each behind an earlier one;
/// those that were right lie on one path; and at least as many positions were taken back as guesses
/// were wrong.
bool is_plain_draft(const DraftedPass& drafts);

/// Appends the column of these passes to `out`; each has to be is_plain_draft(). The first 64 bytes
/// of a drafter's name are kept.
void encode_drafts(std::span<const DraftedPass> passes, Bytes& out);
std::vector<DraftedPass> parse_drafts(ByteSpan bytes);

/// Returns true where a guess of one of the passes stands at a row that is hidden.
bool touches(std::span<const DraftedPass> passes,
             const std::function<bool(uint64_t, int64_t)>& hides);

/// Appends `"drafts":[…],` and a line feed; nothing where there are none.
void append_drafts(JsonBuffer& out, const std::vector<DraftedPass>& passes);

}  // namespace vitrine::audit
