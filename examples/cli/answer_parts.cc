// SPDX-License-Identifier: Apache-2.0
#include "answer_parts.h"

#include <fmt/format.h>

#include <cstdio>

#include "closing_note.h"

namespace cli {

void ReasoningText::add(std::string_view text) {
  if (text.empty() || is_quiet()) return;
  if (!is_open_) std::fputs("vitrine: reasoning: ", stderr);
  is_open_ = true;
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void ReasoningText::end() {
  if (is_open_) std::fputs("\n", stderr);
  is_open_ = false;
}

std::string calls_text(const vitrine::ChatAnswer& parts) {
  std::string text;
  for (const vitrine::ToolCall& call : parts.tool_calls) {
    text += fmt::format("{}({})\n", call.name, call.arguments);
  }
  return text;
}

std::string call_id(const vitrine::ChatAnswer& parts, size_t index) {
  const vitrine::ToolCall& call = parts.tool_calls[index];
  if (!call.id.empty()) return call.id;
  const std::string hash = vitrine::sha256_of_text(call.name + call.arguments);
  return fmt::format("call_{}_{}", index, hash.substr(0, 16));
}

void write_calls(const vitrine::ChatAnswer& parts) {
  for (const vitrine::ToolCall& call : parts.tool_calls) {
    write_note(fmt::format("the answer calls {} with {}", call.name, call.arguments));
  }
}

void add_parts(const vitrine::ChatAnswer& parts, nlohmann::ordered_json& json) {
  if (!parts.reasoning.empty()) json["reasoning"] = parts.reasoning;
  for (size_t index = 0; index < parts.tool_calls.size(); ++index) {
    const vitrine::ToolCall& call = parts.tool_calls[index];
    json["tool_calls"].push_back(
        {{"id", call_id(parts, index)},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
}

}  // namespace cli
