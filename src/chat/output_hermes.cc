// SPDX-License-Identifier: Apache-2.0
// Hermes, Qwen2.5, Qwen3 and many others:
//
//   <think>…</think>…<tool_call>{"name": "f", "arguments": {…}}</tool_call>
//
// and those that write a list of calls between <tool_calls> or <TOOLCALL> (Apriel, Nemotron 2).
#include "call_tags.h"
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

std::string hermes_call_tags(const CallRequest& request) {
  TaggedCalls calls;
  calls.reasoning = {"<think>", "</think>"};
  calls.marks = {"<tool_call>", "</tool_call>", "<tool_calls>", "<TOOLCALL>"};
  calls.before = "<tool_call>\n{\"name\": ";
  calls.after = "}\n</tool_call>";
  calls.separator = "\n";
  calls.head = [](std::string_view function) {
    return tag_literal(json_text(function) + ", \"arguments\": ");
  };
  return tagged_call_tags(calls, request);
}

OutputFormat hermes_format() {
  return {.name = "hermes",
          .rank = 80,
          .signs = {"<tool_call>"},
          .marks = {"<think>", "</think>", "<tool_call>", "</tool_call>"},
          .make =
              [](std::string_view prompt, const ToolTypes& tools) {
                TaggedSyntax syntax;
                syntax.reasoning = {{"<think>", "</think>"}};
                syntax.calls = {{"<tool_call>", "</tool_call>"},
                                {"<tool_calls>", "</tool_calls>"},
                                {"<TOOLCALL>", "</TOOLCALL>"}};
                syntax.read_calls = read_json_calls;
                return make_tagged_reader(std::move(syntax), prompt, tools);
              },
          .call_tags = hermes_call_tags};
}

VITRINE_REGISTER_OUTPUT_FORMAT(hermes_format);

}  // namespace

}  // namespace vitrine::chat
