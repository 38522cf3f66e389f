// SPDX-License-Identifier: Apache-2.0
// Where a constraint stands, in words: places, bytes that follow, a completion that finishes.
#include <gtest/gtest.h>

#include <algorithm>

#include "constraint_fixture.h"
#include "src/constrain/state_text.h"

namespace vitrine::test {
namespace {

ConstraintState state_behind(const Grammar& grammar, std::string_view text) {
  const auto constraint = grammar.start();
  EXPECT_TRUE(feed(*constraint, text)) << text;
  return constraint->state();
}

testing::AssertionResult has(const std::vector<std::string>& readings, std::string_view part) {
  std::string all;
  for (const std::string& one : readings) {
    if (one.find(part) != std::string::npos) return testing::AssertionSuccess();
    all += one + "\n";
  }
  return testing::AssertionFailure() << "no '" << part << "' in:\n" << all;
}

TEST(State, ATableWithoutIds) {
  const TokenTable none;
  EXPECT_EQ(none.vocab_size(), 0);
  EXPECT_TRUE(none.end_ids().empty());
  EXPECT_THROW(none.bytes(0), Error);
  EXPECT_THROW(byte_table().bytes(-1), Error);
  EXPECT_THROW(byte_table().bytes(byte_table().vocab_size()), Error);
}

TEST(State, APlaceInJsonHasItsPointerAndWhatIsLacking) {
  const Grammar grammar = Grammar::json_schema(byte_table(), R"({
    "type": "object", "required": ["items", "na/me"], "additionalProperties": {"type": "integer"},
    "properties": {"na/me": {"enum": ["left", "right"]},
                   "items": {"type": "array", "minItems": 3,
                             "items": {"type": "object", "properties": {"id": {"type": "string",
                                                                     "pattern": "^[a-c]{2}x$"}}}}}})",
                                               SchemaOptions::every_spelling());
  ConstraintState state = state_behind(grammar, "");
  EXPECT_EQ(state.num_bytes, 0);
  EXPECT_TRUE(has(state.readings, "at '': before a value"));
  EXPECT_EQ(state.next_bytes, "0x09 0x0A 0x0D space '{'");
  state = state_behind(grammar, R"({"items": [{}, {"id": "a)");
  EXPECT_EQ(state.num_bytes, 24);
  EXPECT_TRUE(has(state.readings, "at '/items/1/id': in a value: [a-c]x\""));
  EXPECT_TRUE(state.next_bytes.starts_with("'\\' 'a'-'c'")) << state.next_bytes;
  state = state_behind(grammar, R"({"items": [{})");
  EXPECT_TRUE(has(state.readings, "at '/items/0': behind a value; the array needs 3 items"));
  EXPECT_EQ(state.next_bytes, "0x09 0x0A 0x0D space ','");
  state = state_behind(grammar, R"({"na/me")");
  EXPECT_TRUE(has(state.readings, "at '/na~1me': behind a key"));
  state = state_behind(grammar, R"({"na/me": "r)");
  EXPECT_TRUE(has(state.readings, "in a value: ight\"; the object lacks 'items'"));
  state = state_behind(grammar, R"({"na/me": "right")");
  EXPECT_TRUE(has(state.readings, "behind a value; the object lacks 'items'"));
  state = state_behind(grammar, R"({"i)");
  EXPECT_TRUE(has(state.readings, "in a key of 'items', or another"));
}

TEST(State, OfTheAnswerItHoldsNoTextOfItsOwn) {
  const Grammar grammar = Grammar::json_schema(byte_table(), R"({
    "additionalProperties": {"type": "array", "uniqueItems": true,
                             "items": {"type": "string", "maxLength": 9}},
    "properties": {"open": true}})");
  for (const char* text : {R"({"secret")", R"({"secret": ["secret", "secre)",
                           R"({"open": {"secret": [{"secret": "secr)", R"({"secre)"}) {
    const ConstraintState state = state_behind(grammar, text);
    std::string all = state.next_bytes + state.completion;
    for (const std::string& one : state.readings) all += one;
    EXPECT_EQ(all.find("ecre"), std::string::npos) << all;
    EXPECT_GT(state.num_readings, 0);
  }
  EXPECT_TRUE(has(state_behind(grammar, R"({"secret": [")").readings, "at '/*/0'"));
  EXPECT_TRUE(has(state_behind(grammar, R"({"open": {"a": [[)").readings, "at '/open/*/0/0'"));
}

TEST(State, OfAnExpressionWhatIsLeft) {
  const Grammar regex = Grammar::regex(byte_table(), "[0-9]{4}-(0[1-9]|1[0-2])-x+");
  EXPECT_TRUE(has(state_behind(regex, "20").readings, "`[0-9]{2,2}\\-"));
  ConstraintState state = state_behind(regex, "2024-1");
  EXPECT_EQ(state.readings, std::vector<std::string>{"`[0-2]\\-x+`"});
  EXPECT_EQ(state.next_bytes, "'0'-'2'");
  EXPECT_EQ(state.completion.substr(1), "-x");
  state = state_behind(regex, "2024-10-x");
  EXPECT_EQ(state.completion, "");  // whole
  EXPECT_EQ(state.next_bytes, "'x'");
  const Grammar choice = Grammar::choices(byte_table(), {"read", "write", "ready", "a\"\n"});
  EXPECT_TRUE(has(state_behind(choice, "re").readings, "`(ad|ady)`"));
  EXPECT_TRUE(has(state_behind(choice, "a").readings, "`\"\\x0A`"));
}

TEST(State, OfAGrammarTheRulesAround) {
  const Grammar gbnf = Grammar::gbnf(byte_table(),
                                     "root ::= list \"!\"\n"
                                     "list ::= \"[\" (item (\",\" item)*)? \"]\"\n"
                                     "item ::= [a-z]+ | list\n");
  ConstraintState state = state_behind(gbnf, "[ab,[c");
  EXPECT_TRUE(has(state.readings, "root (from byte 0) > list (from byte 0)"));
  EXPECT_TRUE(has(state.readings, "list (from byte 4) > item (from byte 5): `[a-z]*`") ||
              has(state.readings, "list (from byte 4) > item (from byte 5): `[a-z]+`"));
  EXPECT_EQ(state.next_bytes, "',' ']' 'a'-'z'");
  EXPECT_EQ(state.completion, "]]!");
  const Grammar lark = Grammar::lark(byte_table(),
                                     "start: \"<t>\" call \"</t>\"\n"
                                     "call: %json {\"type\": \"object\", "
                                     "\"properties\": {\"n\": {\"type\": "
                                     "\"integer\"}}, \"required\": [\"n\"]}\n");
  state = state_behind(lark, "<t>{\"n\": -");
  EXPECT_TRUE(has(state.readings, "call (from byte 3): JSON at '/n': in a value"));
  EXPECT_EQ(state.num_bytes, 10);
  state = state_behind(lark, "<t>{");
  EXPECT_TRUE(has(state.readings, "behind '{'; the object lacks 'n'"));
  const Grammar tags =
      Grammar::tags(byte_table(), R"({"triggers": ["<f"], "tags": [{"begin": "<f>", "end": "</f>",
                        "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}}]})");
  state = state_behind(tags, "prose <f>tr");
  EXPECT_GT(state.num_readings, 0);
  EXPECT_EQ(state.next_bytes, "'u'");
  EXPECT_EQ(state.completion, "ue</f>");
}

TEST(State, OfJsonBehindTextOfAnyLengthEachBeginning) {
  const Grammar lark =
      Grammar::lark(byte_table(), "start: TEXT %json {\"type\": \"object\"}\nTEXT: /(.|\\n)*/\n");
  const ConstraintState state = state_behind(lark, R"(a {"b": {"c)");
  EXPECT_TRUE(has(state.readings, "JSON at '/*': in a key"));
  EXPECT_TRUE(has(state.readings, "JSON at '': in a key"));
  EXPECT_TRUE(has(state.readings, "start (from byte 0): `"));
}

/// Whatever is read: the bytes are those that can be fed, the completion finishes, and to look
/// changes nothing.
TEST(State, AgreesWithTheConstraint) {
  const TokenTable table = byte_table();
  const std::vector<Grammar> grammars = {
      Grammar::json_schema(table, R"({"oneOf": [{"type": "array", "items": {"enum": [1, "a", null]},
                                                "uniqueItems": true, "minItems": 2},
                                               {"type": "object", "minProperties": 2}]})"),
      Grammar::json(table),
      Grammar::regex(table, "(ab|[^\\n]{2,4}x)*y"),
      Grammar::choices(table, {"one", "on", "two"}),
      Grammar::gbnf(table, "root ::= \"(\" root \")\" | [0-9]{1,3} | root root"),
      Grammar::lark(table,
                    "start: \"<\" %json {\"type\": [\"array\", \"number\"]} \">\" start | \"\"")};
  std::mt19937 rng(5);
  for (const Grammar& grammar : grammars) {
    for (int run = 0; run < 20; ++run) {
      const auto constraint = grammar.start();
      for (int step = 0; step < 30; ++step) {
        std::vector<uint32_t> mask(table.mask_words()), again(table.mask_words());
        constraint->allowed_tokens(mask);
        const uint32_t bound = constraint->tokens_to_finish();
        const ConstraintState state = constraint->state();
        constraint->allowed_tokens(again);
        EXPECT_EQ(mask, again);
        EXPECT_EQ(bound, constraint->tokens_to_finish());
        EXPECT_EQ(state.num_bytes, step);
        constrain::ByteSet bytes;
        std::vector<int32_t> allowed;
        for (int32_t id = 1; id <= 256; ++id) {
          if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
          bytes.add(static_cast<uint8_t>(id - 1));
          allowed.push_back(id);
        }
        EXPECT_EQ(state.next_bytes, constrain::byte_set_text(bytes));
        EXPECT_EQ(state.readings.size(), std::min<size_t>(8, state.num_readings));
        EXPECT_TRUE(state.num_readings > 0 || allowed.empty());
        if (!constraint->is_complete() && state.completion.find('\\') == std::string::npos &&
            !state.completion.ends_with("…")) {
          const auto fork = constraint->fork();
          EXPECT_TRUE(feed(*fork, state.completion)) << state.completion;
          EXPECT_TRUE(fork->is_complete());
        }
        if (allowed.empty()) break;
        ASSERT_TRUE(constraint->accept(allowed[rng() % allowed.size()]));
      }
    }
  }
}

TEST(State, AnEndedAnswerAndOneBeyondTheLimitsAreToldAsFarAsTheyAreKnown) {
  const Grammar grammar = Grammar::regex(byte_table(), "ab?");
  const auto constraint = grammar.start();
  ASSERT_TRUE(feed(*constraint, "a"));
  ASSERT_TRUE(constraint->accept(kEndId));
  ConstraintState state = constraint->state();
  EXPECT_EQ(state.num_bytes, 1);
  EXPECT_TRUE(state.readings.empty());
  EXPECT_EQ(state.next_bytes, "");
  constraint->rollback(1);
  EXPECT_EQ(constraint->state().next_bytes, "'b'");

  GrammarOptions options;
  options.max_items = 3000;
  const Grammar small =
      Grammar::gbnf(byte_table(), "root ::= root root | \"a\" | root root root", options);
  const auto ambiguous = small.start();
  EXPECT_THROW(for (int i = 0; i < 1000; ++i) ambiguous->accept(1 + 'a'), Error);
  state = ambiguous->state();
  EXPECT_GT(state.num_bytes, 10);
  EXPECT_GT(state.num_readings, 0);
}

TEST(State, AConstraintStandsWhereItStoodWhenALimitIsMetWithinAToken) {
  GrammarOptions options;
  options.max_items = 3000;
  const TokenTable table = byte_table({std::string(40, 'a')});
  const Grammar grammar =
      Grammar::gbnf(table, "root ::= x \"!\"\nx ::= x x | \"a\" | x x x", options);
  const auto constraint = grammar.start();
  constexpr int32_t kLong = 257;
  ASSERT_TRUE(feed(*constraint, "aa"));
  EXPECT_THROW(constraint->accept(kLong), Error);
  std::vector<uint32_t> mask(table.mask_words());
  EXPECT_THROW(constraint->allowed_tokens(mask), Error);
  EXPECT_EQ(constraint->state().num_bytes, 2);
  EXPECT_EQ(constraint->state().next_bytes, "'!' 'a'");
  EXPECT_TRUE(feed(*constraint, "a!"));
  EXPECT_TRUE(constraint->is_complete());
}

TEST(State, TextsStayWithinBounds) {
  std::string deep, keys;
  for (int i = 0; i < 300; ++i) deep += "[";
  EXPECT_LT(state_behind(Grammar::json(byte_table()), deep).readings.at(0).size(), 200u);
  std::vector<std::string> texts;
  for (int i = 0; i < 1000; ++i) texts.push_back(std::string(500, 'a') + std::to_string(i));
  const ConstraintState state = state_behind(Grammar::choices(byte_table(), texts), "a");
  EXPECT_LT(state.readings.at(0).size(), 1000u);
  EXPECT_LE(state.completion.size(), 256u + 3);
  std::string name(5000, 'n'), key;
  for (int i = 0; i < 200; ++i) key += "\u9375";
  const Grammar named = Grammar::gbnf(
      byte_table(), "root ::= " + name + "\n" + name + " ::= \"(\" root \")\" | \"\"");
  for (const std::string& one : state_behind(named, "((((((((((").readings) {
    EXPECT_LE(one.size(), 1003u);
  }
  std::string schema = R"({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {")" + key +
                       R"(": {"$ref": "#/$defs/x"}}}}})";
  std::string text;
  for (int i = 0; i < 20; ++i) text += "{\"" + key + "\":";
  const ConstraintState deep_keys = state_behind(Grammar::json_schema(byte_table(), schema), text);
  EXPECT_LE(deep_keys.readings.at(0).size(), 1003u);
  EXPECT_NE(deep_keys.readings.at(0).find("/\u9375\u9375"), std::string::npos);
  std::string nested = "a";
  for (int i = 0; i < 60; ++i) nested = "(b" + nested + "|c{2})";
  EXPECT_LT(state_behind(Grammar::regex(byte_table(), nested), "").readings.at(0).size(), 400u);
}

TEST(State, JsonPlaces) {
  const auto all = [](std::string_view) { return true; };
  const auto none = [](std::string_view) { return false; };
  using constrain::json_place;
  EXPECT_EQ(json_place("", all), "");
  EXPECT_EQ(json_place(R"({"a": {"b\u0063": [1, {"d")", all), "/a/bc/1/d");
  EXPECT_EQ(json_place(R"({"a": {"b\u0063": [1, {"d")", none), "/*/*/1/*");
  EXPECT_EQ(json_place(R"({"a": "}],{[", "b~": [")", all), "/b~0/0");
  EXPECT_EQ(json_place(R"({"a": "\"", "b": [[], [2, 3)", all), "/b/1/1");
  EXPECT_EQ(json_place(R"({"a": 1, "b)", all), "");
  EXPECT_EQ(json_place("\"\\", all), "");
}

}  // namespace
}  // namespace vitrine::test
