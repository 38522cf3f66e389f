// SPDX-License-Identifier: Apache-2.0
// Messages that are typed in a terminal: libedit, with several lines in one message and pastes that
// are one message.
#pragma once

#include <histedit.h>
#include <termios.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "chat_history.h"

namespace cli {

/// One at a time in a process: it answers to signals. While it lives, the terminal keeps what is
/// typed between two messages and shows it with the next one.
class LineEditor {
 public:
  /// Null where standard input is no terminal that can be drawn on (TERM=dumb neither).
  /// `history`: ChatHistory's path.
  static std::unique_ptr<LineEditor> open(const std::string& history);
  ~LineEditor();

  /// A message, without the line's end. False at the end of the input, or where a signal ended it:
  /// Ctrl-C throws away what was typed, and ends where nothing was.
  bool read(std::string& message);

 private:
  LineEditor() = default;
  bool set_up();
  void bind_keys();
  void draw(std::string_view text);
  void pass_on(int signal);
  bool take_character(wchar_t& character);

  static LineEditor& of(EditLine* editor);
  static wchar_t* prompt(EditLine* editor);
  static int get_character(EditLine* editor, wchar_t* character);
  static unsigned char on_enter(EditLine* editor, wint_t key);
  static unsigned char on_new_line(EditLine* editor, wint_t key);
  static unsigned char on_paste(EditLine* editor, wint_t key);
  static unsigned char on_up(EditLine* editor, wint_t key);
  static unsigned char on_down(EditLine* editor, wint_t key);

  struct End {
    void operator()(EditLine* editor) const { el_end(editor); }
    void operator()(FILE* file) const { std::fclose(file); }
  };
  termios before_{};  // as the terminal was found
  std::unique_ptr<FILE, End> screen_;
  std::unique_ptr<ChatHistory> history_;
  std::unique_ptr<EditLine, End> editor_;
  std::string buffer_;  // bytes that were read and not yet taken
  bool is_at_end_ = false;
};

}  // namespace cli
