// SPDX-License-Identifier: Apache-2.0
// Schemas that are weakened in place of being refused: what is left out, and what is left.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "vitrine/constrain.h"

namespace vitrine {
namespace {

TokenTable table_of_bytes() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  return TokenTable::from_bytes(std::move(bytes), {});
}

bool accepts(const Grammar& grammar, std::string_view text) {
  const auto constraint = grammar.start();
  for (const char byte : text) {
    if (!constraint->accept(static_cast<uint8_t>(byte))) return false;
  }
  return constraint->is_complete();
}

TEST(Lenient, LeavesOutAndTells) {
  const TokenTable table = table_of_bytes();
  struct Case {
    const char* schema;
    std::vector<const char*> pointers, accepted, refused;
  };
  const std::vector<Case> cases = {
      {R"({"type":"string","pattern":"(?<=a$)b","maxLength":3})",
       {"/pattern"},
       {"\"x\""},
       {"\"xxxx\"", "1"}},
      {R"({"properties":{"a/b":{"$ref":"other.json#/x"},"c":{"type":"null"}},"required":["c"]})",
       {"/properties/a~1b/$ref"},
       {R"({"a/b":1,"c":null})"},
       {R"({"a/b":1})", R"({"c":1})"}},
      {R"({"type":"object","patternProperties":{"(a)\\1":{}},"additionalProperties":false,"minProperties":1})",
       {"/patternProperties"},
       {R"({"x":1})"},
       {"{}", "[]"}},
      {R"({"type":"array","uniqueItems":true,"items":{"type":"object","additionalProperties":false},"maxItems":2})",
       {"/uniqueItems"},
       {"[{},{}]"},
       {"[{},{},{}]", "[1]"}},
      {R"({"not":{"anyOf":[{"type":"null"},{"pattern":"(?<=a$)b"}]},"type":["null","string"]})",
       {"/not"},
       {"null", "\"\""},
       {"1"}},
      {R"({"oneOf":[{"type":"string","pattern":"(?<=a$)b"},{"type":"null"}]})",
       {"/oneOf", "/anyOf/0/pattern"},
       {"\"x\"", "null"},
       {"1"}},
      // What would be left unevaluated without a keyword is no longer held to anything.
      {R"({"type":"array","maxItems":2,"unevaluatedItems":false,"if":{"contains":{"pattern":"(a)\\1"}},"then":{"contains":{"type":"number"}}})",
       {"/unevaluatedItems", "/if"},
       {R"(["aa",1])", "[1]"},
       {"[1,2,3]"}},
      {R"({"type":"integer","multipleOf":3})", {}, {"3"}, {"4"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.schema);
    SchemaOptions options;
    if (!one.pointers.empty()) {
      EXPECT_THROW(Grammar::json_schema(table, one.schema, options), Error);
    }
    options.lenient = true;
    const Grammar grammar = Grammar::json_schema(table, one.schema, options);
    std::vector<std::string> pointers;
    for (const Weakening& dropped : grammar.weakened()) {
      pointers.push_back(dropped.pointer);
      EXPECT_FALSE(dropped.reason.empty());
    }
    EXPECT_EQ(pointers, std::vector<std::string>(one.pointers.begin(), one.pointers.end()));
    for (const char* text : one.accepted) EXPECT_TRUE(accepts(grammar, text)) << text;
    for (const char* text : one.refused) EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Lenient, MistakesAreStillRefused) {
  SchemaOptions options;
  options.lenient = true;
  for (const char* schema : {"{", R"({"type":"objekt"})", R"({"$ref":"#/nowhere"})", "false",
                             R"({"type":"string","enum":[1]})"}) {
    EXPECT_THROW(Grammar::json_schema(table_of_bytes(), schema, options), Error) << schema;
  }
}

TEST(Lenient, WithinTagsAndGrammars) {
  GrammarOptions options;
  options.schema.lenient = true;
  const Grammar tags = Grammar::tags(
      table_of_bytes(),
      R"({"tags":[{"begin":"<","schema":{"items":{"pattern":"(?<=a$)b"}},"end":">"}]})", options);
  ASSERT_EQ(tags.weakened().size(), 1u);
  EXPECT_EQ(tags.weakened()[0].pointer, "/tags/0/schema/items/pattern");
  const Grammar lark =
      Grammar::lark(table_of_bytes(), R"(start: %json {"pattern":"(?<=a$)b"})", options);
  ASSERT_EQ(lark.weakened().size(), 1u);
}

}  // namespace
}  // namespace vitrine
