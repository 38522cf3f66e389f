// SPDX-License-Identifier: Apache-2.0
// Gemma 4:
//
//   <|channel>thought
//   …
//   <channel|>…<|tool_call>call:f{x:<|"|>text<|"|>,y:[1,true]}<tool_call|>
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

constexpr std::string_view kQuote = "<|\"|>";
constexpr int kMaxDepth = 64;

/// Gemma's values as JSON.
class GemmaValues {
 public:
  explicit GemmaValues(CallText& text) : text_(text) {}

  bool read(std::string& json, int depth = 0) {
    if (depth > kMaxDepth) return false;
    if (text_.rest().starts_with('{')) return read_object(json, depth);
    if (text_.rest().starts_with('[')) return read_list(json, depth);
    std::string_view value;
    if (text_.take(kQuote)) {
      if (!text_.take_until(kQuote, value)) return false;
      json += json_text(value);
      return true;
    }
    const size_t end = text_.rest().find_first_of(",]}");
    if (end == std::string_view::npos) {
      text_.mark_short();
      return false;
    }
    value = trim_space(text_.rest().substr(0, end));
    if (value.empty()) return false;
    text_.remove(end);
    if (value == "None") value = "null";  // as templates write it
    json += is_json(value) ? std::string(value) : json_text(value);
    return true;
  }

 private:
  bool read_object(std::string& json, int depth) {
    text_.take("{");
    json += '{';
    for (bool is_first = true; !at_close("}"); is_first = false) {
      if (!is_first && !text_.take(",")) return false;
      json += is_first ? "" : ", ";
      text_.skip_space();
      std::string_view name;
      if (text_.take(kQuote) ? !text_.take_until(kQuote, name) || !text_.take(":")
                             : !text_.take_until(":", name)) {
        return false;
      }
      json += json_text(trim_space(name)) + ": ";
      text_.skip_space();
      if (!read(json, depth + 1)) return false;
    }
    json += '}';
    return true;
  }

  bool read_list(std::string& json, int depth) {
    text_.take("[");
    json += '[';
    for (bool is_first = true; !at_close("]"); is_first = false) {
      if (!is_first && !text_.take(",")) return false;
      json += is_first ? "" : ", ";
      text_.skip_space();
      if (!read(json, depth + 1)) return false;
    }
    json += ']';
    return true;
  }

  bool at_close(std::string_view bracket) {
    text_.skip_space();
    return text_.take(bracket);
  }

  CallText& text_;
};

CallRead read_gemma_call(std::string_view text, const ToolTypes&, std::vector<ToolCall>& calls) {
  CallText rest(text);
  rest.skip_space();
  if (!rest.take("call:")) return rest.failure();
  const size_t end = rest.rest().find('{');
  if (end == std::string_view::npos) return CallRead::kNeedsMore;
  ToolCall call;
  call.name = trim_space(rest.rest().substr(0, end));
  rest.remove(end);
  if (call.name.empty() || !GemmaValues(rest).read(call.arguments)) return rest.failure();
  rest.skip_space();
  if (!rest.at_end()) return CallRead::kNoCall;
  calls.push_back(std::move(call));
  return CallRead::kCalls;
}

OutputFormat gemma4_format() {
  return {.name = "gemma4",
          .rank = 15,
          .signs = {"<|channel>", "<|tool_call>"},
          .marks = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", kQuote},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"<|channel>thought", "<channel|>"}};
            syntax.calls = {{"<|tool_call>", "<tool_call|>"}};
            syntax.calls_end_reasoning = true;
            syntax.read_calls = read_gemma_call;
            return make_tagged_reader(std::move(syntax), prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(gemma4_format);

}  // namespace

}  // namespace vitrine::chat
