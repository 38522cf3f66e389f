// SPDX-License-Identifier: Apache-2.0
// What was typed before, for the line editor: in memory, and in a file of the user's.
#pragma once

#include <histedit.h>

#include <memory>
#include <string>

namespace cli {

/// $XDG_STATE_HOME/vitrine/chat_history, or that in ~/.local/state; empty where the environment
/// names no folder.
std::string chat_history_path();

class ChatHistory {
 public:
  /// `path`: the file (libedit's format) that is read and gets each further entry, mode 600; empty:
  /// there is none. A file that cannot be used is told in a note and left as it is.
  explicit ChatHistory(const std::string& path);

  void add(const std::wstring& message);
  /// For el_wset(…, EL_HIST, history_w, …).
  HistoryW* get() const { return history_.get(); }

 private:
  void load();
  void append();

  struct End {
    void operator()(HistoryW* history) const { history_wend(history); }
  };
  std::unique_ptr<HistoryW, End> history_;
  std::string path_;
};

}  // namespace cli
