// SPDX-License-Identifier: Apache-2.0
#include "audit/pass_record.h"

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

}  // namespace vitrine::audit
