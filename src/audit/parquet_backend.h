// SPDX-License-Identifier: Apache-2.0
// What libvitrine_parquet.so gives to the audit room: a writer of one run's tables.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/audit_log.h"

namespace vitrine::audit {

/// A token as the tables show it.
struct TokenText {
  std::string text;   // UTF-8; bytes that are none became U+FFFD
  std::string bytes;  // what the token adds to the output
};

/// What the tables are made of; `text_of` may be empty.
struct ParquetTables {
  std::string folder, final_folder;  // messages name the second
  bool has_attribution = false;
  std::vector<std::string> specialists;  // of a federation; empty: a single model
  std::vector<std::pair<std::string, std::string>> metadata;  // for every file's footer
  std::function<TokenText(int32_t)> text_of;
  ParquetKeys keys;
};

/// Throws vitrine::Error (kIo, kOutOfMemory).
class ParquetBackend {
 public:
  virtual ~ParquetBackend() = default;
  virtual void add(const TokenRecord& record) = 0;
  /// Writes what is left and the footers; once, at the end.
  virtual void finish() = 0;
};

/// The symbol that the library exports under the name kParquetBackendSymbol.
using MakeParquetBackend = ParquetBackend* (*)(const ParquetTables& tables);
inline constexpr const char* kParquetBackendSymbol = "vitrine_parquet_backend_2";

}  // namespace vitrine::audit
