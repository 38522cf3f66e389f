// SPDX-License-Identifier: Apache-2.0
// DeepSeek V3.1, and R1 and V3 before it, which write a kind of call, the name on a line of its
// own, and the arguments in a block of code:
//
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
#include "call_tags.h"
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

constexpr std::string_view kSeparator = "<｜tool▁sep｜>";

/// "function" is R1's kind of call: then the rest of it has the name.
bool read_deepseek_head(std::string_view head, ToolCall& call) {
  head = trim_space(head);
  if (head == "function") return true;
  call.name = head;
  return !head.empty() && head.find_first_of(" \t\r\n<") == head.npos;
}

CallRead read_code_block(std::string_view text, const ToolTypes&, std::vector<ToolCall>& calls) {
  CallText rest(text);
  std::string_view kind, name, arguments;
  if (!rest.take_until(kSeparator, kind) || !rest.take_until("\n", name)) return rest.failure();
  rest.skip_space();
  if (!rest.take("```json") || !rest.take_until("```", arguments)) return rest.failure();
  rest.skip_space();
  name = trim_space(name);
  if (name.empty() || !rest.at_end()) return CallRead::kNoCall;
  calls.push_back(
      {.id = {}, .name = std::string(name), .arguments = std::string(trim_space(arguments))});
  return CallRead::kCalls;
}

/// A template that writes blocks of code is R1's or V3's.
std::string deepseek_call_tags(const CallRequest& request) {
  TaggedCalls calls;
  calls.reasoning = {"<think>", "</think>"};
  calls.marks = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                 "<｜tool▁call▁end｜>"};
  calls.open = calls.marks[0];
  calls.close = calls.marks[1];
  calls.before = calls.marks[2];
  calls.after = calls.marks[3];
  calls.excludes = calls.marks;
  calls.calls_end_reasoning = true;
  if (request.template_source.find("```json") == std::string_view::npos) {
    calls.head = [](std::string_view function) {
      return tag_literal(std::string(function) + std::string(kSeparator));
    };
    return tagged_call_tags(calls, request);
  }
  calls.head = [](std::string_view function) {
    return tag_literal("function" + std::string(kSeparator) + std::string(function) +
                       "\n```json\n");
  };
  calls.tail = tag_literal("\n```");
  calls.separator = "\n";
  calls.excludes.push_back("```");
  return tagged_call_tags(calls, request);
}

OutputFormat deepseek_format() {
  return {.name = "deepseek",
          .rank = 20,
          .signs = {"<｜tool▁calls▁begin｜>", kSeparator},
          .marks = {"<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", kSeparator},
          .make =
              [](std::string_view prompt, const ToolTypes& tools) {
                TaggedSyntax syntax;
                syntax.reasoning = {{"<think>", "</think>"}};
                syntax.sections = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"};
                syntax.calls = {{"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"}};
                syntax.calls_end_reasoning = true;
                syntax.read_calls = read_code_block;
                syntax.separator = kSeparator;
                syntax.read_head = read_deepseek_head;
                return make_tagged_reader(std::move(syntax), prompt, tools);
              },
          .call_tags = deepseek_call_tags};
}

VITRINE_REGISTER_OUTPUT_FORMAT(deepseek_format);

}  // namespace

}  // namespace vitrine::chat
