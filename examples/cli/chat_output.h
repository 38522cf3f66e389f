// SPDX-License-Identifier: Apache-2.0
// What `chat` says: as text, or one JSON object an event (event_lines.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "answer_parts.h"
#include "event_lines.h"

namespace cli {

class ChatOutput {
 public:
  /// `is_held_back`: the text of an answer may begin anew and is shown once it is known to stand;
  /// an event says so instead. `has_tools`: calls are part of what is shown.
  ChatOutput(bool has_json_lines, bool is_held_back, bool has_tools);

  void start(const AnswerStart& answer);
  void token(int32_t id, std::string_view text, std::string_view reasoning,
             const vitrine::Tokenizer& tokenizer);
  /// Text and reasoning that became certain behind the last token.
  void rest(std::string_view text, std::string_view reasoning);
  void restart(int32_t attempt);
  void end(const AnswerEnd& answer);

  /// What a command brought about; --quiet leaves the line out and keeps the event.
  void note(const std::string& text);
  /// What one reads beside an answer ("the answer was cut"); --quiet leaves it out, and the end
  /// event's reason tells it.
  void remark(const std::string& text);
  /// What a command was asked to show; whole lines.
  void page(const std::string& text);
  /// A message or command that could not be followed, and why; the conversation is as it was.
  void refused(const std::string& why);

 private:
  void show(std::string_view text, std::string_view reasoning);

  std::optional<EventLines> events_;
  bool is_held_back_, has_tools_;
  ReasoningText reasoning_;
};

}  // namespace cli
