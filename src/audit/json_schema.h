// SPDX-License-Identifier: Apache-2.0
// The schema "vitrine.audit/1" (docs/audit-log.md), piece by piece in the order of the file.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "json_buffer.h"
#include "start_time.h"
#include "vitrine/audit.h"

namespace vitrine::audit {

/// What a log says of tokens' texts; it is made once for each token.
class PieceCache {
 public:
  explicit PieceCache(std::function<TokenPiece(int32_t)> token_text)
      : token_text_(std::move(token_text)) {}
  bool empty() const { return !token_text_; }
  /// Returns the keys `text`, `bytes` and `piece`, as far as they are known, with their values and
  /// a comma before each; valid until the next call.
  std::string_view fields(int32_t token);

 private:
  std::function<TokenPiece(int32_t)> token_text_;
  std::vector<std::string> pieces_;  // by id; an empty string is not known yet
  JsonBuffer scratch_;
};

struct LogCounts {
  uint64_t passes = 0;
  uint64_t tokens = 0;     ///< records
  uint64_t generated = 0;  ///< records whose prediction chose the next token
  uint64_t scored = 0;     ///< records whose prediction only scores the prompt
  uint64_t lost = 0;       ///< positions without a record; written where there are any
};

/// A sequence whose first positions are another's.
struct LogFork {
  uint64_t record = 0;  ///< how many records stand before it
  uint64_t sequence = 0, source = 0;
  int64_t length = 0;  ///< positions that the two share
};

/// Appends the log's head. `is_rounded`: the values come from a `.vtr` log of level standard.
void append_head(JsonBuffer& out, const LogHeader& header, const LogStart& start,
                 const AuditLayout& layout, const std::string& trace_id, bool is_rounded);
/// Appends a record on a line of its own. `is_first` leaves out the comma before it; `is_redacted`:
/// some of the record was left out of the log, or is encrypted.
void append_record(JsonBuffer& out, const TokenRecord& record, PieceCache& pieces, bool is_first,
                   bool is_redacted);
void append_closing(JsonBuffer& out, std::string_view stop_reason, const LogCounts& counts,
                    const std::vector<ConstraintFailure>& failures,
                    const std::vector<DraftedPass>& drafts, const std::vector<LogFork>& forks);

}  // namespace vitrine::audit
