// SPDX-License-Identifier: Apache-2.0
#include "vitrine/chat_tools.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/tokenizer/tokenizer_json.h"
#include "vitrine/chat_output.h"

namespace vitrine {
namespace {

using nlohmann::json;

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters":
      {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}}},
        {"name": "g", "parameters": {"properties": {}}}, {"name": "h", "parameters": null}])";

/// What is said of bad definitions.
std::string refusal(const std::string& text) {
  try {
    ChatTools::parse(text, "tools.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << text;
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), what.npos);
    EXPECT_TRUE(what.starts_with("tools.json: ")) << what;
    return what;
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

std::string tags_of(std::string_view format, const ToolCallOptions& options) {
  const Tokenizer tokenizer = Tokenizer::from_json(test::small_tokenizer().dump(), "t");
  return tool_call_tags(format, ChatTools::parse(kTools, "tools.json"), tokenizer, options).json;
}

TEST(ChatTools, AreOpenAisOrFunctionsThemselves) {
  const ChatTools tools = ChatTools::parse(kTools, "tools.json");
  ASSERT_EQ(tools.functions().size(), 3u);
  EXPECT_EQ(tools.functions()[0].name, "f");
  // The order of keys stays: models write arguments in it.
  EXPECT_EQ(tools.functions()[0].parameters,
            R"({"type":"object","properties":{"b":{"type":"integer"},"a":{}},)"
            R"("additionalProperties":false})");
  EXPECT_EQ(tools.functions()[1].parameters,
            R"({"type":"object","properties":{},"additionalProperties":false})");
  EXPECT_EQ(json::parse(tools.functions()[2].parameters),
            json::parse(R"({"type": "object", "properties": {}, "additionalProperties": false})"));
  const json definitions = json::parse(tools.json());
  ASSERT_EQ(definitions.size(), 3u);
  EXPECT_EQ(definitions[0], json::parse(kTools)[0]);
  EXPECT_EQ(definitions[1], json::parse(R"({"type": "function", "function": {"name": "g",
                                            "parameters": {"properties": {}}}})"));
}

TEST(ChatTools, ObjectsAreClosedWhereThatAcceptsNothingMore) {
  const auto closed = [](const std::string& schema) {
    const ChatTools tools =
        ChatTools::parse(R"([{"name": "f", "parameters": )" + schema + "}]", "tools.json");
    return json::parse(tools.functions()[0].parameters);
  };
  // An object in each place that is closed.
  const json got = closed(R"({"type": "object", "properties": {
      "a": {"type": "object", "properties": {"x": {}}},
      "b": {"type": "array", "items": {"properties": {}}},
      "c": {"anyOf": [{"properties": {"y": {}}}, {"type": "null"}]},
      "d": {"$ref": "#/$defs/d"}, "e": {"type": "object"}},
      "$defs": {"d": {"properties": {"z": {}}, "required": ["z"]}}})");
  EXPECT_EQ(got["additionalProperties"], false);
  EXPECT_EQ(got["properties"]["a"]["additionalProperties"], false);
  EXPECT_EQ(got["properties"]["b"]["items"]["additionalProperties"], false);
  EXPECT_EQ(got["properties"]["c"]["anyOf"][0]["additionalProperties"], false);
  EXPECT_EQ(got["$defs"]["d"]["additionalProperties"], false);
  EXPECT_FALSE(got["properties"]["e"].contains("additionalProperties"));
  // Those that stay: what they say of others, or how they are combined, needs it.
  for (const char* kept :
       {R"({"type": "object", "properties": {"a": {}}, "additionalProperties": true})",
        R"({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}})",
        R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})",
        R"({"type": "object", "properties": {"a": {}}, "minProperties": 2})",
        R"({"type": "object", "properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]})",
        R"({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["b"]}]})",
        R"({"type": "object", "oneOf": [{"properties": {"a": {}}}, {"required": ["b"]}]})",
        R"({"type": "object", "not": {"properties": {"a": {}}}})"}) {
    EXPECT_EQ(closed(kept), json::parse(kept)) << kept;
  }
}

TEST(ChatTools, BadDefinitionsAreRefusedWithTheirPlace) {
  const struct {
    const char *text, *place, *expected;
  } cases[] = {
      {"", "no JSON", "an array"},
      {"{}", "'#' is {}", "an array"},
      {"[]", "'#' is []", "at least one"},
      {"[7]", "'#/0' is 7", "\"function\""},
      {R"([{"type": "web_search"}])", "'#/0/type'", "\"function\""},
      {R"([{"type": "function"}])", "'#/0'", "an object with \"function\""},
      {R"([{"function": 7}])", "'#/0/function' is 7", "\"name\""},
      {R"([{"function": {}}])", "'#/0/function' is {}", "\"name\""},
      {R"([{"name": "a b"}])", "'#/0/name'", "letters"},
      {R"([{"name": ""}])", "'#/0/name'", "letters"},
      {R"([{"name": "f"}, {"name": "f"}])", "'#/1/name'", "no other function"},
      {R"([{"name": "f", "parameters": []}])", "'#/0/parameters' is []", "JSON Schema"},
      {R"([{"name": "f", "parameters": {"type": "string"}}])", "'#/0/parameters/type'",
       "\"object\""},
  };
  for (const auto& [text, place, expected] : cases) {
    const std::string what = refusal(text);
    EXPECT_NE(what.find(place), what.npos) << what;
    EXPECT_NE(what.find(expected), what.npos) << what;
  }
  EXPECT_NE(refusal(std::string(100000, '[')).find("deeper"), std::string::npos);
}

TEST(ToolChoice, IsAWordANameOrAnObject) {
  using Kind = ToolChoice::Kind;
  const struct {
    const char* text;
    Kind kind;
    const char* function;
  } cases[] = {
      {"auto", Kind::kAuto, ""},
      {"none", Kind::kNone, ""},
      {"required", Kind::kRequired, ""},
      {"\"required\"", Kind::kRequired, ""},
      {"get_time", Kind::kFunction, "get_time"},
      {R"({"type": "function", "function": {"name": "auto"}})", Kind::kFunction, "auto"},
  };
  for (const auto& [text, kind, function] : cases) {
    const ToolChoice choice = ToolChoice::parse(text);
    EXPECT_EQ(choice.kind, kind) << text;
    EXPECT_EQ(choice.function, function) << text;
  }
  for (const char* text : {"", "two words", "{", "{}", R"({"type": "function"})", "\"\"a\"\"",
                           R"({"type": "custom", "function": {"name": "f"}})", "[\"f\"]"}) {
    EXPECT_THROW(ToolChoice::parse(text), Error) << text;
  }
}

TEST(ToolCallTags, AFormatThatIsNotThereIsRefusedByName) {
  EXPECT_EQ(tool_call_formats(),
            (std::vector<std::string>{"deepseek", "harmony", "hermes", "kimi-k2", "mistral"}));
  for (const std::string& format : chat_output_formats()) {
    if (std::ranges::count(tool_call_formats(), format) != 0) {
      EXPECT_TRUE(json::accept(tags_of(format, {})));
      continue;
    }
    try {
      tags_of(format, {});
      ADD_FAILURE() << format;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      const std::string what = error.what();
      EXPECT_NE(what.find("'" + format + "'"), what.npos) << what;
      EXPECT_NE(what.find("deepseek, harmony, hermes, kimi-k2, mistral"), what.npos) << what;
    }
  }
}

TEST(ToolCallTags, TellTheTokensThatAreMarks) {
  const Tokenizer tokenizer = Tokenizer::from_json(test::small_tokenizer().dump(), "t");
  const ChatTools tools = ChatTools::parse(kTools, "tools.json");
  using Marks = std::vector<std::pair<int32_t, std::string>>;
  EXPECT_EQ(tool_call_tags("harmony", tools, tokenizer).marks, (Marks{{261, "<|end|>"}}));
  EXPECT_EQ(tool_call_tags("hermes", tools, tokenizer).marks, Marks());
}

TEST(ToolCallTags, HoldTheFunctionsThatMayBeCalled) {
  for (const std::string& format : tool_call_formats()) {
    const auto has = [&](const ToolCallOptions& options, const char* text) {
      return tags_of(format, options).find(text) != std::string::npos;
    };
    const ToolCallOptions none{.choice = ToolChoice::parse("none")};
    const ToolCallOptions named{.choice = ToolChoice::parse("g")};
    EXPECT_TRUE(has({}, "\"b\""));
    EXPECT_FALSE(has(none, "\"b\""));
    EXPECT_FALSE(has(named, "\"b\""));
    EXPECT_TRUE(has(named, "\"json_schema\""));
    try {
      tags_of(format, {.choice = ToolChoice::parse("i")});
      ADD_FAILURE() << "a function that is not there";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("'i', and the functions are f, g, h"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(ChatTemplate, GetsTools) {
  const ChatTemplate told = ChatTemplate::parse(
      "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
      "{{ messages[0].content }}",
      "told.jinja");
  const ChatTemplate untold = ChatTemplate::parse("{{ messages[0].content }}", "untold.jinja");
  const std::vector<ChatMessage> messages = {{"user", "Hi"}};
  ChatOptions options;
  options.tools_json = ChatTools::parse(kTools, "tools.json").json();
  EXPECT_EQ(told.render(messages, options), "[f][g][h]Hi");
  EXPECT_EQ(told.render(messages), "Hi");
  EXPECT_TRUE(writes_tools(told, messages, options));
  EXPECT_FALSE(writes_tools(untold, messages, options));
  options.variables_json = R"({"tools": []})";
  EXPECT_THROW(told.render(messages, options), Error);  // twice
  options.variables_json.clear();
  options.tools_json = "{}";
  EXPECT_THROW(told.render(messages, options), Error);
}

TEST(ChatTemplate, GetsArgumentsAsObjects) {
  const ChatTemplate objects = ChatTemplate::parse(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}"
      "{{ (c.function or c).arguments | tojson }};{% endfor %}{% endfor %}",
      "objects.jinja");
  const ChatTemplate texts = ChatTemplate::parse(
      "{% for c in messages[0].tool_calls %}{{ 'a: ' + c.function.arguments }}{% endfor %}",
      "texts.jinja");
  const std::vector<ChatMessage> written = {
      {"assistant", "",
       R"({"tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": \"é\"}"}}]})"}};
  EXPECT_EQ(render_with_calls(objects, written), R"({"b": 1, "a": "é"};)");
  EXPECT_EQ(render_with_calls(texts, written), R"(a: {"b": 1, "a": "é"})");
  for (const char* kept : {R"({"tool_calls": [{"name": "f", "arguments": {"a": 1}}]})",
                           R"({"tool_calls": [{"name": "f", "arguments": "[1]"}]})",
                           R"({"tool_calls": [{"name": "f"}], "x": 1})", R"({"tool_calls": 7})"}) {
    const std::vector<ChatMessage> messages = {{"assistant", "", kept}};
    std::string text, other;
    try {
      text = objects.render(messages);
    } catch (const Error& error) {
      text = error.what();
    }
    try {
      other = render_with_calls(objects, messages);
    } catch (const Error& error) {
      other = error.what();
    }
    EXPECT_EQ(other, text) << kept;
  }
}

}  // namespace
}  // namespace vitrine
