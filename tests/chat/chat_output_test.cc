// SPDX-License-Identifier: Apache-2.0
#include "vitrine/chat_output.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/tokenizer/tokenizer_json.h"

namespace vitrine {
namespace {

ChatAnswer take_apart(std::string_view format, std::string_view text,
                      const ChatOutputOptions& options = {}) {
  ChatOutputParser parser(format, options);
  parser.add(text);
  parser.finish();
  return parser.answer();
}

TEST(ChatOutput, PlainTextIsContentToTheByte) {
  for (const char* text : {"", " \n", "\n a <think> b </think>\n ", "<tool_call>{}</tool_call>"}) {
    EXPECT_EQ(take_apart("plain", text).content, text);
  }
  EXPECT_EQ(take_apart("hermes", "\n a < b\n\n").content, "\n a < b\n\n");
}

TEST(ChatOutput, ArgumentsComeAsTheyAreWritten) {
  ChatOutputParser parser("harmony", {.prompt = "<|start|>assistant"});
  EXPECT_TRUE(parser.add("<|channel|>commentary to=functions.f <|constrain|>json<|mess").empty());
  std::vector<ChatDelta> deltas = parser.add("age|>{\"a\": ");
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].part, ChatPart::kToolCall);
  EXPECT_EQ(deltas[0].text, "f");
  EXPECT_EQ(deltas[0].call, 0);
  EXPECT_EQ(deltas[1].part, ChatPart::kToolArguments);
  EXPECT_EQ(deltas[1].text, "{\"a\":");
  deltas = parser.add("1}<|call|>");
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].text, " 1}");
  EXPECT_TRUE(parser.finish().empty());
  EXPECT_EQ(parser.answer().tool_calls.at(0).arguments, "{\"a\": 1}");
}

TEST(ChatOutput, ReasoningThatThePromptOpened) {
  const ChatAnswer answer =
      take_apart("hermes", "hm\n</think>\n\nTwo.", {.prompt = "<|im_start|>assistant\n<think>\n"});
  EXPECT_EQ(answer.reasoning, "hm");
  EXPECT_EQ(answer.content, "Two.");
  // One that was opened and closed is over.
  EXPECT_EQ(take_apart("hermes", "Two.", {.prompt = "<think>\n\n</think>\n\n"}).content, "Two.");
  EXPECT_EQ(take_apart("hermes", "never closed", {.prompt = "<think>"}).reasoning, "never closed");
}

TEST(ChatOutput, WhatIsNoCallIsContent) {
  for (const char* text :
       {"<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"name\": \"f\"", "<tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\" 1}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"mood\": \"good\"}</tool_call>"}) {
    const ChatAnswer answer = take_apart("hermes", text);
    EXPECT_EQ(answer.content, text);
    EXPECT_TRUE(answer.tool_calls.empty()) << text;
  }
  // The mark that closes a call may stand in one of its texts; its own may be missing at the end.
  const ChatAnswer answer =
      take_apart("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}})");
  ASSERT_EQ(answer.tool_calls.size(), 1u);
  EXPECT_EQ(answer.tool_calls[0].arguments, R"({"a": "</tool_call>"})");
  // A bracket within a text closes no arguments, even where the answer was cut off behind it.
  const std::string whole = "<|tool_call>call:f{a:<|\"|>1<|\"|>}<tool_call|>";
  for (const std::string cut :
       {"<|tool_call>call:f{a:<|\"|>{1}", "<|tool_call>call:f{a:[{}],b:<|\"|>}",
        "<|tool_call>call:f{a:<|\"|>}<tool_call|>"}) {
    const ChatAnswer second = take_apart("gemma4", whole + cut);
    EXPECT_EQ(second.content, cut);
    ASSERT_EQ(second.tool_calls.size(), 1u) << cut;
    EXPECT_EQ(second.tool_calls[0].arguments, R"({"a": "1"})");
  }
}

TEST(ChatOutput, BareTextIsWhatItsSchemaSays) {
  constexpr const char* kText =
      "<tool_call>f<arg_key>a</arg_key><arg_value>5</arg_value><arg_key>b</arg_key>"
      "<arg_value>5</arg_value></tool_call>";
  constexpr const char* kTools =
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
           "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}}])";
  EXPECT_EQ(take_apart("glm", kText).tool_calls.at(0).arguments, R"({"a": 5, "b": 5})");
  EXPECT_EQ(take_apart("glm", kText, {.tools_json = kTools}).tool_calls.at(0).arguments,
            R"({"a": "5", "b": 5})");
}

TEST(ChatOutput, BareTextIsOneOfTheTypesThatItsSchemaAllows) {
  const struct {
    const char *schema, *text, *json;
  } cases[] = {
      {R"({"type": "string"})", "true", R"("true")"},
      {R"({"type": "string"})", "None", R"("None")"},
      {R"({"type": "integer"})", " 5 ", "5"},
      {R"({"type": "integer"})", "five", R"("five")"},
      {R"({"type": "boolean"})", "True", "true"},
      {R"({"type": ["string", "null"]})", "null", "null"},
      {R"({"type": ["string", "null"]})", "None", "null"},
      {R"({"type": ["string", "null"]})", "5", R"("5")"},
      {R"({"type": ["string", "integer"]})", "5", "5"},
      {R"({"type": ["string", "integer"]})", "5.5", R"("5.5")"},
      {R"({"type": ["string", "number"]})", "5", "5"},
      {R"({"anyOf": [{"type": "string"}, {"type": "object"}]})", R"({"a": 1})", R"({"a": 1})"},
      {R"({"anyOf": [{"type": "string"}, {"type": "object"}]})", "[1]", R"("[1]")"},
      {R"({"oneOf": [{"type": "string"}, {"$ref": "#/x"}]})", "7", "7"},
      {R"({"enum": ["1", "2"]})", "1", R"("1")"},
      {R"({"enum": ["1", 2, null]})", "2", "2"},
      {R"({"enum": ["1", 2, null]})", "1", "1"},
      {R"({"const": "0"})", "0", R"("0")"},
      {R"({"type": "string", "nullable": true})", "null", "null"},
      {R"({"description": "anything"})", "5", "5"},
      {R"({"description": "anything"})", R"("5")", R"("\"5\"")"},
      {R"(true)", "5", "5"},
      {R"({"type": 7, "anyOf": 3, "enum": "x"})", "5", "5"},
  };
  for (const auto& [schema, text, json] : cases) {
    const std::string tools =
        R"([{"name": "f", "parameters": {"properties": {"a": )" + std::string(schema) + "}}}]";
    const std::string call = "<tool_call>f<arg_key>a</arg_key><arg_value>" + std::string(text) +
                             "</arg_value></tool_call>";
    EXPECT_EQ(take_apart("glm", call, {.tools_json = tools}).tool_calls.at(0).arguments,
              R"({"a": )" + std::string(json) + "}")
        << schema << " " << text;
  }
}

TEST(ChatOutput, AnswersBecomeMessages) {
  ChatAnswer answer;
  answer.content = "a \"b\" \xff";
  EXPECT_EQ(answer.message_json(),
            "{\"role\": \"assistant\", \"content\": \"a \\\"b\\\" \xef\xbf\xbd\"}");
  answer =
      take_apart("kimi-k2",
                 "<think>hm</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                 "<|tool_call_argument_begin|>{\"a\": [1]}<|tool_call_end|><|tool_call_begin|>g"
                 "<|tool_call_argument_begin|>{\"a\"<|tool_call_end|>"
                 "<|tool_calls_section_end|>");
  EXPECT_EQ(answer.message_json(),
            R"({"role": "assistant", "content": "", "reasoning_content": "hm", "reasoning": "hm", )"
            R"("thinking": "hm", "tool_calls": [{"type": "function", "id": "functions.f:0", )"
            R"("function": {"name": "f", "arguments": {"a": [1]}}}, {"type": "function", )"
            R"("id": "g", "function": {"name": "g", "arguments": "{\"a\""}}]})");
}

TEST(ChatOutput, MessagesHaveFurtherFields) {
  const ChatTemplate chat = ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.thinking }}:"
      "{{ m.tool_calls[0].function.arguments.a }}:{{ m.tool_call_id }};{% endfor %}",
      "t");
  ChatAnswer answer;
  answer.reasoning = "hm";
  answer.tool_calls = {{.id = "", .name = "f", .arguments = "{\"a\": 7}"}};
  const std::vector<ChatMessage> messages = {
      {"user", "x"}, answer.message(), {"tool", "y", "{\"tool_call_id\": \"i\"}"}};
  EXPECT_EQ(chat.render(std::span(messages).subspan(1, 1)), "assistant::hm:7:;");
  EXPECT_EQ(ChatTemplate::parse("{{ messages[2].tool_call_id }}", "t").render(messages), "i");
  for (const char* fields : {"[]", "{", "7"}) {
    const std::vector<ChatMessage> bad = {{"user", "x", fields}};
    try {
      chat.render(bad);
      ADD_FAILURE() << fields;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_EQ(std::string_view(error.what()).find("the fields of a message are "), 0u);
    }
  }
}

TEST(ChatOutput, FormatsAreFound) {
  const std::vector<std::string> names = chat_output_formats();
  EXPECT_EQ(names.size(), 13u);
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(find_chat_output_format("{{ '<|channel|>' }}{{ '<|message|>' }}"), "harmony");
  EXPECT_EQ(find_chat_output_format("<tool_call><function=a>"), "qwen3-coder");
  EXPECT_EQ(find_chat_output_format("<tool_call> <think>"), "hermes");
  EXPECT_EQ(find_chat_output_format("<think>"), "think");
  EXPECT_EQ(find_chat_output_format("{{ messages }}"), "plain");

  // Where the template says nothing, the vocabulary does.
  nlohmann::json file = test::small_tokenizer();
  const auto found = [&](std::string_view source) {
    return find_chat_output_format(ChatTemplate::parse(source, "t"),
                                   Tokenizer::from_json(file.dump(), "tokenizer.json"));
  };
  EXPECT_EQ(found("{{ messages }}"), "plain");
  nlohmann::json token = file["added_tokens"].back();
  token["id"] = 263, token["content"] = "<|tool_call_start|>";
  file["added_tokens"].push_back(token);
  EXPECT_EQ(found("{{ messages }}"), "lfm2");
  EXPECT_EQ(found("{{ '<think>' }}"), "think");
}

TEST(ChatOutput, MarksAreSpecialTokensThatBelongIntoTheText) {
  const ChatOutputParser parser("harmony");
  EXPECT_EQ(parser.format(), "harmony");
  EXPECT_TRUE(parser.is_mark("<|channel|>"));
  EXPECT_FALSE(parser.is_mark("<|endoftext|>"));
  EXPECT_FALSE(ChatOutputParser("plain").is_mark("<|channel|>"));
}

TEST(ChatOutput, MistakesOfTheHost) {
  const auto message = [](auto make) -> std::string {
    try {
      make();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([] { ChatOutputParser("morse"); }).find("the format of answers is 'morse'; "),
            0u);
  EXPECT_EQ(message([] { ChatOutputParser("glm", {.tools_json = "{}"}); }),
            "the tools of a conversation are no JSON array; expected a list of functions");
}

TEST(ChatOutput, MovesKeepWhatWasRead) {
  ChatOutputParser one("think");
  one.add("<think>a</thi");
  ChatOutputParser other = std::move(one);
  other.add("nk>b");
  other.finish();
  EXPECT_EQ(other.answer().reasoning, "a");
  EXPECT_EQ(other.answer().content, "b");
}

}  // namespace
}  // namespace vitrine
