// SPDX-License-Identifier: Apache-2.0
// MiniMax-M2:
//
//   <minimax:tool_call>
//   <invoke name="f">
//   <parameter name="x">bare text</parameter>
//   </invoke>
//   </minimax:tool_call>
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

CallRead read_invocations(std::string_view text, const ToolTypes& tools,
                          std::vector<ToolCall>& calls) {
  constexpr std::string_view kNext[] = {"<parameter name=", "</invoke>"};
  CallText rest(text);
  rest.skip_space();
  do {
    std::string_view name, argument, value;
    if (!rest.take("<invoke name=\"") || !rest.take_until("\">", name)) return rest.failure();
    ArgumentsWriter arguments;
    for (rest.skip_space(); !rest.take("</invoke>"); rest.skip_space()) {
      if (!rest.take("<parameter name=\"") || !rest.take_until("\">", argument) ||
          !rest.take_until("</parameter>", kNext, value)) {
        return rest.failure();
      }
      arguments.add(argument, tools.argument(name, argument, value));
    }
    calls.push_back({.id = {}, .name = std::string(name), .arguments = arguments.take()});
    rest.skip_space();
  } while (!rest.at_end());
  return CallRead::kCalls;
}

OutputFormat minimax_m2_format() {
  return {.name = "minimax-m2",
          .rank = 30,
          .signs = {"<minimax:tool_call>", "<invoke name="},
          .marks = {"<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"<think>", "</think>"}};
            syntax.calls = {{"<minimax:tool_call>", "</minimax:tool_call>"}};
            syntax.read_calls = read_invocations;
            return make_tagged_reader(std::move(syntax), prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(minimax_m2_format);

}  // namespace

}  // namespace vitrine::chat
