// SPDX-License-Identifier: Apache-2.0
// Keywords that look at several schemas or at several items: key order, unevaluated*, dynamic
// references, uniqueItems.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "vitrine/constrain.h"

namespace vitrine {
namespace {

constexpr int32_t kEnd = 0;

TokenTable table_of_bytes() {
  std::vector<std::string> bytes(1);
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  return TokenTable::from_bytes(std::move(bytes), {kEnd});
}

bool accepts(const Grammar& grammar, std::string_view text) {
  const auto constraint = grammar.start();
  for (const char byte : text) {
    if (!constraint->accept(1 + static_cast<uint8_t>(byte))) return false;
  }
  return constraint->is_complete();
}

struct Case {
  const char* schema;
  std::vector<const char*> accepted, refused;
};

void check(const std::vector<Case>& cases, const SchemaOptions& options = {}) {
  const TokenTable table = table_of_bytes();
  for (const Case& one : cases) {
    SCOPED_TRACE(one.schema);
    const Grammar grammar = Grammar::json_schema(table, one.schema, options);
    for (const char* text : one.accepted) EXPECT_TRUE(accepts(grammar, text)) << text;
    for (const char* text : one.refused) EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

std::string refusal(const char* schema, const SchemaOptions& options = {}) {
  try {
    Grammar::json_schema(table_of_bytes(), schema, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    return error.what();
  }
  return "";
}

TEST(KeyOrder, IsThatOfTheSchema) {
  SchemaOptions options;
  options.key_order = JsonKeyOrder::kSchema;
  check({{R"({"properties":{"z":{},"a":{},"m":{}},"required":["a"]})",
          {R"({"a":1})", R"({"z":1,"a":2,"m":3})", R"({"z":1,"a":1,"x":1,"b":2})", "1"},
          {R"({"a":1,"z":2})", R"({"x":1,"a":1})", R"({"m":1,"a":1})", R"({"m":1})"}},
         // First appearance: what stands beside comes before allOf, that before anyOf.
         {R"({"anyOf":[{"properties":{"c":{}}},{"properties":{"d":{}}}],
              "allOf":[{"properties":{"b":{},"a":{}}}],"properties":{"a":{}}})",
          {R"({"a":1,"b":1,"c":1,"d":1})", R"({"b":1,"d":1,"x":1})"},
          {R"({"b":1,"a":1})", R"({"d":1,"c":1})", R"({"c":1,"b":1})"}},
         // A key that must come but is no property stands behind those that are.
         {R"({"required":["q"],"properties":{"z":{}},"maxProperties":2})",
          {R"({"z":1,"q":1})", R"({"q":1})", R"({"q":1,"a":1})"},
          {R"({"q":1,"z":1})", R"({"z":1})"}},
         // Enough keys must be left for minProperties.
         {R"({"type":"object","properties":{"b":{},"a":{},"c":{}},"additionalProperties":false,
              "minProperties":2})",
          {R"({"b":1,"c":1})", R"({"a":1,"c":1})"},
          {R"({"c":1})", R"({"c":1,"a":1})", "{}"}},
         {R"({"const":{"z":1,"a":2}})", {R"({"z":1,"a":2})"}, {R"({"a":2,"z":1})"}}},
        options);
}

TEST(KeyOrder, LeavesNoDeadEnd) {
  SchemaOptions options;
  options.key_order = JsonKeyOrder::kSchema;
  options.whitespace = JsonWhitespace::kCompact;
  const TokenTable table = table_of_bytes();
  const Grammar grammar = Grammar::json_schema(
      table, R"({"type":"object","properties":{"b":{"const":1},"a":{"const":1},"c":{"const":1}},
                 "additionalProperties":false,"minProperties":2})",
      options);
  const auto constraint = grammar.start();
  for (const char byte : std::string("{\"")) ASSERT_TRUE(constraint->accept(1 + byte));
  std::vector<uint32_t> mask(table.mask_words());
  constraint->allowed_tokens(mask);
  const auto allows = [&](char byte) {
    const auto id = static_cast<size_t>(1 + byte);
    return (mask[id / 32] >> (id % 32) & 1) != 0;
  };
  EXPECT_TRUE(allows('a'));
  EXPECT_TRUE(allows('b'));
  EXPECT_FALSE(allows('c'));  // only one would be left
  EXPECT_NE(constraint->tokens_to_finish(), Constraint::kNoTokenBound);
}

TEST(Unevaluated, DependsOnWhatHolds) {
  check({{R"({"properties":{"a":{}},"anyOf":[{"properties":{"b":{"const":1}},"required":["b"]},
              {"properties":{"c":{"const":2}},"required":["c"]}],"unevaluatedProperties":false})",
          {R"({"a":0,"b":1})", R"({"b":1,"c":2})", R"({"c":2})"},
          {R"({"b":1,"c":3})", R"({"a":0})", R"({"b":1,"x":0})", R"({"b":2,"c":2})"}},
         {R"({"if":{"properties":{"k":{"const":1}},"required":["k"]},
              "then":{"properties":{"x":{}}},"else":{"properties":{"y":{}}},
              "unevaluatedProperties":{"type":"null"}})",
          {R"({"k":1,"x":1})", R"({"y":1})", R"({"k":null,"y":1})", R"({"k":1,"y":null})"},
          {R"({"k":1,"y":1})", R"({"x":1})", R"({"k":2})"}},
         {R"({"enum":[{"a":1},[1],2],"unevaluatedProperties":false,"unevaluatedItems":false})",
          {"2"},
          {R"({"a":1})", "[1]"}},
         {R"({"not":{"properties":{"a":{}},"unevaluatedProperties":false}})",
          {R"({"b":1})", R"({"a":1,"b":1})"},
          {"{}", R"({"a":1})", "1"}},
         {R"({"prefixItems":[{"const":1}],"contains":{"type":"string"},"unevaluatedItems":false})",
          {R"([1,"a","b"])", R"([1,"a"])"},
          {R"([1,"a",2])", "[1]"}},
         {R"({"$schema":"https://json-schema.org/draft/2019-09/schema",
              "contains":{"type":"string"},"unevaluatedItems":{"type":"null"}})",
          {"{}"},
          {R"(["a"])"}},
         {R"({"not":{"prefixItems":[true],"unevaluatedItems":{"type":"string"}},"type":"array"})",
          {"[1,2]", R"([1,"a",1])"},
          {"[]", R"([1,"a"])"}}});
}

TEST(DynamicReference, LeadsToTheOutermostAnchor) {
  check({{R"({"$id":"http://x/strict","$dynamicAnchor":"node","$ref":"tree",
            "unevaluatedProperties":false,
            "$defs":{"tree":{"$id":"http://x/tree","$dynamicAnchor":"node","type":"object",
              "properties":{"data":true,"children":{"items":{"$dynamicRef":"#node"}}}}}})",
          {R"({"children":[{"data":1}]})"},
          {R"({"children":[{"daat":1}]})", R"({"daat":1})"}},
         {R"({"$id":"http://x/tree","$dynamicAnchor":"node","type":"object",
            "properties":{"children":{"items":{"$dynamicRef":"#node"}}}})",
          {R"({"children":[{"daat":1}]})"},
          {R"({"children":[1]})"}},
         // Two ways to one list, each with items of its own.
         {R"({"$id":"http://x/root","properties":{"n":{"$ref":"numbers"},"s":{"$ref":"strings"}},
            "$defs":{"list":{"$id":"list","items":{"$dynamicRef":"#item"},
                "$defs":{"any":{"$dynamicAnchor":"item"}}},
              "n":{"$id":"numbers","$ref":"list","$defs":{"i":{"$dynamicAnchor":"item","type":"number"}}},
              "s":{"$id":"strings","$ref":"list","$defs":{"i":{"$dynamicAnchor":"item","type":"string"}}}}})",
          {R"({"n":[1],"s":["a"]})"},
          {R"({"n":["a"]})", R"({"s":[1]})"}},
         {R"({"$schema":"https://json-schema.org/draft/2019-09/schema","$id":"http://x/strict",
            "$recursiveAnchor":true,"$ref":"tree","unevaluatedProperties":false,
            "$defs":{"tree":{"$id":"http://x/tree","$recursiveAnchor":true,"type":"object",
              "properties":{"data":true,"children":{"items":{"$recursiveRef":"#"}}}}}})",
          {R"({"children":[{"data":1}]})"},
          {R"({"children":[{"daat":1}]})"}}});
  EXPECT_NE(refusal(R"({"$dynamicRef":"other.json#x"})").find("'#/$dynamicRef'"),
            std::string::npos);
}

TEST(Malformed, AKeywordOfAnotherTypeIsRefusedWithItsPlace) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"uniqueItems": "true"})", "'#/uniqueItems'"},
      {R"({"items": {"uniqueItems": 1}})", "'#/items/uniqueItems'"},
      {R"({"$schema": 5})", "'#/$schema'"},
      {R"({"$id": 5})", "'#/$id'"},
      {R"({"$anchor": []})", "'#/$anchor'"},
      {R"({"$defs": 5})", "'#/$defs'"},
      {R"({"format": 5})", "'#/format'"},
      {R"({"allOf": []})", "'#/allOf'"},
      {R"({"anyOf": []})", "'#/anyOf'"},
      {R"({"not": {"oneOf": []}})", "'#/not/oneOf'"},
      {R"({"dependentRequired": {"a": "b"}})", "'#/dependentRequired/a'"}};
  for (const auto& [schema, place] : cases) {
    try {
      Grammar::json_schema(table_of_bytes(), schema);
      ADD_FAILURE() << schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
      EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
    }
  }
  // Properties of these names are no keywords; draft 3's spelling of a dependency counts.
  const Grammar grammar = Grammar::json_schema(
      table_of_bytes(), R"({"properties": {"$id": {}, "format": {}}, "dependencies": {"a": "b"}})");
  EXPECT_TRUE(accepts(grammar, R"({"$id": 5, "format": 1, "a": 1, "b": 2})"));
  EXPECT_FALSE(accepts(grammar, R"({"a": 1})"));
}

TEST(Formats, LeapSecondsAreTheLastOfAUtcDay) {
  const Grammar grammar = Grammar::json_schema(table_of_bytes(), R"({"format": "date-time"})");
  const auto accepts_time = [&](const char* time) {
    return accepts(grammar, std::string("\"1990-12-31T") + time + "\"");
  };
  for (const char* time :
       {"23:59:60Z", "23:59:60.5z", "15:59:60-08:00", "15:59:60.123-08:00", "23:29:60+23:30",
        "00:29:60-23:30", "01:29:60+01:30", "23:59:60+00:00", "23:59:60-00:00"}) {
    EXPECT_TRUE(accepts_time(time)) << time;
  }
  for (const char* time : {"15:59:60Z", "23:59:60-08:00", "15:59:60+08:00", "22:59:60Z",
                           "23:58:60Z", "15:59:61-08:00", "01:29:60-01:30", "24:59:60+01:00"}) {
    EXPECT_FALSE(accepts_time(time)) << time;
  }
}

TEST(UniqueItems, OfAnyKind) {
  check({{R"({"type":"array","uniqueItems":true})",
          {R"([{"a":1,"b":[2]},{"a":1,"b":[3]}])", R"([1,"1",[1],{"a":1},[[1]],null])",
           R"(["[1]",[1],"{}",{}])", R"([{"a":"x,y"},{"a":"x","y":1}])"},
          {R"([{"a":1,"b":[2]},{"b" : [2.0], "a":1}])", "[[1,2],[1,2.00]]", "[{},{}]",
           R"([{"\u0061":"\n"},{"a":"\u000a"}])", "[[],1,[]]", R"([{"a":1e1},{"a":10}])"}},
         {R"({"prefixItems":[{"enum":["a","b"]},{"enum":["a","c"]},{"type":"object"}],
              "uniqueItems":true,"type":"array","minItems":3})",
          {R"(["a","c",{}])", R"(["b","a",{},{"x":1}])"},
          {R"(["a","a",{}])", R"(["b","c",{},{}])", R"(["a","c"])"}},
         {R"({"type":"array","not":{"uniqueItems":true}})",
          {"[1,1]", R"([{"a":1},2,{"a":1.0}])", "[1,2,3,2]"},
          {"[]", "[1]", "[1,2]", R"([{},{"a":1}])"}},
         {R"({"oneOf":[{"type":"array","uniqueItems":true},
              {"type":"array","minItems":2}]})",
          {"[1,1]", R"(["a"])", "[]", "[{},1,{}]"},
          {"[1,2]", R"([{},1])"}}});
}

TEST(UniqueItems, BesideAConditionOnSomeItem) {
  check({{R"({"type":"array","uniqueItems":true,"contains":{"type":"string"},"minContains":2})",
          {R"(["a","b"])", R"([1,"a",2,"b"])", R"(["a","b","c",{}])"},
          {R"(["a","a"])", R"(["a",1])", R"(["a","b",1,1.0])", R"([1,"a",1,"b"])"}},
         {R"({"type":"array","uniqueItems":true,"items":{"type":["string","number"]},
              "contains":{"type":"string","maxLength":9},"maxContains":1,"maxItems":3})",
          {R"(["a",1,2])", R"([1,2,"a"])", R"(["0123456789","a"])"},
          {R"([1,2,3])", R"(["a","b"])", R"([1,1,"a"])", R"(["a","a"])", R"([1,2,3,"a"])"}},
         {R"({"type":"array","uniqueItems":true,"contains":{"type":"object","required":["k"]}})",
          {R"([{"k":1}])", R"([{},{"k":1},{"k":2}])"},
          {"[{}]", R"([{"k":1},{"k":1.0}])", "[]"}}});
  EXPECT_NE(refusal(R"({"type":"array","uniqueItems":true,"contains":{"enum":["a","b"]}})")
                .find("few values"),
            std::string::npos);
}

TEST(UniqueItems, WhatCannotBeKeptIsRefused) {
  EXPECT_NE(refusal(R"({"properties":{"a":{"type":"array","uniqueItems":true,
                        "items":{"type":"object","additionalProperties":false}}}})")
                .find("schema at '#/properties/a': uniqueItems"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"type":"array","maxItems":3,"not":{"uniqueItems":true}})").find("bounded"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"type":"array","prefixItems":[{"enum":[1,2]},{"enum":[1]}],"minItems":2,
                        "uniqueItems":true})")
                .find("few values"),
            std::string::npos);
}

TEST(UniqueItems, ArraysThatDependOnThemselvesAreRefused) {
  for (const char* schema :
       {R"({"items":{"oneOf":[{"uniqueItems":true,"$ref":"#"},{"maxItems":1}]}})",
        R"({"$defs":{"set":{"type":"array","uniqueItems":true,"items":
            {"oneOf":[{"$ref":"#/$defs/set"},{"type":"array","maxItems":1}]}}},"$ref":"#/$defs/set"})",
        R"({"type":"array","items":{"oneOf":[{"$ref":"#","uniqueItems":true},
            {"type":"array","items":{"type":"string"}}]}})",
        R"({"contains":{"$ref":"#","uniqueItems":true,"propertyNames":{"enum":["b"]}},
            "required":["a"]})"}) {
    EXPECT_NE(refusal(schema).find("uniqueItems over arrays whose items depend"), std::string::npos)
        << schema;
  }
}

TEST(UniqueItems, AnItemCanBeFinishedEverywhere) {
  const TokenTable table = table_of_bytes();
  SchemaOptions options;
  options.whitespace = JsonWhitespace::kCompact;
  const Grammar grammar = Grammar::json_schema(
      table, R"({"type":"array","uniqueItems":true,"items":{"type":"object"},"minItems":3})",
      options);
  const std::string text = R"([{},{"a":1},{"a":1)";
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  for (const char byte : text) {
    EXPECT_NE(constraint->tokens_to_finish(), Constraint::kNoTokenBound);
    ASSERT_TRUE(constraint->accept(1 + static_cast<uint8_t>(byte))) << byte;
  }
  EXPECT_FALSE(constraint->accept(1 + '}'));  // it would be the second item again
  const uint32_t bound = constraint->tokens_to_finish();
  ASSERT_NE(bound, Constraint::kNoTokenBound);
  // The bound is one that can be followed.
  for (uint32_t left = bound; left > 0; --left) {
    ASSERT_TRUE(constraint->allowed_tokens(mask));
    constraint->keep_within(mask, left);
    int32_t best = -1;
    for (int32_t id = 1; id < table.vocab_size() && best < 0; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) best = id;
    }
    if (best < 0) break;
    ASSERT_TRUE(constraint->accept(best));
  }
  EXPECT_TRUE(constraint->is_complete());
}

}  // namespace
}  // namespace vitrine
