// SPDX-License-Identifier: Apache-2.0
// DeepSeek V3.2 and V4:
//
//   <｜DSML｜function_calls>
//   <｜DSML｜invoke name="f">
//   <｜DSML｜parameter name="x" string="true">bare text</｜DSML｜parameter>
//   </｜DSML｜invoke>
//   </｜DSML｜function_calls>
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

CallRead read_dsml_calls(std::string_view text, const ToolTypes&, std::vector<ToolCall>& calls) {
  constexpr std::string_view kNext[] = {"<｜DSML｜parameter", "</｜DSML｜invoke>"};
  CallText rest(text);
  rest.skip_space();
  do {
    std::string_view name, argument, value;
    if (!rest.take("<｜DSML｜invoke name=\"") || !rest.take_until("\">", name)) {
      return rest.failure();
    }
    ArgumentsWriter arguments;
    for (rest.skip_space(); !rest.take("</｜DSML｜invoke>"); rest.skip_space()) {
      if (!rest.take("<｜DSML｜parameter name=\"") || !rest.take_until("\" string=\"", argument)) {
        return rest.failure();
      }
      const bool is_text = rest.take("true\">");
      if (!is_text && !rest.take("false\">")) return rest.failure();
      if (!rest.take_until("</｜DSML｜parameter>", kNext, value)) return rest.failure();
      arguments.add(argument,
                    is_text || !is_json(value) ? json_text(value) : std::string(trim_space(value)));
    }
    calls.push_back({.id = {}, .name = std::string(name), .arguments = arguments.take()});
    rest.skip_space();
  } while (!rest.at_end());
  return CallRead::kCalls;
}

OutputFormat dsml_format() {
  return {.name = "dsml",
          .rank = 12,
          .signs = {"DSML", "<think>"},
          .marks = {"<think>", "</think>", "｜DSML｜"},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"<think>", "</think>"}};
            syntax.calls = {{"<｜DSML｜function_calls>", "</｜DSML｜function_calls>"},
                            {"<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"}};
            syntax.calls_end_reasoning = true;
            syntax.read_calls = read_dsml_calls;
            return make_tagged_reader(std::move(syntax), prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(dsml_format);

}  // namespace

}  // namespace vitrine::chat
