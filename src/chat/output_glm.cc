// SPDX-License-Identifier: Apache-2.0
// GLM 4.5 and later:
//
//   <tool_call>f
//   <arg_key>x</arg_key>
//   <arg_value>bare text</arg_value>
//   </tool_call>
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

CallRead read_glm_call(std::string_view text, const ToolTypes& tools,
                       std::vector<ToolCall>& calls) {
  constexpr std::string_view kNext[] = {"<arg_key>"};
  const std::string_view name = trim_space(text.substr(0, text.find("<arg_key>")));
  if (name.empty() || name.find_first_of(" \t\r\n<{") != name.npos) return CallRead::kNoCall;
  CallText rest(text.substr(std::min(text.find("<arg_key>"), text.size())));
  ArgumentsWriter arguments;
  for (; !rest.at_end(); rest.skip_space()) {
    std::string_view argument, value;
    if (!rest.take("<arg_key>") || !rest.take_until("</arg_key>", argument)) return rest.failure();
    rest.skip_space();
    if (!rest.take("<arg_value>") || !rest.take_until("</arg_value>", kNext, value)) {
      return rest.failure();
    }
    arguments.add(trim_space(argument), tools.argument(name, trim_space(argument), value));
  }
  calls.push_back({.id = {}, .name = std::string(name), .arguments = arguments.take()});
  return CallRead::kCalls;
}

OutputFormat glm_format() {
  return {.name = "glm",
          .rank = 40,
          .signs = {"<tool_call>", "<arg_key>"},
          .marks = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                    "<arg_value>", "</arg_value>"},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"<think>", "</think>"}};
            syntax.calls = {{"<tool_call>", "</tool_call>"}};
            syntax.read_calls = read_glm_call;
            return make_tagged_reader(std::move(syntax), prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(glm_format);

}  // namespace

}  // namespace vitrine::chat
