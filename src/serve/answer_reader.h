// SPDX-License-Identifier: Apache-2.0
// Turns an answer's tokens into text, up to where a host's text ends it, and into its parts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vitrine/chat_output.h"
#include "vitrine/tokenizer.h"

namespace vitrine::serve {

/// How an answer is read.
struct AnswerForm {
  std::string format = "plain";    ///< of chat_output_formats()
  std::string prompt, tools_json;  ///< as ChatOutputOptions has them
  bool is_conversation = false;    ///< it has parts
  std::vector<std::string> stop;   ///< texts that end it
};

/// What became certain with a token.
struct ReadText {
  std::string text;               ///< the answer's text, marks of its format among it
  std::vector<ChatDelta> deltas;  ///< the same by parts, of a conversation
};

/// Reads one answer. Not thread-safe.
class AnswerReader {
 public:
  /// Throws kInvalidArgument for an empty text among `form.stop`.
  AnswerReader(const Tokenizer& tokenizer, const AnswerForm& form);

  /// `may_end`: the answer may end before this token's text, or within it.
  ReadText add(int32_t token, bool may_end);
  /// Returns what was held back.
  ReadText finish();
  /// Whether a text of `form.stop` ended it.
  bool is_stopped() const { return stop_.stopped(); }
  /// The text of `form.stop` that ended it; empty where none has.
  const std::string& stop() const { return stop_.found(); }
  /// The parts so far; null where it is no conversation.
  const ChatAnswer* answer() const { return parser_ ? &parser_->answer() : nullptr; }

 private:
  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  StopStrings stop_;
  std::optional<ChatOutputParser> parser_;
};

}  // namespace vitrine::serve
