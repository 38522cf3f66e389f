// SPDX-License-Identifier: Apache-2.0
#include "chat_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "common.h"
#include "private_file.h"

namespace cli {

namespace {

namespace fs = std::filesystem;

constexpr int kMaxEntries = 1000;
constexpr size_t kMaxEntryCharacters = size_t{1} << 14;
constexpr uint64_t kChatHistoryMaxFileBytes = uint64_t{32} << 20;
constexpr std::string_view kFirstLine = "_HiStOrY_V2_\n";  // libedit's

/// What libedit writes of all entries, or of the newest one, without the first line.
std::string history_text(HistoryW* history, bool is_newest) {
  FILE* stream = std::tmpfile();  // libedit wants a file that has a mode
  if (stream == nullptr) return "";
  HistEventW event;
  const int status = history_w(history, &event, H_SAVE_FP, stream);
  std::string text;
  std::rewind(stream);
  char bytes[4096];
  while (const size_t size = std::fread(bytes, 1, sizeof(bytes), stream)) text.append(bytes, size);
  std::fclose(stream);
  if (status < 0 || !text.starts_with(kFirstLine)) return "";
  text.erase(0, kFirstLine.size());
  if (!is_newest || text.size() < 2) return text;
  // A line is an entry.
  const size_t end = text.rfind('\n', text.size() - 2);
  return end == std::string::npos ? text : text.substr(end + 1);
}

}  // namespace

std::string chat_history_path() {
  const auto absolute = [](const char* variable) -> fs::path {
    const char* value = std::getenv(variable);
    const fs::path path = value != nullptr ? value : "";
    return path.is_absolute() ? path : "";
  };
  fs::path folder = absolute("XDG_STATE_HOME");
  if (folder.empty() && !absolute("HOME").empty()) folder = absolute("HOME") / ".local/state";
  return folder.empty() ? "" : (folder / "vitrine/chat_history").string();
}

ChatHistory::ChatHistory(const std::string& path) : history_(history_winit()), path_(path) {
  if (!history_) throw std::bad_alloc();
  HistEventW event;
  history_w(history_.get(), &event, H_SETSIZE, kMaxEntries);
  history_w(history_.get(), &event, H_SETUNIQUE, 1);  // the same twice in a row stands once
  if (!path_.empty()) load();
}

void ChatHistory::load() {
  std::error_code error;
  if (!fs::exists(path_, error)) return;
  if (!fs::is_regular_file(path_, error) ||
      fs::file_size(path_, error) > kChatHistoryMaxFileBytes) {
    write_note(fmt::format("{}: is no file of at most {}; the history is not kept (--no-history)",
                           path_, format_bytes(kChatHistoryMaxFileBytes)));
    path_.clear();
    return;
  }
  if (fs::file_size(path_, error) == 0) return;
  HistEventW event;
  const int entries = history_w(history_.get(), &event, H_LOAD, path_.c_str());
  if (entries < 0) {
    write_note(path_ + ": is no history of libedit; it is left as it is, and nothing is kept");
    path_.clear();
  } else if (entries > 2 * kMaxEntries) {
    try {
      write_private_file(path_, std::string(kFirstLine) + history_text(history_.get(), false));
    } catch (const vitrine::Error&) {
      // It stays long until it can be written.
    }
  }
}

void ChatHistory::add(const std::wstring& message) {
  if (message.size() > kMaxEntryCharacters) return;
  HistEventW event;
  const bool is_new = history_w(history_.get(), &event, H_ENTER, message.c_str()) > 0;
  if (is_new && !path_.empty()) append();
}

/// One write at the end of the file, so that two conversations do not take each other's away.
void ChatHistory::append() {
  const auto give_up = [&] {
    write_note(
        fmt::format("{}: {}; the history is not kept (--no-history)", path_, std::strerror(errno)));
    path_.clear();
  };
  std::error_code error;
  const fs::path folder = fs::path(path_).parent_path();
  fs::create_directories(folder.parent_path(), error);
  ::mkdir(folder.c_str(), S_IRWXU);
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK,
                          S_IRUSR | S_IWUSR);
  if (file < 0) return give_up();
  struct stat info = {};
  std::string text = history_text(history_.get(), true);
  const bool is_usable =
      ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) && ::fchmod(file, S_IRUSR | S_IWUSR) == 0;
  if (info.st_size == 0) text.insert(0, kFirstLine);
  const bool is_written =
      is_usable && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!is_written) give_up();
  ::close(file);
}

}  // namespace cli
