// SPDX-License-Identifier: Apache-2.0
#include "chat_output.h"

#include "closing_note.h"
#include "common.h"

namespace cli {

ChatOutput::ChatOutput(bool has_json_lines, bool is_held_back, bool has_tools)
    : is_held_back_(is_held_back), has_tools_(has_tools) {
  if (has_json_lines) events_.emplace([](std::string_view line) { write_out(line); });
}

void ChatOutput::start(const AnswerStart& answer) {
  if (events_) events_->start(answer);
}

void ChatOutput::show(std::string_view text, std::string_view reasoning) {
  if (is_held_back_) return;
  reasoning_.add(reasoning);
  if (text.empty()) return;
  reasoning_.end();
  write_out(text);
}

void ChatOutput::token(int32_t id, std::string_view text, std::string_view reasoning,
                       const vitrine::Tokenizer& tokenizer) {
  if (events_) return events_->token(id, text, nullptr, tokenizer, reasoning);
  show(text, reasoning);
}

void ChatOutput::rest(std::string_view text, std::string_view reasoning) {
  if (events_) return events_->rest(text, reasoning);
  show(text, reasoning);
}

void ChatOutput::restart(int32_t attempt) {
  if (events_) events_->restart(attempt);
}

void ChatOutput::end(const AnswerEnd& answer) {
  if (events_) return events_->end(answer);
  reasoning_.end();
  const bool is_shown = !is_held_back_ || answer.failure.empty();
  const bool has_calls = has_tools_ && is_shown && !answer.parts.tool_calls.empty();
  write_out((is_held_back_ && is_shown ? answer.text : "") +
            (answer.text.empty() && has_calls ? "" : "\n"));
  if (has_calls) write_out(calls_text(answer.parts));
  if (!has_tools_) write_calls(answer.parts);
  if (!answer.failure.empty()) write_note(answer.failure);
}

void ChatOutput::note(const std::string& text) {
  if (events_) return events_->note(text);
  write_remark(text);
}

void ChatOutput::remark(const std::string& text) {
  if (!events_) write_remark(text);
}

void ChatOutput::page(const std::string& text) {
  if (events_) return events_->note(text);
  write_out(text);
}

void ChatOutput::refused(const std::string& why) {
  if (events_) return events_->refused(why);
  write_note(why);
}

}  // namespace cli
