// SPDX-License-Identifier: Apache-2.0
// Results of the calls that an answer asks for, and the turn that they are.
#include <fmt/format.h>

#include <algorithm>

#include "chat_conversation.h"
#include "common.h"

namespace cli {

namespace {

/// The calls of an answer, as its template gets them.
nlohmann::ordered_json calls_of(const vitrine::ChatMessage& answer) {
  const auto fields = nlohmann::ordered_json::parse(answer.fields_json, nullptr, false);
  if (!fields.is_object() || !fields.contains("tool_calls")) return {};
  return fields["tool_calls"];
}

/// The fields of the message that brings a call's result.
std::string result_fields(const nlohmann::ordered_json& call) {
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  if (call.contains("function")) fields["name"] = call["function"]["name"];
  if (call.contains("id")) fields["tool_call_id"] = call["id"];
  return fields.dump();
}

}  // namespace

/// The first of the messages that /undo forgets; their number where there is none.
size_t Conversation::begin_of_last_turn() const {
  size_t begin = messages_.size();
  const bool has_answer = begin > 0 && messages_.back().role == "assistant";
  if (has_answer) --begin;
  const size_t behind_results = begin;
  while (begin > 0 && messages_[begin - 1].role == "tool") --begin;
  if (has_answer && begin == behind_results && begin > 0) --begin;
  return begin;
}

void Conversation::give_result(const std::string& text) {
  const auto is_result = [](const vitrine::ChatMessage& message) { return message.role == "tool"; };
  const auto answer = std::ranges::find_if_not(messages_.rbegin(), messages_.rend(), is_result);
  const auto given = static_cast<size_t>(answer - messages_.rbegin());
  const auto calls = answer == messages_.rend() ? nlohmann::ordered_json() : calls_of(*answer);
  if (given >= calls.size()) {
    return refuse("/tool: no call waits for a result; expected an answer with calls before it");
  }
  Messages messages = messages_;
  messages.push_back({"tool", text, result_fields(calls[given])});
  if (given + 1 < calls.size()) {
    messages_ = std::move(messages);
    output_.note(fmt::format("{} of {} calls have their result", given + 1, calls.size()));
    return;
  }
  const auto prompt = prompt_of(messages);
  if (!prompt) return;
  messages_ = std::move(messages);
  this->answer(*prompt);
}

}  // namespace cli
