// SPDX-License-Identifier: Apache-2.0
// Kimi K2:
//
//   <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}
//   <|tool_call_end|><|tool_calls_section_end|>
#include <algorithm>

#include "call_tags.h"
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

/// "functions.f:0" is the call's id.
bool read_kimi_head(std::string_view head, ToolCall& call) {
  head = trim_space(head);
  call.id = head;
  const size_t colon = head.rfind(':');
  if (colon != head.npos &&
      std::ranges::all_of(head.substr(colon + 1), [](char c) { return c >= '0' && c <= '9'; })) {
    head = head.substr(0, colon);
  }
  constexpr std::string_view kFunctions = "functions.";
  if (head.starts_with(kFunctions)) head.remove_prefix(kFunctions.size());
  call.name = head;
  return !head.empty() && head.find_first_of(" \t\r\n<") == head.npos;
}

std::string kimi_k2_call_tags(const CallRequest& request) {
  TaggedCalls calls;
  calls.reasoning = {"<think>", "</think>"};
  calls.marks = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                 "<|tool_call_begin|>", "<|tool_call_end|>"};
  calls.open = calls.marks[0];
  calls.close = calls.marks[1];
  calls.before = calls.marks[2];
  calls.after = calls.marks[3];
  calls.excludes = calls.marks;
  calls.calls_end_reasoning = true;
  calls.head = [](std::string_view function) {
    return tag_sequence({tag_literal("functions." + std::string(function) + ":"),
                         tag_regex("[0-9]|[1-9][0-9]"),
                         tag_literal("<|tool_call_argument_begin|>")});
  };
  return tagged_call_tags(calls, request);
}

OutputFormat kimi_k2_format() {
  return {
      .name = "kimi-k2",
      .rank = 10,
      .signs = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>"},
      .marks = {"<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
      .make =
          [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"<think>", "</think>"}};
            syntax.sections = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"};
            syntax.calls = {{"<|tool_call_begin|>", "<|tool_call_end|>"}};
            syntax.calls_end_reasoning = true;
            syntax.separator = "<|tool_call_argument_begin|>";
            syntax.read_head = read_kimi_head;
            return make_tagged_reader(std::move(syntax), prompt, tools);
          },
      .call_tags = kimi_k2_call_tags};
}

VITRINE_REGISTER_OUTPUT_FORMAT(kimi_k2_format);

}  // namespace

}  // namespace vitrine::chat
