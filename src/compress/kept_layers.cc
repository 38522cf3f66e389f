// SPDX-License-Identifier: Apache-2.0
#include "kept_layers.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "replacement_folder.h"

namespace vitrine::compress {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLayerPrefix = "layer-", kTextPrefix = "text-";
constexpr const char* kFieldsName = "fields.json";
constexpr const char* kLockName = "lock";
constexpr uint64_t kMaxKeptText = 256u << 20;

fs::path folder_for(const std::string& out) { return temporary_beside(target_of(out), "layers"); }

/// What is kept in a folder.
struct KeptCount {
  size_t layers = 0, texts = 0;
  bool is_some() const { return layers + texts > 0; }
};

KeptCount count_kept(const fs::path& folder) {
  KeptCount count;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp-") != std::string::npos) continue;
    count.layers += name.starts_with(kLayerPrefix) ? 1 : 0;
    count.texts += name.starts_with(kTextPrefix) ? 1 : 0;
  }
  return count;
}

/// Throws kInvalidArgument for a folder that somebody else made or may write: the result is built
/// there.
void require_own(const fs::path& folder) {
  struct stat status = {};
  const bool is_own = ::lstat(folder.c_str(), &status) == 0 && status.st_uid == ::geteuid() &&
                      (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (is_own) return;
  throw Error(ErrorKind::kInvalidArgument,
              folder.string() +
                  ": others made it or may write it; expected a folder that this user "
                  "alone writes: remove it");
}

/// Returns what of the fields is another; empty: nothing.
std::string difference(const std::string& text, const KeptLayers::Fields& fields) {
  const auto found = nlohmann::json::parse(text, nullptr, false);
  for (const auto& [name, value] : fields) {
    const bool is_there = found.is_object() && found.contains(name) && found[name].is_string();
    if (!is_there || found[name].get<std::string>() != value) return name;
  }
  return "";
}

}  // namespace

/// A lock that ends with its process.
class KeptLayers::Lock {
 public:
  /// Returns null where another process has it. Throws kIo.
  static std::unique_ptr<Lock> take(const fs::path& folder) {
    const std::string path = (folder / kLockName).string();
    for (;;) {
      std::unique_ptr<Lock> lock(new Lock);
      lock->file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
      if (lock->file_ < 0) {
        fail_folder(path, "can't be made", std::error_code(errno, std::generic_category()));
      }
      // Where a file system knows no locks, nobody is kept out.
      if (::flock(lock->file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return nullptr;
      struct stat status = {};
      if (::fstat(lock->file_, &status) == 0 && status.st_nlink > 0) return lock;
      std::error_code ignored;  // its last holder has removed the folder
      fs::create_directory(folder, ignored);
    }
  }
  ~Lock() {
    if (file_ >= 0) ::close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Lock() = default;
  int file_ = -1;
};

KeptLayers::KeptLayers(const std::string& out, const Fields& fields) : folder_(folder_for(out)) {
  refuse_occupied(target_of(out));
  std::error_code error;
  if (fs::create_directory(folder_, error)) {
    std::error_code ignored;
    fs::permissions(folder_, fs::perms::group_write | fs::perms::others_write,
                    fs::perm_options::remove, ignored);
  }
  if (!fs::is_directory(fs::symlink_status(folder_))) {
    fail_folder(folder_, "can't be made",
                error ? error : std::make_error_code(std::errc::not_a_directory));
  }
  require_own(folder_);
  lock_ = Lock::take(folder_);
  if (lock_ == nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                folder_.string() + ": another run is making " + target_of(out).string() +
                    "; expected to wait for it, or another folder to make");
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : fields) json[name] = value;
  fields_ = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  remove_unfinished();
  const KeptCount count = count_kept(folder_);
  const std::string layers = std::to_string(count.layers) + " layers ";
  const std::string fields_path = (folder_ / kFieldsName).string();
  std::string found;
  if (checkpoint::file_exists(fields_path)) found = read_text_file(fields_path, kMaxKeptText);
  const std::string other = difference(found, fields);
  if (!other.empty()) {
    if (count.is_some()) {
      note_ = folder_.string() + " keeps " + layers + "of a run with another " + other +
              "; begins anew";
    }
    begin_anew();
  } else if (count.is_some()) {
    note_ = std::string("goes on with ") + (count.texts > 0 ? "the widths and " : "") + layers +
            "that an earlier run has kept in " + folder_.string();
  }
}

KeptLayers::~KeptLayers() {
  std::error_code ignored;
  fs::remove_all(result(), ignored);
  const bool is_kept = stays_ && count_kept(folder_).is_some();
  if (!is_kept) fs::remove_all(folder_, ignored);
}

void KeptLayers::remove_left(const std::string& out) {
  const fs::path folder = folder_for(out);
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(folder, ignored))) return;
  const std::unique_ptr<Lock> lock = Lock::take(folder);
  if (lock != nullptr) fs::remove_all(folder, ignored);
}

void KeptLayers::remove_unfinished() const {
  std::error_code error;
  fs::remove_all(result(), error);
  fs::remove_all(model(), error);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const bool is_unfinished = entry.path().filename().string().find(".tmp-") != std::string::npos;
    if (is_unfinished) fs::remove_all(entry.path(), error);
  }
}

void KeptLayers::begin_anew() const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().filename() != kLockName) fs::remove_all(entry.path(), error);
  }
  write_file_atomically((folder_ / kFieldsName).string(), fields_);
}

std::string KeptLayers::binding(const std::string& name) const { return fields_ + name + "\n"; }

std::string KeptLayers::layer_path(size_t layer) const {
  return (folder_ / (std::string(kLayerPrefix) + std::to_string(layer))).string();
}

std::unique_ptr<KeptLayerReader> KeptLayers::find(size_t layer, std::string& note) const {
  const std::string path = layer_path(layer);
  auto reader = KeptLayerReader::open(path, binding(std::to_string(layer)));
  if (reader == nullptr && checkpoint::file_exists(path)) {
    note = path + " is damaged; layer " + std::to_string(layer) + " is made again";
  }
  return reader;
}

void KeptLayers::begin(size_t layer, std::optional<KeptLayerWriter>& writer) const {
  writer.emplace(layer_path(layer), binding(std::to_string(layer)));
}

std::string KeptLayers::text_path(const std::string& name) const {
  return (folder_ / (std::string(kTextPrefix) + name)).string();
}

void KeptLayers::keep_text(const std::string& name, const std::string& text) const {
  write_file_atomically(text_path(name), sha256_of_text(binding(name) + text) + text);
}

std::optional<std::string> KeptLayers::find_text(const std::string& name) const {
  const std::string path = text_path(name);
  if (!checkpoint::file_exists(path)) return std::nullopt;
  const std::string whole = read_text_file(path, kMaxKeptText);
  const size_t digits = sha256_of_text("").size();
  if (whole.size() < digits) return std::nullopt;
  std::string text = whole.substr(digits);
  if (sha256_of_text(binding(name) + text) != whole.substr(0, digits)) return std::nullopt;
  return text;
}

}  // namespace vitrine::compress
