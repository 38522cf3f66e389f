// SPDX-License-Identifier: Apache-2.0
#include "model_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/cancel_watch.h"
#include "core/sha256.h"
#include "core/utf8.h"

namespace vitrine::gates {

namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr std::array kGitPaths{".git", ".gitattributes", ".github", ".gitignore"};

[[noreturn]] void throw_io(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kIo, path + ": " + what);
}

[[noreturn]] void refuse(const std::string& model, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, model + ": " + what);
}

/// The path without "/" at its end, so that a link to a folder is seen as one.
fs::path without_slash(const std::string& path) {
  fs::path plain = path;
  while (!plain.has_filename() && plain.has_relative_path()) plain = plain.parent_path();
  return plain;
}

/// Fills in what an entry is; a link counts as what it leads to where links are allowed.
void look_at(ModelEntry& entry, fs::file_type type, bool allows_links) {
  std::error_code error;
  if (type == fs::file_type::symlink) {
    if (!allows_links) {
      entry.problem = "is a symbolic link";
      return;
    }
    const fs::file_status target = fs::status(entry.path, error);
    if (target.type() == fs::file_type::directory) {
      entry.problem = "is a symbolic link to a folder";
      return;
    }
    type = target.type();
    if (type != fs::file_type::regular) entry.problem = "is a symbolic link to no file";
  } else if (type != fs::file_type::regular) {
    entry.problem = "is neither a file nor a folder";
  }
  if (!entry.problem.empty()) return;
  entry.bytes = fs::file_size(entry.path, error);
  if (error) throw_io(entry.path, "cannot be looked at: " + error.message());
  if (!is_utf8(entry.name)) entry.problem = "has a name that is not UTF-8";
}

/// Returns true for "…-00001-of-00003.gguf", of which more than one part is told.
bool is_part(std::string_view name) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (name.size() < kForm.size()) return false;
  name.remove_prefix(name.size() - kForm.size());
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool is_digit = name[i] >= '0' && name[i] <= '9';
    if (kForm[i] == '0' ? !is_digit : name[i] != kForm[i]) return false;
  }
  return name.substr(kForm.find("of-") + 3, 5) != "00001";
}

/// A split GGUF file's other parts would stay unsigned.
void refuse_part(const std::string& model) {
  if (!is_part(model_name(model))) return;
  refuse(model, "is one part of a split GGUF file; expected the folder that holds all parts");
}

void walk(const fs::path& root, const IgnoredPaths& ignored, bool allows_links,
          std::vector<ModelEntry>& entries) {
  std::error_code error;
  fs::recursive_directory_iterator at(root, error);
  for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
    ModelEntry entry = {.name = at->path().lexically_relative(root).generic_string(),
                        .path = at->path().string()};
    const fs::file_status status = at->symlink_status(error);
    if (error) throw_io(entry.path, "cannot be looked at: " + error.message());
    const bool is_folder = status.type() == fs::file_type::directory;
    if (ignored.contains(entry.name)) {
      if (is_folder) at.disable_recursion_pending();
      continue;
    }
    if (is_folder) continue;
    look_at(entry, status.type(), allows_links);
    entries.push_back(std::move(entry));
  }
  if (error) throw_io(root.string(), "cannot be listed: " + error.message());
}

}  // namespace

bool IgnoredPaths::add(const std::string& path) {
  if (path.find('\0') != std::string::npos || !is_utf8(path)) return false;
  const fs::path plain = without_slash(fs::path(path).lexically_normal().generic_string());
  if (plain.is_absolute() || plain == "." || plain.empty() || *plain.begin() == "..") return false;
  const std::string name = plain.generic_string();
  const auto place = std::ranges::lower_bound(paths_, name);
  if (place == paths_.end() || *place != name) paths_.insert(place, name);
  return true;
}

void IgnoredPaths::add_git() {
  for (const char* path : kGitPaths) add(path);
}

void IgnoredPaths::add_within(const std::string& model, const std::string& file) {
  std::error_code error;
  const fs::path root = fs::weakly_canonical(fs::absolute(model, error), error);
  // The folder's links are resolved, and the name stays.
  const fs::path plain = fs::absolute(file, error);
  const fs::path folder = fs::weakly_canonical(plain.parent_path(), error);
  if (!error) add((folder / plain.filename()).lexically_relative(root).generic_string());
}

bool IgnoredPaths::contains(std::string_view name) const {
  return std::ranges::any_of(paths_, [name](const std::string& path) {
    return name.starts_with(path) && (name.size() == path.size() || name[path.size()] == '/');
  });
}

std::vector<ModelEntry> list_model(const std::string& model, const IgnoredPaths& ignored,
                                   bool allows_links) {
  const fs::path root = without_slash(model);
  std::error_code error;
  fs::file_status status = fs::symlink_status(root, error);
  if (status.type() == fs::file_type::not_found) {
    refuse(model, "is not there; expected a model's folder, or a .gguf file");
  }
  if (error) throw_io(model, "cannot be looked at: " + error.message());
  if (status.type() == fs::file_type::symlink) {
    if (!allows_links) {
      refuse(model, "is a symbolic link; expected the folder or file that it leads to");
    }
    status = fs::status(root, error);
  }
  std::vector<ModelEntry> entries;
  if (status.type() == fs::file_type::directory) {
    walk(root, ignored, allows_links, entries);
    std::ranges::sort(entries, is_earlier_name, &ModelEntry::name);
  } else {
    refuse_part(model);
    entries.push_back({.name = kOnlyFile, .path = root.string()});
    look_at(entries.back(), status.type(), allows_links);
  }
  return entries;
}

std::string model_name(const std::string& model) {
  std::error_code error;
  fs::path path = without_slash(fs::path(model).lexically_normal().string());
  if (path == "." || path.filename() == "..") path = fs::weakly_canonical(model, error);
  return path.filename().string();
}

bool is_earlier_name(std::string_view left, std::string_view right) {
  // No byte of a name is 0, so that "/" comes before all of them.
  const auto order = [](char byte) { return byte == '/' ? 0 : static_cast<unsigned char>(byte); };
  return std::ranges::lexicographical_compare(left, right, {}, order, order);
}

std::string hash_of_file(const ModelEntry& file, const std::atomic<bool>* cancelled) {
  core::throw_if_raised(cancelled, "reading a model's files");
  std::ifstream in(file.path, std::ios::binary);
  if (!in) throw_io(file.path, "cannot be opened; expected a file that you may read");
  Sha256 hash;
  std::vector<char> piece(kPieceBytes);
  uint64_t bytes = 0;
  while (in) {
    core::throw_if_raised(cancelled, "reading a model's files");
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto count = static_cast<size_t>(in.gcount());
    hash.update({reinterpret_cast<const uint8_t*>(piece.data()), count});
    bytes += count;
  }
  if (in.bad() || bytes != file.bytes) {
    throw_io(file.path, "gave " + std::to_string(bytes) + " bytes; expected " +
                            std::to_string(file.bytes) + ", and nobody who writes to it");
  }
  return hex(hash.finish());
}

}  // namespace vitrine::gates
