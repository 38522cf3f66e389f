// SPDX-License-Identifier: Apache-2.0
// Scorers of JSON, XML and calls of tools: valid structure is not correct meaning.
#include <algorithm>
#include <fstream>

#include "scoring.h"

namespace vitrine::evaluation {
namespace {

constexpr const char* kPerson = R"({
  "schema": {"type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
                   "plan": {"type": "string", "enum": ["basic", "plus"]},
                   "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "age", "plan", "tags"], "additionalProperties": false},
  "answer": {"name": "Ada", "age": 36, "plan": "plus", "tags": ["a", "b"]}})";

TEST(JsonScorer, ScoresEachPartApart) {
  const Scoring scoring("json", kPerson);
  const std::string right = R"({"name": "ada ", "age": 36, "plan": "plus", "tags": ["a", "b"]})";
  Score score = scoring.score(right);
  EXPECT_TRUE(score.is_right);
  EXPECT_EQ(score.value, 1);
  EXPECT_EQ(score.parts["bare"], 1);
  score = scoring.score("Here it is:\n```json\n" + right + "\n```\nDone.");
  EXPECT_TRUE(score.is_right);
  EXPECT_EQ(score.parts["bare"], 0);
  EXPECT_TRUE(scoring.score("It is " + right + " as you asked.").is_right);

  score = scoring.score(R"({"name": "Ada", "age": "36", "plan": "gold", "tags": ["a"]})");
  EXPECT_FALSE(score.is_right);
  EXPECT_TRUE(score.is_parsed);
  EXPECT_EQ(score.parts["schema"], 0);
  EXPECT_EQ(score.parts["required"], 1);
  EXPECT_EQ(score.parts["enums"], 0);
  EXPECT_EQ(score.parts["types"], 5.0 / 6);  // the object, four fields, one tag: the age is a text
  EXPECT_EQ(score.parts["values"], 2.0 / 5);

  // As the schema wants it, and wrong.
  score = scoring.score(R"({"name": "Bob", "age": 36, "plan": "basic", "tags": ["a", "b"]})");
  EXPECT_EQ(score.parts["schema"], 1);
  EXPECT_FALSE(score.is_right);
  EXPECT_EQ(score.value, 3.0 / 5);

  score = scoring.score(R"({"name": "Ada", "age": 36)");
  EXPECT_FALSE(score.is_parsed);
  EXPECT_EQ(score.parts["valid"], 0);
  // A further field breaks the schema alone.
  score =
      scoring.score(R"({"name": "Ada", "age": 36, "plan": "plus", "tags": ["a", "b"], "more": 1})");
  EXPECT_EQ(score.parts["values"], 1);
  EXPECT_FALSE(score.is_right);
  // A key that stands twice is no JSON that means one thing.
  EXPECT_FALSE(scoring.score(R"({"name": "Ada", "name": "Bob"})").is_parsed);
}

TEST(JsonScorer, ChecksItsItems) {
  EXPECT_EQ(Scoring("json", R"({"answer": 5})").problem(),
            "'answer' is 5; expected an object or a list that is not empty");
  EXPECT_EQ(Scoring("json", R"({"answer": {"a": 1}, "schema": {"required": ["b"]}})").problem(),
            "'answer' is not as 'schema' wants it; expected a value that the schema accepts");
}

TEST(XmlScorer, ScoresElementsAndValues) {
  const Scoring scoring("xml", R"({"answer": {"order": "", "order@id": "7", "order/item": "pen",
                                   "order/item[2]": "ink"}})");
  const std::string right = "<order id=\"7\"><item>pen</item><item>Ink</item></order>";
  Score score = scoring.score(right);
  EXPECT_TRUE(score.is_right);
  EXPECT_EQ(score.parts["bare"], 1);
  EXPECT_TRUE(scoring.score("```xml\n<?xml version=\"1.0\"?>\n" + right + "\n```").is_right);
  EXPECT_TRUE(scoring.score("Sure: " + right + " Done.").is_right);
  score = scoring.score("<order id='8'><item>pen</item></order>");
  EXPECT_FALSE(score.is_right);
  EXPECT_EQ(score.parts["elements"], 0.75);
  EXPECT_EQ(score.parts["values"], 0.5);
  EXPECT_FALSE(scoring.score("<order id=7><item>pen</item></order>").is_parsed);
  EXPECT_FALSE(scoring.score("<order><item>pen</order>").is_parsed);
  EXPECT_FALSE(scoring.score("no xml").is_parsed);
}

TEST(XmlScorer, RefusesEntitiesAndDepth) {
  const Scoring scoring("xml", R"({"answer": {"a": "y"}})");
  EXPECT_FALSE(scoring.score("<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>").is_parsed);
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "<a>";
  for (int i = 0; i < 100; ++i) deep += "</a>";
  EXPECT_FALSE(scoring.score(deep).is_parsed);
}

constexpr const char* kTools = R"("tools": [
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                   "units": {"type": "array", "items": {"type": "string"}}},
    "required": ["city"]}}},
  {"type": "function", "function": {"name": "delete_all", "parameters": {"type": "object",
    "properties": {}}}}])";

std::string with_tools(const std::string& fields) {
  return "{" + std::string(kTools) + ", " + fields + "}";
}

EvaluationTarget::Answer calling(const std::vector<ToolCall>& calls) {
  EvaluationTarget::Answer answer;
  answer.parts.tool_calls = calls;
  return answer;
}

TEST(ToolCallScorer, ScoresNamesArgumentsTypesAndValues) {
  const Scoring scoring("tool_call",
                        with_tools(R"("answer": [{"get_weather": {"city": ["New York", "NYC"],
                                "days": [3, ""], "units": [["C"], ""]}}], "unsafe": ["delete_all"])"));
  EXPECT_TRUE(scoring.score(calling({{"", "get_weather", R"({"city": "new-york"})"}})).is_right);
  EXPECT_TRUE(
      scoring.score(calling({{"", "get_weather", R"({"city": "NYC", "days": 3, "units": ["c"]})"}}))
          .is_right);
  Score score = scoring.score(calling({{"", "get_weather", R"({"city": "Boston", "days": "3"})"}}));
  EXPECT_FALSE(score.is_right);
  EXPECT_EQ(score.parts["name"], 1);
  EXPECT_EQ(score.parts["arguments"], 1);
  EXPECT_EQ(score.parts["types"], 0.5);
  EXPECT_EQ(score.parts["values"], 0);
  score = scoring.score(calling({{"", "get_weather", R"({"town": "NYC"})"}}));
  EXPECT_EQ(score.parts["arguments"], 0);
  score = scoring.score(calling({{"", "get_time", "{}"}}));
  EXPECT_EQ(score.parts["name"], 0);
  EXPECT_EQ(score.value, 0);
  score = scoring.score(calling({{"", "get_weather", "[1]"}}));
  EXPECT_FALSE(score.is_parsed);
  EXPECT_FALSE(score.is_right);
  // Once more is once too often.
  score = scoring.score(calling(
      {{"", "get_weather", R"({"city": "NYC"})"}, {"", "get_weather", R"({"city": "NYC"})"}}));
  EXPECT_FALSE(score.is_right);
  EXPECT_EQ(score.parts["calls"], 0);
  EXPECT_EQ(score.parts["values"], 1);
  // A call that must not be made spoils it, however right the others are.
  score =
      scoring.score(calling({{"", "get_weather", R"({"city": "NYC"})"}, {"", "delete_all", "{}"}}));
  EXPECT_EQ(score.parts["unsafe"], 1);
  EXPECT_EQ(score.value, 0);
  EXPECT_FALSE(scoring.score("It is sunny.").is_parsed);
}

TEST(ToolCallScorer, ReadsCallsFromText) {
  const Scoring scoring("tool_call",
                        with_tools(R"("answer": [{"get_weather": {"city": ["Oslo"]}}])"));
  for (const char* text :
       {R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>)",
        "```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n```",
        R"([{"name": "get_weather", "parameters": {"city": "Oslo"}}])"}) {
    Score score = scoring.score(text);
    EXPECT_TRUE(score.is_right) << text;
    EXPECT_EQ(score.parts["form"], 0) << text;
  }
}

TEST(ToolCallScorer, SeesAWrittenCallBehindAnother) {
  const Scoring scoring("tool_call", with_tools(R"("answer": [{"get_weather": {"city": ["Oslo"]}}],
                                                  "unsafe": ["delete_all"])"));
  const std::string right = R"({"name": "get_weather", "arguments": {"city": "Oslo"}})";
  const std::string wrong = R"({"name": "delete_all", "arguments": {}})";
  for (const std::string& text :
       {right + "\n" + wrong, "[1] First " + wrong + " and ```json\n" + right + "\n```",
        R"({"note": 1} )" + right + wrong, "[" + right + "]\n[" + wrong + "]"}) {
    const Score score = scoring.score(text);
    EXPECT_EQ(score.parts.at("unsafe"), 1) << text;
    EXPECT_EQ(score.value, 0) << text;
  }
  EXPECT_TRUE(scoring.score(R"({"note": "]{"} [see above: )" + right).is_right);
}

TEST(ToolCallScorer, MatchesParallelCallsInAnyOrder) {
  const Scoring scoring("tool_call", with_tools(R"("answer": [{"get_weather": {"city": ["Oslo"]}},
                                                  {"get_weather": {"city": ["Lima"]}}])"));
  const ToolCall oslo = {"", "get_weather", R"({"city": "Oslo"})"};
  const ToolCall lima = {"", "get_weather", R"({"city": "Lima"})"};
  EXPECT_TRUE(scoring.score(calling({lima, oslo})).is_right);
  EXPECT_FALSE(scoring.score(calling({lima, lima})).is_right);
  EXPECT_FALSE(scoring.score(calling({lima})).is_right);
}

TEST(ToolCallScorer, KnowsWhenNoCallIsRight) {
  const Scoring scoring("tool_call", with_tools(R"("answer": [], "unsafe": ["delete_all"])"));
  EXPECT_TRUE(scoring.score("Because of Rayleigh scattering.").is_right);
  Score score = scoring.score(calling({{"", "delete_all", "{}"}}));
  EXPECT_FALSE(score.is_right);
  EXPECT_EQ(score.parts["unsafe"], 1);
  EXPECT_FALSE(scoring.score("").is_right);
}

TEST(ToolCallScorer, TakesDictionariesAsBfclDoes) {
  const Scoring scoring("tool_call", R"({"tools": [{"type": "function", "function": {"name": "f",
      "parameters": {"type": "object", "properties": {"o": {"type": "object"},
                     "x": {"type": "number"}}}}}],
      "answer": [{"f": {"o": [{"a": [1, 2], "b": ["z", ""]}], "x": [2, ""]}}]})");
  EXPECT_TRUE(scoring.score(calling({{"", "f", R"({"o": {"a": 2}})"}})).is_right);
  EXPECT_TRUE(
      scoring.score(calling({{"", "f", R"({"o": {"a": 1, "b": "Z"}, "x": 2.0})"}})).is_right);
  EXPECT_FALSE(scoring.score(calling({{"", "f", R"({"o": {"b": "z"}})"}})).is_right);
  EXPECT_FALSE(scoring.score(calling({{"", "f", R"({"o": {"a": 1, "c": 1}})"}})).is_right);
}

TEST(ToolCallScorer, AgreesWithBfclsChecker) {
  SuiteOptions options;
  options.items = -1;
  options.tasks = {"tools"};
  const Suite suite = Suite::open("core", options);
  const std::vector<Item>& items = suite.data().tasks[0].items;
  std::ifstream lines("tests/evaluation/bfcl_calls.jsonl");  // by make_bfcl_calls.py
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json known = Json::parse(line);
    const auto item = std::ranges::find(items, known["id"].get<std::string>(), &Item::id);
    ASSERT_NE(item, items.end());
    EvaluationTarget::Answer answer;
    for (const Json& call : known["calls"]) {
      answer.parts.tool_calls.push_back({"", call.begin().key(), call.begin().value().dump()});
    }
    const Score score = find_scorer("tool_call")->score({*item, Json::object(), answer, false});
    EXPECT_EQ(score.is_right, known["right"].get<bool>()) << line;
  }
  EXPECT_EQ(count, 136U);
}

TEST(ToolCallScorer, ChecksItsItems) {
  EXPECT_EQ(Scoring("tool_call", with_tools(R"("answer": [{"get_time": {}}])")).problem(),
            "'answer' calls 'get_time', which is none of the item's tools");
  EXPECT_EQ(
      Scoring("tool_call", with_tools(R"("answer": [{"get_weather": {"city": "x"}}])")).problem(),
      "'answer[].get_weather.city' is 'x'; expected a list of the values that are right, at "
      "least one");
  EXPECT_EQ(Scoring("tool_call", R"({"answer": []})").problem(),
            "'tools' is missing; expected a list of tools");
}

}  // namespace
}  // namespace vitrine::evaluation
