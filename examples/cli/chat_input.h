// SPDX-License-Identifier: Apache-2.0
// Where messages come from: a terminal with its line editor, or standard input line by line.
#pragma once

#include <memory>
#include <string>

namespace cli {

class ChatInput {
 public:
  virtual ~ChatInput() = default;
  /// The next message or command. False at the end, or where a signal arrived.
  virtual bool read(std::string& message) = 0;
};

/// `is_terminal`: standard input is one. `history`: what is typed there is kept in a file
/// (ChatHistory); empty: it is not.
std::unique_ptr<ChatInput> open_chat_input(bool is_terminal, const std::string& history);

}  // namespace cli
