// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <mutex>

#include "core/shared_library.h"
#include "core/utf8.h"
#include "parquet_backend.h"
#include "vitrine/audit_log.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

audit::MakeParquetBackend find_backend() {
  static std::once_flag once;
  static audit::MakeParquetBackend make = nullptr;
  static std::string reason;
  std::call_once(once, [] {
    make = reinterpret_cast<audit::MakeParquetBackend>(find_library_symbol(
        "libvitrine_parquet.so", audit::kParquetBackendSymbol, RTLD_NOW | RTLD_LOCAL, reason));
  });
  if (make == nullptr) {
    throw Error(ErrorKind::kUnavailable,
                "Parquet needs libvitrine_parquet.so, which could not be loaded (" + reason +
                    "); build it with scripts/build all, or export JSON");
  }
  return make;
}

/// Bytes that are not UTF-8 become U+FFFD, as in Python's errors="replace".
std::string as_utf8(std::string_view bytes) {
  std::string text;
  append_lossy(bytes, true, text);
  return text;
}

void check_keys(const ParquetKeys& keys) {
  for (const std::string* key : {&keys.footer, &keys.text}) {
    if (key->empty() || key->size() == 16 || key->size() == 24 || key->size() == 32) continue;
    throw Error(ErrorKind::kInvalidArgument, "Parquet: a key of " + std::to_string(key->size()) +
                                                 " bytes; expected 16, 24 or 32 (AES)");
  }
  if (keys.footer.empty() && !keys.text.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "Parquet: a key for the text without one for the footers; expected both");
  }
}

}  // namespace

struct ParquetExport::Impl {
  fs::path target, temporary;
  std::unique_ptr<audit::ParquetBackend> backend;

  [[noreturn]] void fail(const std::string& what, const std::error_code& error) const {
    throw Error(ErrorKind::kIo, target.string() + ": " + what + ": " + error.message());
  }

  void make_folder(const std::string& folder) {
    target = fs::path(folder).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    std::error_code error;
    const bool is_free = !fs::exists(fs::symlink_status(target, error)) ||
                         (fs::is_directory(target, error) && fs::is_empty(target, error));
    if (!is_free) {
      throw Error(ErrorKind::kInvalidArgument,
                  target.string() +
                      ": exists and isn't an empty folder; expected a new or empty "
                      "one");
    }
    std::string name = (target.parent_path() / ("." + target.filename().string() + ".tmp-XXXXXX"));
    if (::mkdtemp(name.data()) == nullptr) {
      fail("can't be made", std::error_code(errno, std::generic_category()));
    }
    temporary = name;
    fs::permissions(temporary, fs::perms(0755), error);
  }

  ~Impl() {
    backend.reset();
    std::error_code ignored;
    if (!temporary.empty()) fs::remove_all(temporary, ignored);
  }
};

ParquetExport::ParquetExport(const std::string& folder, const LogHeader& header,
                             bool has_attribution, std::function<std::string(int32_t)> token_bytes,
                             const ParquetKeys& keys, const std::vector<std::string>& specialists,
                             const std::vector<std::pair<std::string, std::string>>& notes)
    : impl_(std::make_unique<Impl>()) {
  check_keys(keys);
  const audit::MakeParquetBackend make = find_backend();
  impl_->make_folder(folder);
  audit::ParquetTables tables;
  tables.folder = impl_->temporary.string();
  tables.final_folder = impl_->target.string();
  tables.has_attribution = has_attribution;
  for (const std::string& name : specialists) tables.specialists.push_back(as_utf8(name));
  tables.keys = keys;
  tables.metadata = {{"vitrine.schema", "vitrine.parquet/2"},
                     {"vitrine.model", header.model_path},
                     {"vitrine.architecture", header.architecture},
                     {"vitrine.isa", header.isa},
                     {"vitrine.seed", std::to_string(header.seed)}};
  for (const auto& [name, value] : notes) {
    tables.metadata.emplace_back("vitrine." + name, as_utf8(value));
  }
  for (const auto& [file, hash] : header.hashes) {
    tables.metadata.emplace_back("vitrine.sha256." + file, hash);
  }
  if (token_bytes) {
    tables.text_of = [token_bytes = std::move(token_bytes)](int32_t id) {
      audit::TokenText found;
      found.bytes = token_bytes(id);
      found.text = as_utf8(found.bytes);
      return found;
    };
  }
  impl_->backend.reset(make(tables));
}

ParquetExport::~ParquetExport() = default;

void ParquetExport::add(const TokenRecord& record) { impl_->backend->add(record); }

void ParquetExport::finish() {
  impl_->backend->finish();
  std::error_code error;
  fs::rename(impl_->temporary, impl_->target, error);
  if (error) impl_->fail("can't be made", error);
  impl_->temporary.clear();
}

}  // namespace vitrine
