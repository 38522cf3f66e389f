// SPDX-License-Identifier: Apache-2.0
#include "temporary_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <ctime>
#include <string_view>

namespace vitrine::audit {
namespace {

constexpr std::string_view kPrefix = ".vitrine-", kSuffix = ".tmp";
constexpr time_t kLeastAge = 60;  // seconds

/// A number as it is written here: without a sign, and without zeros before it.
template <typename Integer>
bool take_number(std::string_view& text, Integer& value) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  if (text[0] == '0' && text.size() > 1 && text[1] >= '0' && text[1] <= '9') return false;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, value);
  if (status != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

/// The process in a temporary's name; 0 where the name is another.
pid_t process_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return 0;
  name.remove_prefix(kPrefix.size());
  pid_t process = 0;
  uint32_t number = 0;
  if (!take_number(name, process) || !name.starts_with('-')) return 0;
  name.remove_prefix(1);
  return take_number(name, number) && name == kSuffix ? process : 0;
}

bool is_left(const struct stat& status) {
  // A clock of another machine may be ahead: then the file is not old.
  return S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
         ::time(nullptr) - status.st_mtime > kLeastAge;
}

void remove_if_left(int folder, const char* name) {
  const pid_t process = process_of(name);
  if (process <= 0 || ::kill(process, 0) == 0 || errno != ESRCH) return;
  struct stat named {
  }, opened{};
  if (::fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) != 0 || !is_left(named)) return;
  const int file = ::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return;
  const bool is_same = ::fstat(file, &opened) == 0 && opened.st_dev == named.st_dev &&
                       opened.st_ino == named.st_ino && is_left(opened);
  if (is_same && ::flock(file, LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder, name, 0);
  ::close(file);
}

}  // namespace

std::string temporary_name(uint32_t number) {
  return std::string(kPrefix) + std::to_string(::getpid()) + "-" + std::to_string(number) +
         std::string(kSuffix);
}

void mark_in_use(int descriptor) noexcept {
  const int error_number = errno;
  (void)::flock(descriptor, LOCK_EX | LOCK_NB);
  errno = error_number;
}

void remove_left_temporaries(const std::string& folder) noexcept {
  const int error_number = errno;
  DIR* entries = ::opendir(folder.c_str());
  if (entries != nullptr) {
    while (const dirent* entry = ::readdir(entries)) {
      remove_if_left(::dirfd(entries), entry->d_name);
    }
    ::closedir(entries);
  }
  errno = error_number;
}

}  // namespace vitrine::audit
