// SPDX-License-Identifier: Apache-2.0
// LFM2 and LFM2.5, which write calls as Python does:
//
//   <|tool_call_start|>[f(x='text', y=[1, True]), g()]<|tool_call_end|>
//
// and, where they are asked for it, as a list of JSON objects.
#include <algorithm>

#include "tagged_output.h"

namespace vitrine::chat {

namespace {

constexpr int kMaxPythonDepth = 64;

/// Python's values as JSON.
class PythonValues {
 public:
  explicit PythonValues(CallText& text) : text_(text) {}

  bool read(std::string& json, int depth = 0) {
    if (depth > kMaxPythonDepth) return false;
    const std::string_view rest = text_.rest();
    if (rest.starts_with('\'') || rest.starts_with('"')) return read_text(json, rest[0]);
    if (text_.take("[")) return read_list(json, depth);
    if (text_.take("{")) return read_dict(json, depth);
    const size_t end = rest.find_first_of(",)]}:");
    if (end == rest.npos) {
      text_.mark_short();
      return false;
    }
    const std::string_view word = trim_space(rest.substr(0, end));
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}};
    const auto* found =
        std::ranges::find(kWords, word, &std::pair<std::string_view, std::string_view>::first);
    if (found == std::end(kWords) && !is_json(word)) return false;
    json += found == std::end(kWords) ? word : found->second;
    text_.remove(end);
    return true;
  }

 private:
  /// A quotation mark ends a text where Python could go on behind it: templates escape none.
  bool read_text(std::string& json, char quote) {
    const std::string_view rest = text_.rest();
    std::string value;
    for (size_t at = 1; at < rest.size(); ++at) {
      if (rest[at] == '\\' && at + 1 < rest.size()) {
        constexpr std::string_view kEscapes = "\\'\"ntr", kMeanings = "\\'\"\n\t\r";
        const size_t which = kEscapes.find(rest[at + 1]);
        if (which != kEscapes.npos) {
          value += kMeanings[which];
          ++at;
          continue;
        }
      }
      if (rest[at] == quote && ends_text(rest.substr(at + 1))) {
        json += json_text(value);
        text_.remove(at + 1);
        return true;
      }
      value += rest[at];
    }
    text_.mark_short();
    return false;
  }

  static bool ends_text(std::string_view behind) {
    const std::string_view follows = trim_space(behind);
    return follows.empty() || std::string_view(",)]}:").find(follows[0]) != std::string_view::npos;
  }

  bool read_list(std::string& json, int depth) {
    json += '[';
    for (bool is_first = true; !at_close("]"); is_first = false) {
      if (!is_first && !take_comma(json)) return false;
      if (!read(json, depth + 1)) return false;
    }
    json += ']';
    return true;
  }

  bool read_dict(std::string& json, int depth) {
    json += '{';
    for (bool is_first = true; !at_close("}"); is_first = false) {
      if (!is_first && !take_comma(json)) return false;
      const char quote = text_.rest().empty() ? '\0' : text_.rest()[0];
      if ((quote != '"' && quote != '\'') || !read_text(json, quote)) return false;
      text_.skip_space();
      if (!text_.take(":")) return false;
      json += ": ";
      text_.skip_space();
      if (!read(json, depth + 1)) return false;
    }
    json += '}';
    return true;
  }

  bool take_comma(std::string& json) {
    json += ", ";
    const bool is_there = text_.take(",");
    text_.skip_space();
    return is_there;
  }

  bool at_close(std::string_view bracket) {
    text_.skip_space();
    return text_.take(bracket);
  }

  CallText& text_;
};

bool read_python_call(CallText& rest, ToolCall& call) {
  std::string_view name;
  if (!rest.take_until("(", name)) return false;
  call.name = trim_space(name);
  if (call.name.empty() || call.name.find_first_of(" \t\r\n='\"[]") != std::string::npos)
    return false;
  ArgumentsWriter arguments;
  rest.skip_space();
  for (bool is_first = true; !rest.take(")"); is_first = false) {
    if (!is_first && !rest.take(",")) return false;
    std::string_view argument;
    std::string json;
    if (!rest.take_until("=", argument)) return false;
    rest.skip_space();
    if (!PythonValues(rest).read(json)) return false;
    arguments.add(trim_space(argument), json);
    rest.skip_space();
  }
  call.arguments = arguments.take();
  return true;
}

CallRead read_python_calls(std::string_view text, const ToolTypes& tools,
                           std::vector<ToolCall>& calls) {
  CallText rest(text);
  rest.skip_space();
  if (!rest.take("[")) return rest.failure();
  rest.skip_space();
  if (rest.rest().starts_with('{')) return read_json_calls(text, tools, calls);
  for (bool is_first = true;; is_first = false) {
    rest.skip_space();
    if (rest.take("]")) break;
    if (!is_first && !rest.take(",")) return rest.failure();
    ToolCall call;
    if (!read_python_call(rest, call)) return rest.failure();
    calls.push_back(std::move(call));
  }
  rest.skip_space();
  return rest.at_end() && !calls.empty() ? CallRead::kCalls : CallRead::kNoCall;
}

OutputFormat lfm2_format() {
  return {.name = "lfm2",
          .rank = 35,
          .signs = {"<|tool_call_start|>"},
          .marks = {"<think>", "</think>", "<|tool_call_start|>", "<|tool_call_end|>"},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"<think>", "</think>"}};
            syntax.calls = {{"<|tool_call_start|>", "<|tool_call_end|>"}};
            syntax.calls_end_reasoning = true;
            syntax.read_calls = read_python_calls;
            return make_tagged_reader(std::move(syntax), prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(lfm2_format);

}  // namespace

}  // namespace vitrine::chat
