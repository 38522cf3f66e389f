// SPDX-License-Identifier: Apache-2.0
#include "evaluation/result_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/json_text.h"
#include "vitrine/checkpoint.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostLineValues = 4 << 20;  // in one line
constexpr size_t kMostLineKeys = 1024;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kIo, path + ": " + what + ": " + std::strerror(errno));
}

[[noreturn]] void refuse_shared(const std::string& path) {
  throw Error(ErrorKind::kInvalidArgument,
              path +
                  ": another evaluation is writing it; expected a file of this run's own, or to "
                  "wait until that one has ended");
}

/// Takes the file for this process as long as it is open. Where a file system knows no locks,
/// nobody is kept out.
void lock(int file, const std::string& path) {
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) refuse_shared(path);
}

/// Throws where somebody put another file in its place before it was locked.
void require_in_place(int file, const std::string& path) {
  struct stat opened = {}, named = {};
  const bool is_same = ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
                       opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  if (!is_same) refuse_shared(path);
}

}  // namespace

uint64_t read_lines(const std::string& text,
                    const std::function<void(std::string_view, size_t)>& on_line) {
  size_t at = 0, number = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', at)) {
    on_line(std::string_view(text).substr(at, end - at), ++number);
    at = end + 1;
  }
  return at;
}

Json parse_line(std::string_view line, const std::string& place) {
  check_json(line, place, kMostLineValues, kMostLineKeys);
  Json json = Json::parse(line);
  if (!json.is_object()) {
    throw Error(ErrorKind::kBadFile,
                place + ": holds " + found_text(json) + "; expected an object");
  }
  return json;
}

ResultFile::ResultFile(const std::string& path, const RunHead& head, bool overwrite) : path_(path) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file_ < 0 && errno != ENOENT && !overwrite) fail(path, "cannot be written");
  try {
    if (file_ >= 0) lock(file_, path);
    const bool is_kept = file_ >= 0 && !overwrite;
    const uint64_t whole = is_kept ? take_up(read_text_file(path, kMostResultBytes), head) : 0;
    if (whole == 0) begin(head);
    if (whole > 0 && ::ftruncate(file_, static_cast<off_t>(whole)) != 0) {
      fail(path, "cannot be shortened");
    }
    if (::lseek(file_, 0, SEEK_END) < 0) fail(path, "cannot be appended to");
  } catch (...) {
    if (file_ >= 0) ::close(file_);
    throw;
  }
}

ResultFile::~ResultFile() {
  if (file_ >= 0) ::close(file_);
}

void ResultFile::begin(const RunHead& head) {
  write_file_atomically(path_, head_line(head));
  const int made = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (made < 0) fail(path_, "cannot be written");
  if (file_ >= 0) ::close(file_);
  file_ = made;
  lock(file_, path_);
  require_in_place(file_, path_);
}

uint64_t ResultFile::take_up(const std::string& text, const RunHead& head) {
  bool is_same = false;
  uint64_t whole = 0;
  try {
    whole = read_lines(text, [&](std::string_view line, size_t number) {
      const std::string place = place_text(path_, number);
      const Json json = parse_line(line, place);
      if (number == 1) {
        is_same = head_line(read_head(json, place)) == head_line(head);
      } else if (json.contains("end")) {
        is_complete_ = true;
      } else if (is_same) {
        const EvaluatedItem item = read_item(json, place, seconds_);
        done_.emplace(item.task, item.id);
      }
    });
  } catch (const Error& error) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string(error.what()) +
                    "; expected a file that is not there, or results of this suite and target");
  }
  if (is_same) return whole;
  throw Error(ErrorKind::kInvalidArgument,
              path_ + ": holds " +
                  (whole == 0 ? "no results" : "results of another suite, model or other options") +
                  "; expected a file that is not there, or to overwrite it");
}

void ResultFile::write(const std::string& line) {
  for (size_t at = 0; at < line.size();) {
    const ssize_t count = ::write(file_, line.data() + at, line.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(path_, "cannot be written further; what it has stays");
    at += static_cast<size_t>(count);
  }
}

void ResultFile::add(const EvaluatedItem& item, double seconds) {
  write(item_line(item, seconds));
  done_.emplace(item.task, item.id);
}

void ResultFile::finish(double seconds) {
  write(end_line(done_.size(), seconds));
  if (::fsync(file_) != 0) fail(path_, "cannot be synced");
  is_complete_ = true;
}

}  // namespace vitrine::evaluation
