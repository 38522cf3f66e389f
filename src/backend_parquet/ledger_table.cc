// SPDX-License-Identifier: Apache-2.0
// A ledger's lines as one Parquet file.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/writer.h>

#include <iterator>

#include "ledger/parquet_ledger.h"

namespace vitrine::ledger {
namespace {

void check(const arrow::Status& status, const std::string& path) {
  if (status.ok()) return;
  const std::string reason = status.message();
  throw Error(status.IsOutOfMemory() ? ErrorKind::kOutOfMemory : ErrorKind::kIo,
              path + ": cannot be written: " + reason.substr(0, reason.find('\n')));
}

void write(const Ledger& ledger, const std::string& path) {
  constexpr size_t kTexts = std::size(kTextColumns), kNumbers = std::size(kNumberColumns);
  arrow::StringBuilder texts[kTexts];
  arrow::Int64Builder numbers[kNumbers];
  ledger.for_each([&](const Ledger::Entry& entry) {
    const std::vector<std::string> text = texts_of(entry);
    const std::vector<int64_t> number = numbers_of(entry);
    for (size_t i = 0; i < kTexts; ++i) check(texts[i].Append(text[i]), path);
    for (size_t i = 0; i < kNumbers; ++i) check(numbers[i].Append(number[i]), path);
  });
  arrow::FieldVector fields;
  arrow::ArrayVector columns;
  const auto add = [&](const char* name, const std::shared_ptr<arrow::DataType>& type,
                       arrow::ArrayBuilder& builder) {
    fields.push_back(arrow::field(name, type, /*nullable=*/false));
    columns.emplace_back();
    check(builder.Finish(&columns.back()), path);
  };
  for (size_t i = 0; i < kTexts; ++i) add(kTextColumns[i], arrow::utf8(), texts[i]);
  for (size_t i = 0; i < kNumbers; ++i) add(kNumberColumns[i], arrow::int64(), numbers[i]);
  const auto table = arrow::Table::Make(
      arrow::schema(fields, arrow::key_value_metadata({"vitrine.schema"}, {"vitrine.ledger/1"})),
      columns);
  auto file = arrow::io::FileOutputStream::Open(path);
  check(file.status(), path);
  check(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), *file,
                                   /*chunk_size=*/65536),
        path);
  check((*file)->Close(), path);
}

}  // namespace
}  // namespace vitrine::ledger

extern "C" __attribute__((visibility("default"))) void vitrine_parquet_ledger_1(
    const vitrine::Ledger& ledger, const std::string& path) {
  vitrine::ledger::write(ledger, path);
}
