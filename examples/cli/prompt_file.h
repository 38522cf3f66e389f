// SPDX-License-Identifier: Apache-2.0
// Conversations and prompts from a file: --messages and --prompts of `generate`.
//
//   [{"role": "user", "content": "Hi"}]                 a conversation
//   {"messages": [ … ], "tools": [ … ], "id": "a"}       the same, with tools and a name
//   "Once upon a time"                                   a prompt
//   {"prompt": "Once upon a time", "id": 7}              the same, with a name
//
// One JSON value, or one a line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "output_path.h"
#include "vitrine/chat.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cli {

/// A prompt as somebody gave it.
struct GivenPrompt {
  std::string text;                            ///< of a conversation empty
  std::vector<vitrine::ChatMessage> messages;  ///< of a conversation; else empty
  std::string tools_json;                      ///< an array, or nothing
  nlohmann::ordered_json id;                   ///< as the file has it; null: none
  std::string place;                           ///< "a.jsonl: line 3: ", for messages; may be empty

  bool is_conversation() const { return !messages.empty(); }
};

struct PromptFileOptions {
  std::string messages, prompts;
  int parallel = 4;  ///< prompts of a file that are answered at once
  const CLI::Option* parallel_option = nullptr;

  /// --messages, --prompts and --parallel.
  void add_to(CLI::App& command);
  bool is_given() const { return !messages.empty() || !prompts.empty(); }
  /// Says of --parallel that it does nothing where no file is given.
  void note_idle() const;
  /// The option and its file.
  NamedPath input() const;
  /// All prompts of the file, at least one. Throws kInvalidArgument: "FILE: line N: …".
  std::vector<GivenPrompt> read() const;
};

}  // namespace cli
