// SPDX-License-Identifier: Apache-2.0
// A ledger's lines for other programs.
#include <dlfcn.h>

#include "checkpoint/file_io.h"
#include "core/same_file.h"
#include "core/shared_library.h"
#include "parquet_ledger.h"

namespace vitrine {
namespace {

/// RFC 4180: in quotes where it has to be.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

template <typename Names>
void add_names(const Names& names, std::string& line) {
  for (const char* name : names) line += (line.empty() ? "" : ",") + std::string(name);
}

ledger::WriteParquetLedger find_writer() {
  std::string reason;
  auto* write = reinterpret_cast<ledger::WriteParquetLedger>(find_library_symbol(
      "libvitrine_parquet.so", ledger::kParquetLedgerSymbol, RTLD_NOW | RTLD_LOCAL, reason));
  if (write == nullptr) {
    throw Error(ErrorKind::kUnavailable,
                "Parquet needs libvitrine_parquet.so, which could not be loaded (" + reason +
                    "); build it with scripts/build all, or export CSV");
  }
  return write;
}

}  // namespace

std::string csv_of(const Ledger& ledger) {
  std::string text;
  add_names(ledger::kTextColumns, text);
  add_names(ledger::kNumberColumns, text);
  text += "\r\n";
  ledger.for_each([&](const Ledger::Entry& entry) {
    std::string line;
    for (const std::string& field : ledger::texts_of(entry)) line += csv_field(field) + ",";
    for (const int64_t number : ledger::numbers_of(entry)) line += std::to_string(number) + ",";
    line.back() = '\r';
    text += line + "\n";
  });
  return text;
}

void export_parquet(const Ledger& ledger, const std::string& path) {
  refuse_to_replace(ledger.path(), path);
  const ledger::WriteParquetLedger write = find_writer();
  checkpoint::ReplacementFile file(path);
  write(ledger, file.temporary_path());
  file.commit();
}

}  // namespace vitrine
