// SPDX-License-Identifier: Apache-2.0
// Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5, and Seed-OSS with marks of its own:
//
//   <tool_call>
//   <function=f>
//   <parameter=x>
//   bare text
//   </parameter>
//   </function>
//   </tool_call>
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

/// A value stands on lines of its own.
std::string_view without_line_ends(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

CallRead read_function(std::string_view text, const ToolTypes& tools,
                       std::vector<ToolCall>& calls) {
  constexpr std::string_view kNext[] = {"<parameter=", "</function>"};
  CallText rest(text);
  rest.skip_space();
  do {
    std::string_view name, argument, value;
    if (!rest.take("<function=") || !rest.take_until(">", name)) return rest.failure();
    ArgumentsWriter arguments;
    for (rest.skip_space(); !rest.take("</function>"); rest.skip_space()) {
      if (!rest.take("<parameter=") || !rest.take_until(">", argument) ||
          !rest.take_until("</parameter>", kNext, value)) {
        return rest.failure();
      }
      arguments.add(argument, tools.argument(name, argument, without_line_ends(value)));
    }
    calls.push_back({.id = {}, .name = std::string(name), .arguments = arguments.take()});
    rest.skip_space();
  } while (!rest.at_end());
  return CallRead::kCalls;
}

OutputFormat qwen3_coder_format() {
  return {
      .name = "qwen3-coder",
      .rank = 50,
      .signs = {"<function=", "tool_call>"},
      .marks = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<seed:think>",
                "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"},
      .make = [](std::string_view prompt, const ToolTypes& tools) {
        TaggedSyntax syntax;
        syntax.reasoning = {{"<think>", "</think>"}, {"<seed:think>", "</seed:think>"}};
        syntax.calls = {{"<tool_call>", "</tool_call>"}, {"<seed:tool_call>", "</seed:tool_call>"}};
        syntax.read_calls = read_function;
        return make_tagged_reader(std::move(syntax), prompt, tools);
      }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(qwen3_coder_format);

}  // namespace

}  // namespace vitrine::chat
