// SPDX-License-Identifier: Apache-2.0
// How an answer may be written where a schema leaves several ways: whole numbers, digits, white
// space; and objects that are closed on demand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "constraint_fixture.h"

namespace vitrine::test {
namespace {

struct Spellings {
  const char* schema;
  std::vector<std::string> plain, any, wrong;  // by default; where all count, too; never
};

TEST(Spelling, WritesWholeNumbersPlainly) {
  const TokenTable table = byte_table();
  const std::vector<Spellings> cases = {
      {R"({"type":"integer"})", {"10", "-3", "0"}, {"10.0", "-3.000"}, {"10.5", "1e2"}},
      {R"({"type":"integer","minimum":5,"maximum":20})", {"10"}, {"10.0"}, {"4", "21.0"}},
      {R"({"type":["integer","string"]})", {"7", "\"7\""}, {"7.0"}, {"7.1"}},
      {R"({"enum":[1,1.5,0]})", {"1", "1.5", "0"}, {"1.0", "1.50", "0.0", "-0"}, {"1.05"}},
      {R"({"const":{"a":[2]}})", {R"({"a":[2]})"}, {R"({"a":[2.0]})"}, {R"({"a":[2.5]})"}},
      {R"({"multipleOf":5})", {"15"}, {"15.0"}, {"7"}},
      {R"({"multipleOf":0.5})", {"1.5", "1.0", "1"}, {}, {"1.25"}},
      {R"({"type":"number"})", {"10.0", "1e2", "1.50"}, {}, {"x"}},
      {R"({"minimum":1,"type":"number"})", {"10.0", "1.50"}, {}, {"0.5"}},
      // What is none of these is so by its value, however it is written.
      {R"({"not":{"type":"integer"},"type":"number"})", {"1.5"}, {}, {"1.0", "1"}},
      {R"({"not":{"enum":[1]},"type":"number"})", {"2.0", "2"}, {}, {"1.0", "1"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":3}]})",
       {"2", "3.5"},
       {"2.0"},
       {"4", "4.0", "2.5"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"number"}]})", {"2", "2.0"}, {}, {}},
      {R"({"allOf":[{"type":"integer"},{"type":"number"}]})", {"2"}, {"2.0"}, {"2.5"}},
      {R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})",
       {"[1,2]"},
       {"[1,2.0]"},
       {"[1,1]", "[1,1.0]"}}};
  for (const Spellings& one : cases) {
    const Grammar plain = Grammar::json_schema(table, one.schema);
    const Grammar every = Grammar::json_schema(table, one.schema, SchemaOptions::every_spelling());
    for (const std::string& text : one.plain) {
      EXPECT_TRUE(is_prefix(plain, text, true)) << one.schema << " " << text;
      EXPECT_TRUE(is_prefix(every, text, true)) << one.schema << " " << text;
    }
    for (const std::string& text : one.any) {
      EXPECT_FALSE(is_prefix(plain, text, true)) << one.schema << " " << text;
      EXPECT_TRUE(is_prefix(every, text, true)) << one.schema << " " << text;
    }
    for (const std::string& text : one.wrong) {
      EXPECT_FALSE(is_prefix(plain, text, true)) << one.schema << " " << text;
      EXPECT_FALSE(is_prefix(every, text, true)) << one.schema << " " << text;
    }
  }
}

TEST(Spelling, BoundsTheDigits) {
  const TokenTable table = byte_table();
  const std::string nines(22, '9'), zeros(22, '0');
  for (const JsonIntegers integers : {JsonIntegers::kPlain, JsonIntegers::kAny}) {
    SchemaOptions options;
    options.integers = integers;
    for (const char* schema : {R"({"type":"number"})", R"({"type":"number","minimum":-1})"}) {
      const Grammar grammar = Grammar::json_schema(table, schema, options);
      EXPECT_TRUE(is_prefix(grammar, nines + "." + zeros, true)) << schema;
      EXPECT_FALSE(is_prefix(grammar, nines + "9", false)) << schema;
      EXPECT_FALSE(is_prefix(grammar, "0." + zeros + "0", false)) << schema;
      EXPECT_TRUE(is_prefix(grammar, "18446744073709551615", true)) << schema;
      EXPECT_TRUE(is_prefix(grammar, "0.0000012345678901234567", true)) << schema;
    }
    const Grammar integer = Grammar::json_schema(table, R"({"type":"integer"})", options);
    EXPECT_TRUE(is_prefix(integer, "-9223372036854775808", true));
    EXPECT_TRUE(is_prefix(integer, nines, true));
    EXPECT_FALSE(is_prefix(integer, nines + "9", false));
    const Grammar number = Grammar::json_schema(table, R"({"type":"number"})", options);
    EXPECT_TRUE(is_prefix(number, "-1.7976931348623157e+308", true));
    EXPECT_FALSE(is_prefix(number, "1e1000", false));
    EXPECT_TRUE(is_prefix(Grammar::json(table, options), "[1e100]", true));
    EXPECT_FALSE(is_prefix(Grammar::json(table, options), "[0." + zeros + "0", false));
  }
  SchemaOptions many;
  many.max_digits = 0;
  EXPECT_TRUE(is_prefix(Grammar::json_schema(table, "true", many), "0." + zeros + zeros, true));
}

TEST(Spelling, LongerNumbersOfASchemaStillWork) {
  const TokenTable table = byte_table();
  const std::string big = "1" + std::string(30, '0');
  const std::string small = "0." + std::string(30, '0') + "1";
  for (const std::string& schema :
       {R"({"type":"integer","minimum":)" + big + "}",
        R"({"allOf":[{"type":"integer"},{"minimum":)" + big + "}]}",
        R"({"anyOf":[{"enum":[)" + big + R"(]},{"type":"integer","exclusiveMinimum":)" + big +
            "}]}"}) {
    const Grammar grammar = Grammar::json_schema(table, schema);
    EXPECT_TRUE(is_prefix(grammar, big, true)) << schema;
    EXPECT_FALSE(is_prefix(grammar, "5", true)) << schema;
  }
  const Grammar between = Grammar::json_schema(
      table, R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":)" + small + "}");
  EXPECT_TRUE(is_prefix(between, "0." + std::string(31, '0') + "5", true));
}

TEST(Spelling, WritesOnOneLineUnlessAskedOtherwise) {
  const TokenTable table = byte_table();
  for (const Grammar& grammar :
       {Grammar::json(table), Grammar::json_schema(table, R"({"type":"object"})"),
        Grammar::lark(table, "start: %json {\"type\": \"object\"}")}) {
    EXPECT_TRUE(is_prefix(grammar, R"({"a": 1, "b":2})", true));
    EXPECT_FALSE(is_prefix(grammar, "{\n", false));
  }
}

TEST(CloseObjects, WhatListsItsPropertiesHasNoOthers) {
  const TokenTable table = byte_table();
  const char* schema = R"({"type":"object","properties":{
    "a":{"type":"object","properties":{"b":{"type":"integer"}}},
    "open":{"type":"object","properties":{"c":true},"additionalProperties":{"type":"null"}},
    "free":{"type":"object"},
    "list":{"type":"array","items":{"$ref":"#/$defs/item"}},
    "properties":{"const":{"properties":{"x":1}}}},
    "patternProperties":{"^q":{"type":"integer"}},
    "not":{"properties":{"a":{"properties":{"b":{"const":7}},"required":["b"]}},"required":["a"]},
    "$defs":{"item":{"properties":{"d":true}}}})";
  SchemaOptions closed;
  closed.close_objects = true;
  const Grammar strict = Grammar::json_schema(table, schema, closed);
  const Grammar open = Grammar::json_schema(table, schema);
  for (const char* text :
       {"{}", R"({"a":{"b":1}})", R"({"open":{"c":1,"d":null}})", R"({"free":{"any":1}})",
        R"({"list":[{"d":1},{}]})", R"({"properties":{"properties":{"x":1}}})", R"({"q1":4})"}) {
    EXPECT_TRUE(is_prefix(strict, text, true)) << text;
    EXPECT_TRUE(is_prefix(open, text, true)) << text;
  }
  for (const char* text : {R"({"z":1})", R"({"a":{"z":1}})", R"({"list":[{"e":1}]})"}) {
    EXPECT_FALSE(is_prefix(strict, text, true)) << text;
    EXPECT_TRUE(is_prefix(open, text, true)) << text;
  }
  // What `not` rules out stays ruled out, with other keys beside it, too.
  EXPECT_FALSE(is_prefix(strict, R"({"a":{"b":7},"q":1})", true));
  GrammarCache cache;
  EXPECT_TRUE(is_prefix(cache.json_schema(table, schema), R"({"z":1})", true));
  EXPECT_FALSE(is_prefix(cache.json_schema(table, schema, closed), R"({"z":1})", true));
}

}  // namespace
}  // namespace vitrine::test
