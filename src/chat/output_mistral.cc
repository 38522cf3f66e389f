// SPDX-License-Identifier: Apache-2.0
// Mistral: a list as JSON, or since Small 3.2 calls of a head and arguments:
//
//   [THINK]…[/THINK]…[TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "…"}]
//   [TOOL_CALLS]f[CALL_ID]…[ARGS]{…}
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

bool read_mistral_head(std::string_view head, ToolCall& call) {
  constexpr std::string_view kCallId = "[CALL_ID]";
  const size_t at = head.find(kCallId);
  call.name = trim_space(head.substr(0, at));
  if (at != head.npos) call.id = trim_space(head.substr(at + kCallId.size()));
  return !call.name.empty() && call.name.find_first_of(" \t\r\n[") == std::string::npos;
}

OutputFormat mistral_format() {
  return {.name = "mistral",
          .rank = 25,
          .signs = {"[TOOL_CALLS]"},
          .marks = {"[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"[THINK]", "[/THINK]"}};
            syntax.calls = {{"[TOOL_CALLS]", ""}};
            syntax.calls_end_reasoning = true;
            syntax.read_calls = read_json_calls;
            syntax.separator = "[ARGS]";
            syntax.read_head = read_mistral_head;
            syntax.headless = "[{";
            return make_tagged_reader(std::move(syntax), prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(mistral_format);

}  // namespace

}  // namespace vitrine::chat
