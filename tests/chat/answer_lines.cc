// SPDX-License-Identifier: Apache-2.0
// Takes answers apart, for answer_test.py: one JSON object a line with "format" or "template",
// "text", "cuts" (offsets in bytes, ascending), "prompt" and "tools"; one line back with the
// answer's parts, or with "error".
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "vitrine/chat_output.h"

namespace {

using Json = nlohmann::ordered_json;

Json take_apart(const Json& input) {
  const std::string format =
      input.contains("format")
          ? input.at("format").get<std::string>()
          : vitrine::find_chat_output_format(input.at("template").get<std::string>());
  if (!input.contains("text")) return {{"format", format}};
  const std::string prompt = input.value("prompt", "");
  const std::string tools = input.contains("tools") ? input.at("tools").dump() : "";
  vitrine::ChatOutputParser parser(format, {.prompt = prompt, .tools_json = tools});
  vitrine::ChatAnswer sum;
  int deltas = 0;
  const auto take = [&](const std::vector<vitrine::ChatDelta>& found) {
    for (const vitrine::ChatDelta& delta : found) {
      ++deltas;
      switch (delta.part) {
        case vitrine::ChatPart::kContent: sum.content += delta.text; break;
        case vitrine::ChatPart::kReasoning: sum.reasoning += delta.text; break;
        case vitrine::ChatPart::kToolCall:
          sum.tool_calls.push_back({.id = delta.id, .name = delta.text, .arguments = {}});
          break;
        case vitrine::ChatPart::kToolArguments:
          sum.tool_calls.at(static_cast<size_t>(delta.call)).arguments += delta.text;
      }
    }
  };
  const std::string text = input.at("text").get<std::string>();
  size_t begin = 0;
  for (const Json& cut : input.value("cuts", Json::array())) {
    const auto end = cut.get<size_t>();
    take(parser.add(std::string_view(text).substr(begin, end - begin)));
    begin = end;
  }
  take(parser.add(std::string_view(text).substr(begin)));
  take(parser.finish());
  const vitrine::ChatAnswer& answer = parser.answer();
  if (sum.message_json() != answer.message_json()) return {{"error", "the deltas differ"}};
  Json calls = Json::array();
  for (const vitrine::ToolCall& call : answer.tool_calls) {
    calls.push_back({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
  }
  return {{"format", format},
          {"content", answer.content},
          {"reasoning", answer.reasoning},
          {"tool_calls", calls},
          {"deltas", deltas},
          {"message", Json::parse(answer.message_json())}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    Json output;
    try {
      output = take_apart(Json::parse(line));
    } catch (const std::exception& error) {
      output = {{"error", error.what()}};
    }
    std::cout << output.dump() << "\n";
  }
  return std::cout.flush() ? 0 : 1;
}
