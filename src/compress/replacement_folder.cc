// SPDX-License-Identifier: Apache-2.0
#include "replacement_folder.h"

#include <random>

#include "vitrine/core.h"

namespace vitrine::compress {

namespace fs = std::filesystem;

fs::path target_of(const std::string& out) {
  fs::path target = fs::path(out).lexically_normal();
  return target.has_filename() ? target : target.parent_path();
}

fs::path temporary_beside(const fs::path& target, const std::string& suffix) {
  return target.parent_path() / ("." + target.filename().string() + ".tmp-" + suffix);
}

void fail_folder(const fs::path& folder, const std::string& what, const std::error_code& error) {
  throw Error(ErrorKind::kIo, folder.string() + ": " + what + ": " + error.message());
}

void refuse_occupied(const fs::path& target) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target, error);
  if (!fs::exists(status)) return;
  const bool is_free = fs::is_directory(status) && fs::is_empty(target, error) && !error;
  if (is_free) return;
  throw Error(ErrorKind::kInvalidArgument,
              target.string() + ": exists and isn't an empty folder; expected a new or empty one");
}

ReplacementFolder::ReplacementFolder(const std::string& out, const fs::path& place)
    : target_(target_of(out)), temporary_(place) {
  refuse_occupied(target_);
  if (place.empty()) {
    std::random_device random;
    temporary_ = temporary_beside(target_, std::to_string(random()) + std::to_string(random()));
  }
  std::error_code error;
  if (!fs::create_directory(temporary_, error)) fail_folder(target_, "can't be made", error);
}

ReplacementFolder::~ReplacementFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void ReplacementFolder::commit() {
  refuse_occupied(target_);
  std::error_code error;
  fs::rename(temporary_, target_, error);
  if (error) fail_folder(target_, "can't be made", error);
  temporary_.clear();
}

}  // namespace vitrine::compress
