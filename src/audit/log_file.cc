// SPDX-License-Identifier: Apache-2.0
#include "log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "temporary_files.h"
#include "vitrine/core.h"

namespace vitrine::audit {

void throw_log_io(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kIo, "audit log '" + path + "': " + what);
}

namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string reason(int error_number) { return std::generic_category().message(error_number); }

std::string advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT: return "; free some space or choose another place";
    case EFBIG: return "; the file may not grow further (file size limit)";
    case ENOENT: return "; make the folder first or choose another place";
    default: return "; choose another place";
  }
}

}  // namespace

std::string behind_links(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path at = path;
  for (int links = 0; links < 40 && fs::is_symlink(at, error); ++links) {
    const fs::path next = fs::read_symlink(at, error);
    if (error) break;
    at = at.parent_path() / next;  // next alone where it is absolute
  }
  return at.string();
}

LogFile::LogFile(const std::string& path, bool overwrite)
    : path_(path), target_(behind_links(path)), overwrite_(overwrite) {
  struct stat status {};
  mode_t mode = 0;
  // A name too long for the disk is found here and not in rename().
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) {
      throw_log_io(path, S_ISDIR(status.st_mode) ? "is a folder, expected a file's name"
                                                 : "is not a regular file; choose another place");
    }
    if (!overwrite_) refuse_existing();
    if (::access(path.c_str(), W_OK) != 0) fail("cannot be written", errno);
    mode = status.st_mode & 0777;
  } else if (errno != ENOENT) {
    fail("cannot be opened", errno);
  }
  static std::atomic<uint32_t> counter{0};
  const std::string folder_path = folder_of(target_);
  remove_left_temporaries(folder_path);
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    const std::string name = folder_path + "/" + temporary_name(counter.fetch_add(1));
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) {
      temporary_path_ = name;
      mark_in_use(descriptor_);
    } else if (errno != EEXIST || attempt == 1000) {
      fail("cannot be created", errno);
    }
  }
  // A log that replaces another keeps its permissions; failing to is no reason to have no log.
  if (mode != 0 && ::fchmod(descriptor_, mode) != 0) errno = 0;
}

LogFile::~LogFile() { discard(); }

void LogFile::fail(const char* action, int error_number) {
  discard();
  throw_log_io(path_, std::string(action) + ": " + reason(error_number) + advice(error_number));
}

void LogFile::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("cannot be written", errno);
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void LogFile::sync_and_close() {
  // Some file systems have no fsync and say EINVAL.
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail("cannot be written to the disk", errno);
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0 && errno != EINTR) fail("cannot be written", errno);
}

void LogFile::refuse_existing() {
  discard();
  throw Error(ErrorKind::kInvalidArgument,
              "audit log '" + path_ +
                  "': is there already, and evidence is not overwritten; choose another name, or "
                  "ask for it to be overwritten");
}

void LogFile::publish() {
  // A link never replaces what is there; some file systems have none.
  const bool is_linked = !overwrite_ && ::link(temporary_path_.c_str(), target_.c_str()) == 0;
  if (!is_linked && !overwrite_ && errno == EEXIST) refuse_existing();
  if (is_linked) {
    ::unlink(temporary_path_.c_str());
  } else if (::rename(temporary_path_.c_str(), target_.c_str()) != 0) {
    fail("cannot be renamed", errno);
  }
  temporary_path_.clear();
  // The name itself survives a power cut only after this; the file is whole either way.
  const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

std::string LogFile::folder() const { return folder_of(target_); }

bool LogFile::append(std::string_view bytes, std::string& problem) {
  const off_t start = ::lseek(descriptor_, 0, SEEK_END);
  std::string_view left = bytes;
  while (start >= 0 && !left.empty()) {
    const ssize_t written = ::write(descriptor_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    left.remove_prefix(static_cast<size_t>(written));
  }
  if (start >= 0 && left.empty()) return true;
  const int error_number = errno;
  problem = "audit log '" + path_ + "': cannot be written: " + reason(error_number) +
            advice(error_number);
  // Half a page would hide the pages after it; without ftruncate a reader still finds the rest.
  if (start >= 0 && ::ftruncate(descriptor_, start) != 0) errno = 0;
  return false;
}

bool LogFile::sync(std::string& problem) {
  if (::fsync(descriptor_) == 0 || errno == EINVAL) return true;
  problem = "audit log '" + path_ + "': cannot be written to the disk: " + reason(errno);
  return false;
}

void LogFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
  temporary_path_.clear();
}

}  // namespace vitrine::audit
