// SPDX-License-Identifier: Apache-2.0
#include "chat_input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common.h"
#include "line_editor.h"

namespace cli {

namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;

/// A line is a message; one that ends with \ goes on in the next.
class LineInput : public ChatInput {
 public:
  explicit LineInput(bool has_marks) : has_marks_(has_marks) {}

  bool read(std::string& message) override {
    message.clear();
    std::string line;
    while (true) {
      if (has_marks_) write_out(message.empty() ? "> " : ". ");
      if (!read_line(line)) {
        if (has_marks_) write_out("\n");
        if (message.empty() || interrupt_signal() != 0) return false;
        message.pop_back();  // behind a line that was to go on
        return true;
      }
      if (line.ends_with('\r')) line.pop_back();
      if (!line.ends_with('\\')) {
        message += line;
        return true;
      }
      line.back() = '\n';
      message += line;
    }
  }

 private:
  /// False at the end, or where a signal arrived.
  bool read_line(std::string& line) {
    line.clear();
    while (true) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        line.append(buffer_, 0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      line += buffer_;
      buffer_.clear();
      if (line.size() > kMaxLineBytes) {
        refuse(fmt::format("a line on standard input is longer than {}; expected a message",
                           format_bytes(kMaxLineBytes)));
      }
      char bytes[1 << 16];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof(bytes));
      if (count < 0 && errno == EINTR && interrupt_signal() == 0) continue;
      if (count < 0 && errno == EINTR) return false;
      if (count < 0) {
        throw vitrine::Error(
            vitrine::ErrorKind::kIo,
            fmt::format("standard input: {}; expected messages there", std::strerror(errno)));
      }
      if (count == 0) return !line.empty();
      buffer_.assign(bytes, static_cast<size_t>(count));
    }
  }

  bool has_marks_;
  std::string buffer_;
};

class TerminalInput : public ChatInput {
 public:
  explicit TerminalInput(std::unique_ptr<LineEditor> editor) : editor_(std::move(editor)) {}
  bool read(std::string& message) override { return editor_->read(message); }

 private:
  std::unique_ptr<LineEditor> editor_;
};

}  // namespace

std::unique_ptr<ChatInput> open_chat_input(bool is_terminal, const std::string& history) {
  auto editor = is_terminal ? LineEditor::open(history) : nullptr;
  if (editor) return std::make_unique<TerminalInput>(std::move(editor));
  return std::make_unique<LineInput>(is_terminal);
}

}  // namespace cli
