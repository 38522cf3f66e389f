// SPDX-License-Identifier: Apache-2.0
// What libvitrine_parquet.so gives to the ledger room: one table in one file.
#pragma once

#include <string>
#include <vector>

#include "vitrine/ledger.h"

namespace vitrine::ledger {

/// Columns of an exported line: texts, then whole numbers; both exports have them in this order.
inline constexpr const char* kTextColumns[] = {"log_id",       "run",     "model", "proof",
                                               "sealed_by",    "seal",    "kind",  "currency",
                                               "rates_sha256", "account", "memo"};
inline constexpr const char* kNumberColumns[] = {"closed_unix_ns", "tokens_in", "tokens_out",
                                                 "log_bytes",      "device_us", "micro"};

inline std::vector<std::string> texts_of(const Ledger::Entry& entry) {
  return {entry.log_id,       entry.run,          entry.model,    entry.proof,
          entry.sealed_by,    entry.seal,         entry.kind,     entry.currency,
          entry.rates_sha256, entry.line.account, entry.line.memo};
}
inline std::vector<int64_t> numbers_of(const Ledger::Entry& entry) {
  return {static_cast<int64_t>(entry.closed_unix_ns),
          entry.tokens_in,
          entry.tokens_out,
          entry.log_bytes,
          entry.device_us,
          entry.line.micro};
}

/// The symbol that the library exports under the name kParquetLedgerSymbol: writes `path`. Throws
/// vitrine::Error (kIo, kOutOfMemory).
using WriteParquetLedger = void (*)(const Ledger& ledger, const std::string& path);
inline constexpr const char* kParquetLedgerSymbol = "vitrine_parquet_ledger_1";

}  // namespace vitrine::ledger
