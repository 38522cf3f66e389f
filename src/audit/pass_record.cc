// SPDX-License-Identifier: Apache-2.0
#include "audit/pass_record.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace vitrine::audit {

AuditPassHeader record_header(const AuditLayout& layout, uint64_t pass, size_t tokens,
                              size_t rows) {
  const size_t bytes = sizeof(AuditPassHeader) + tokens * sizeof(AuditToken) +
                       layout.pass_words(rows, tokens) * sizeof(int32_t);
  return {pass, static_cast<uint32_t>(tokens), static_cast<uint32_t>(rows), (bytes + 7) / 8 * 8, 0};
}

std::byte* begin_record(AuditSink& sink, const AuditPassHeader& header) {
  std::byte* record = sink.reserve(header.num_bytes);
  if (record == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, "the audit sink's reserve() returned null for " +
                                                 std::to_string(header.num_bytes) +
                                                 " bytes; expected memory, or an exception");
  }
  std::memset(record + header.num_bytes - 4, 0, 4);  // the padding, where there is any
  std::memcpy(record, &header, sizeof(header));
  return record;
}

std::byte* write_kept(AuditSink& sink, const AuditLayout& layout, const KeptTokens& kept,
                      const std::byte* record) {
  AuditPassHeader header;
  std::memcpy(&header, record, sizeof(header));
  const size_t rows = header.num_rows, tokens = header.num_tokens;
  const size_t row_bytes = static_cast<size_t>(layout.row_words) * sizeof(int32_t);
  const size_t token_bytes = static_cast<size_t>(layout.token_words) * sizeof(int32_t);
  const std::byte* const all_tokens = record + sizeof(header);
  const std::byte* const ids = all_tokens + tokens * sizeof(AuditToken);
  const std::byte* const row_words = ids + rows * sizeof(int32_t);
  const std::byte* const token_words = row_words + rows * row_bytes;
  const auto has_row = [&](size_t row) {
    return kept.tokens[static_cast<size_t>(kept.row_tokens[row])] != 0;
  };
  const auto num_tokens = static_cast<size_t>(std::ranges::count(kept.tokens, uint8_t{1}));
  size_t num_rows = 0;
  for (size_t row = 0; row < rows; ++row) num_rows += has_row(row) ? 1 : 0;
  std::byte* const out =
      begin_record(sink, record_header(layout, header.pass, num_tokens, num_rows));
  std::byte* next = out + sizeof(header);
  const auto copy = [&next](const std::byte* part, size_t index, size_t bytes) {
    std::memcpy(next, part + index * bytes, bytes);
    next += bytes;
  };
  size_t row = 0;
  int32_t rows_before = 0;  // that stay
  for (size_t i = 0; i < tokens; ++i) {
    if (kept.tokens[i] == 0) continue;
    AuditToken token;
    std::memcpy(&token, all_tokens + i * sizeof(token), sizeof(token));
    for (; row < rows && static_cast<size_t>(kept.row_tokens[row]) < i; ++row) {
      rows_before += has_row(row) ? 1 : 0;
    }
    if (token.row >= 0) token.row = rows_before;
    copy(reinterpret_cast<const std::byte*>(&token), 0, sizeof(token));
  }
  for (size_t i = 0; i < rows; ++i) {
    if (has_row(i)) copy(ids, i, sizeof(int32_t));
  }
  for (size_t i = 0; i < rows; ++i) {
    if (has_row(i)) copy(row_words, i, row_bytes);
  }
  for (size_t i = 0; i < tokens; ++i) {
    if (kept.tokens[i] != 0) copy(token_words, i, token_bytes);
  }
  return out;
}

}  // namespace vitrine::audit
