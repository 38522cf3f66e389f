// SPDX-License-Identifier: Apache-2.0
#include "model_hashes.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>

#include "audit_run.h"
#include "closing_note.h"

namespace cli {

namespace {

constexpr uint64_t kKeptBytes = uint64_t{64} << 20;  // hashed in less than a tenth of a second
constexpr uint64_t kNotedBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxEntryBytes = 4096;
constexpr int64_t kSettledSeconds = 2;

/// What changes whenever a file's content does. Programs can set the time of the content's change,
/// but not that of the last change of anything (ctime).
struct Identity {
  std::string name;   // device and inode
  std::string state;  // size and times
  uint64_t size = 0;
  bool is_settled = false;  // it was not touched just now: a clock's tick would hide a change
};

Identity identity_of(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return {};  // reading it says what is wrong
  Identity identity;
  identity.name = fmt::format("{:x}-{:x}", static_cast<uint64_t>(info.st_dev),
                              static_cast<uint64_t>(info.st_ino));
  identity.state =
      fmt::format("{} {}.{:09} {}.{:09}", static_cast<uint64_t>(info.st_size), info.st_mtim.tv_sec,
                  info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
  identity.size = static_cast<uint64_t>(info.st_size);
  identity.is_settled = std::time(nullptr) - info.st_ctim.tv_sec > kSettledSeconds;
  return identity;
}

/// Empty where the environment names no place for it.
std::filesystem::path cache_folder() {
  const auto absolute = [](const char* variable) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    const std::filesystem::path path = value != nullptr ? value : "";
    return path.is_absolute() ? path : "";
  };
  if (const auto cache = absolute("XDG_CACHE_HOME"); !cache.empty())
    return cache / "vitrine/sha256";
  const auto home = absolute("HOME");
  return home.empty() ? home : home / ".cache/vitrine/sha256";
}

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// The hash that is kept for this state of the file, or empty.
std::string kept_hash(const std::filesystem::path& entry, const Identity& identity) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(entry, error)) return "";
  try {
    const std::string text = vitrine::read_text_file(entry.string(), kMaxEntryBytes);
    const size_t end = text.find('\n');
    if (end == std::string::npos || text.substr(0, end) != identity.state) return "";
    const std::string hash = text.substr(end + 1, 64);
    return is_hash(hash) ? hash : "";
  } catch (const vitrine::Error&) {
    return "";
  }
}

void keep_hash(const std::filesystem::path& entry, const Identity& identity,
               const std::string& hash) {
  std::error_code error;
  std::filesystem::create_directories(entry.parent_path(), error);
  try {
    vitrine::write_file_atomically(entry.string(), identity.state + "\n" + hash + "\n");
  } catch (const vitrine::Error&) {
    // The next run reads the file again.
  }
}

}  // namespace

std::string file_hash(const std::string& path, HashCache cache) {
  const Identity before = identity_of(path);
  const std::filesystem::path folder = before.size >= kKeptBytes ? cache_folder() : "";
  const std::filesystem::path entry = folder.empty() ? folder : folder / before.name;
  if (cache == HashCache::kUse && !entry.empty()) {
    if (const std::string hash = kept_hash(entry, before); !hash.empty()) return hash;
  }
  if (before.size >= kNotedBytes) {
    write_remark(fmt::format("reading {} ({}) for its SHA-256{}", path, format_bytes(before.size),
                             entry.empty() ? "" : ", which is kept"));
  }
  const std::string hash = vitrine::sha256_of_file(path);
  const Identity after = identity_of(path);
  if (after.name != before.name || after.state != before.state) {
    throw vitrine::Error(vitrine::ErrorKind::kIo,
                         path +
                             ": changed while it was read for its SHA-256; expected a file that "
                             "nobody writes to");
  }
  if (!entry.empty() && before.is_settled) keep_hash(entry, before, hash);
  return hash;
}

FileHashes file_hashes(const vitrine::Checkpoint& checkpoint, HashCache cache) {
  FileHashes hashes;
  const std::filesystem::path folder = checkpoint.path();
  const std::string tokenizer =
      std::filesystem::path(checkpoint.tokenizer_name()).filename().string();
  for (const std::string& name : {std::string("config.json"), std::string("generation_config.json"),
                                  tokenizer, std::string("vitrine_manifest.json")}) {
    if (checkpoint.is_gguf()) break;  // all of it is in the weight files
    std::error_code error;
    if (!std::filesystem::is_regular_file(folder / name, error)) continue;
    hashes.emplace_back(name, file_hash((folder / name).string(), cache));
  }
  for (const std::string& path : checkpoint.weight_files()) {
    hashes.emplace_back(std::filesystem::path(path).filename().string(), file_hash(path, cache));
  }
  return hashes;
}

std::string first_other_file(const FileHashes& logged, const FileHashes& found) {
  const auto hash_of = [](const FileHashes& hashes, const std::string& name) -> std::string {
    for (const auto& [file, hash] : hashes) {
      if (file == name) return hash.substr(0, 16) + "…";
    }
    return "none";
  };
  // A model that is one file may have been given another name.
  const bool are_single = logged.size() == 1 && found.size() == 1;
  if (are_single && logged[0].second == found[0].second) return "";
  std::set<std::string> names;
  for (const auto& [name, hash] : logged) names.insert(name);
  if (names.empty()) return "";  // the host named none
  for (const auto& [name, hash] : found) names.insert(name);
  // Weights and specialists first: they say most.
  std::vector<std::string> order(names.begin(), names.end());
  std::ranges::stable_partition(order, [](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".gguf") ||
           name.starts_with("specialist ");
  });
  for (const std::string& name : order) {
    const auto same = [&](const auto& entry) { return entry.first == name; };
    const auto there = std::ranges::find_if(logged, same);
    const auto here = std::ranges::find_if(found, same);
    if (there != logged.end() && here != found.end() && there->second == here->second) continue;
    return fmt::format("{} has SHA-256 {}, the log says {}", plain(name), hash_of(found, name),
                       plain(hash_of(logged, name)));
  }
  return "";
}

}  // namespace cli
