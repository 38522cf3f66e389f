// SPDX-License-Identifier: Apache-2.0
// Mistral: a list as JSON, or since Small 3.2 calls of a head and arguments:
//
//   [THINK]…[/THINK]…[TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "…"}]
//   [TOOL_CALLS]f[CALL_ID]…[ARGS]{…}
#include "call_tags.h"
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

/// A template that knows no [ARGS] writes a list.
std::string mistral_call_tags(const CallRequest& request) {
  TaggedCalls calls;
  calls.reasoning = {"[THINK]", "[/THINK]"};
  calls.marks = {"[TOOL_CALLS]"};
  calls.excludes = {"[TOOL_CALLS]"};  // it ends the arguments
  calls.calls_end_reasoning = true;
  if (request.template_source.find("[ARGS]") != std::string_view::npos) {
    calls.before = "[TOOL_CALLS]";
    calls.head = [](std::string_view function) {
      return tag_literal(std::string(function) + "[ARGS]");
    };
    return tagged_call_tags(calls, request);
  }
  calls.open = "[TOOL_CALLS][";
  calls.close = "]";
  calls.before = "{\"name\": ";
  calls.separator = ", ";
  calls.after = "}";
  calls.head = [](std::string_view function) {
    return tag_literal(json_text(function) + ", \"arguments\": ");
  };
  calls.tail =
      tag_sequence({tag_literal(", \"id\": \""), tag_regex("[a-zA-Z0-9]{9}"), tag_literal("\"")});
  return tagged_call_tags(calls, request);
}

OutputFormat mistral_format() {
  return {.name = "mistral",
          .rank = 25,
          .signs = {"[TOOL_CALLS]"},
          .marks = {"[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
          .make =
              [](std::string_view prompt, const ToolTypes& tools) {
                TaggedSyntax syntax;
                syntax.reasoning = {{"[THINK]", "[/THINK]"}};
                syntax.calls = {{"[TOOL_CALLS]", ""}};
                syntax.calls_end_reasoning = true;
                syntax.read_calls = read_json_calls;
                syntax.separator = "[ARGS]";
                syntax.read_head = read_mistral_head;
                syntax.headless = "[{";
                return make_tagged_reader(std::move(syntax), prompt, tools);
              },
          .call_tags = mistral_call_tags};
}

VITRINE_REGISTER_OUTPUT_FORMAT(mistral_format);

}  // namespace

}  // namespace vitrine::chat
