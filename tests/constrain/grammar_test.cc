// SPDX-License-Identifier: Apache-2.0
// Constraints as a host uses them: masks, history, forks, ends, refusals.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "constraint_fixture.h"

namespace vitrine {
namespace {

using test::byte_table;
using test::feed;
using test::kEndId;

bool accepts(const Grammar& grammar, std::string_view text) {
  const auto constraint = grammar.start();
  return feed(*constraint, text) && constraint->is_complete();
}

struct Case {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

TEST(JsonSchema, AcceptsWhatIsValid) {
  const std::vector<Case> cases = {
      {R"({"type":"integer","minimum":-3,"maximum":12})",
       {"0", "-3", "12", "7.0", " 5 "},
       {"-4", "13", "1.5", "\"1\"", "1e1", "007"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"]})",
       {R"({"b":""})", R"({"a":1,"b":"x"})", R"({"b":"x","a":1,"c":[{}]})", R"({"\u0062":"x"})"},
       {R"({})", R"({"a":1})", R"({"b":1})", R"({"b":"","b":""})", R"({"c":1,"c":2,"b":""})",
        R"({"b":"","\u0062":""})"}},
      {R"({"properties":{"a":true},"additionalProperties":false,"maxProperties":1,"type":"object"})",
       {"{}", R"({"a":[]})"},
       {R"({"b":1})", R"({"a":1,"a":1})"}},
      {R"({"type":"object","patternProperties":{"^x-":{"type":"string"}},"additionalProperties":{"type":"integer"}})",
       {R"({"x-a":"1","y":2})", "{}"},
       {R"({"x-a":1})", R"({"y":"2"})", R"({"y":2,"y":3})"}},
      {R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"})",
       {R"({"a":1})", R"({"b":1,"c":2})"},
       {"{}", R"({"a":1,"b":2})"}},
      {R"({"not":{"required":["a"],"properties":{"b":{"type":"integer"}}},"type":"object"})",
       {"{}", R"({"a":1,"b":"x"})"},
       {R"({"a":1})", R"({"a":1,"b":2})"}},
      {R"({"if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["x"]},"else":{"maxProperties":1},"type":"object"})",
       {R"({"k":1,"x":0})", R"({"k":2})", R"({"x":0,"k":1,"z":0})", "{}"},
       {R"({"k":1})", R"({"k":2,"x":0})"}},
      {R"({"type":"array","contains":{"type":"integer"},"maxItems":3})",
       {"[1]", R"(["a","b",3])", R"([1,2,3])"},
       {"[]", R"(["a","b","c"])", R"(["a","b","c",1])"}},
      {R"({"type":"array","items":{"type":["string","number"]},"uniqueItems":true})",
       {R"([])", R"(["a","b",1,2.5])"},
       {R"(["a","\u0061"])", "[1,1.0]", "[0,-0]", R"(["a","b","a"])"}},
      {R"({"type":"array","items":{"enum":["a","b"]},"uniqueItems":true,"minItems":2})",
       {R"(["a","b"])", R"(["b","a"])"},
       {R"(["a"])", R"(["a","a"])", R"(["a","b","a"])"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {"\"ab\"", "\"\xc3\xa9\xe2\x82\xac\"", "\"\\ud83d\\ude00a\"", "\"\\n\\t\\\\\""},
       {"\"a\"", "\"abcd\"", "\"\\ud83d\"", "\"\xc3\""}},
      {R"({"const":{"a":[1,{"b":null}]}})",
       {R"({"a":[1,{"b":null}]})", R"({ "a" : [ 1.0 , { "b" : null } ] })"},
       {R"({"a":[1,{"b":null}],"c":0})", R"({"a":[2,{"b":null}]})", "{}"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"},"v":{"type":"integer"}},"required":["v"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
       {R"({"v":1})", R"({"next":{"next":{"v":3},"v":2},"v":1})"},
       {R"({"next":{"v":1}})", R"({"v":1,"next":{"v":1,"next":{}}})"}},
      {R"({"dependentRequired":{"a":["b"]},"type":"object"})",
       {"{}", R"({"b":1})", R"({"a":1,"b":1})"},
       {R"({"a":1})"}},
      {R"({"type":"string","format":"date"})",
       {"\"2024-02-29\"", "\"2023-12-31\""},
       {"\"2023-02-29\"", "\"2024-13-01\"", "\"2024-1-1\""}},
      {R"({"multipleOf":0.25,"minimum":0,"maximum":1})",
       {"0", "0.25", "0.750", "1.0", "\"x\""},
       {"0.3", "1.25", "-0.25"}},
  };
  const TokenTable table = byte_table();
  for (const Case& test : cases) {
    const Grammar grammar =
        Grammar::json_schema(table, test.schema, SchemaOptions::every_spelling());
    for (const char* text : test.valid)
      EXPECT_TRUE(accepts(grammar, text)) << test.schema << "\n" << text;
    for (const char* text : test.invalid) {
      EXPECT_FALSE(accepts(grammar, text)) << test.schema << "\n" << text;
    }
  }
}

TEST(JsonSchema, RefusesWithAPointerAndAReason) {
  const TokenTable table = byte_table();
  const struct {
    const char* schema;
    ErrorKind kind;
    const char* says;
  } cases[] = {
      {"{", ErrorKind::kBadFile, "byte 1"},
      {"[]", ErrorKind::kBadFile, "expected a schema"},
      {R"({"properties":{"a":{"type":"text"}}})", ErrorKind::kBadFile, "'#/properties/a/type'"},
      {R"({"minLength":-1})", ErrorKind::kBadFile, "'#/minLength'"},
      {R"({"pattern":"("})", ErrorKind::kUnsupported, "'#/pattern'"},
      {R"({"$ref":"#/$defs/none"})", ErrorKind::kBadFile, "leads nowhere"},
      {R"({"$ref":"#"})", ErrorKind::kBadFile, "without end"},
      {R"({"$ref":"https://example.org/other.json"})", ErrorKind::kUnsupported, "another document"},
      {R"({"$dynamicRef":"https://example.org/x#y"})", ErrorKind::kUnsupported, "'#/$dynamicRef'"},
      {R"({"type":"object","required":["a"],"properties":{"a":false}})", ErrorKind::kUnsupported,
       "nothing is valid"},
      {R"({"type":"string","minLength":3,"maxLength":2})", ErrorKind::kUnsupported,
       "nothing is valid"},
      {R"({"enum":["a"],"type":"integer"})", ErrorKind::kUnsupported, "nothing is valid"},
      {R"({"items":{"type":"object","maxProperties":1},"uniqueItems":true})",
       ErrorKind::kUnsupported, "uniqueItems"},
      {R"({"$defs":{"n":{"type":"object","required":["n"],"properties":{"n":{"$ref":"#/$defs/n"}}}},"$ref":"#/$defs/n"})",
       ErrorKind::kUnsupported, "nothing is valid"},
  };
  for (const auto& test : cases) {
    try {
      Grammar::json_schema(table, test.schema);
      ADD_FAILURE() << "compiled: " << test.schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), test.kind) << test.schema << "\n" << error.what();
      EXPECT_NE(std::string(error.what()).find(test.says), std::string::npos) << test.schema << "\n"
                                                                              << error.what();
    }
  }
}

TEST(JsonSchema, HostileSchemasEndInTime) {
  const TokenTable table = byte_table();
  std::string deep = "true";
  for (int i = 0; i < 2000; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_THROW(Grammar::json_schema(table, deep), Error);
  std::string wide = R"({"oneOf":[)";
  for (int i = 0; i < 60; ++i) {
    if (i > 0) wide += ",";
    wide += "{\"properties\":{";
    for (int k = 0; k < 20; ++k) {
      wide +=
          (k ? ",\"p" : "\"p") + std::to_string(k) + "\":{\"minimum\":" + std::to_string(i) + "}";
    }
    wide += "}}";
  }
  EXPECT_THROW(Grammar::json_schema(table, wide + "]}"), Error);
  std::string chain = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 5000; ++i) {
    chain += "\"" + std::to_string(i) + "\":{\"$ref\":\"#/$defs/" + std::to_string(i + 1) + "\"},";
  }
  EXPECT_THROW(Grammar::json_schema(table, chain + "\"5000\":{}}}"), Error);
  SchemaOptions small;
  small.max_states = 3000;
  EXPECT_THROW(
      Grammar::json_schema(
          table,
          R"({"pattern":"^(a|b)*a(a|b){12}$","not":{"pattern":"^(a|b)*b(a|b){13}$"},"type":"string","minLength":40})",
          small),
      Error);
}

TEST(Json, WhitespaceModes) {
  const TokenTable table = byte_table();
  for (auto [mode, text, expected] :
       {std::tuple{JsonWhitespace::kRfc, "{ \"a\" :\n[ 1 , 2 ] }", true},
        {JsonWhitespace::kOneLine, "{\"a\": [1, 2]}", true},
        {JsonWhitespace::kOneLine, "{\"a\":[1,2]}", true},
        {JsonWhitespace::kOneLine, "{ \"a\":[1,2]}", false},
        {JsonWhitespace::kOneLine, "{\"a\":  1}", false},
        {JsonWhitespace::kCompact, "{\"a\":[1,2]}", true},
        {JsonWhitespace::kCompact, "{\"a\": 1}", false}}) {
    SchemaOptions options;
    options.whitespace = mode;
    EXPECT_EQ(accepts(Grammar::json(table, options), text), expected) << text;
  }
}

TEST(Regex, MatchesTheWholeText) {
  const TokenTable table = byte_table();
  const Grammar grammar = Grammar::regex(table, "(yes|no)(, (yes|no))*");
  EXPECT_TRUE(accepts(grammar, "yes, no"));
  EXPECT_FALSE(accepts(grammar, "yes, "));
  EXPECT_FALSE(accepts(grammar, "yes,no"));
  EXPECT_THROW(Grammar::regex(table, "("), Error);
  EXPECT_THROW(Grammar::regex(table, "a(?=b)c"), Error);
}

TEST(Choices, OneOfThem) {
  const TokenTable table = byte_table();
  const Grammar grammar = Grammar::choices(table, {"red", "green", "greenish"});
  EXPECT_TRUE(accepts(grammar, "green"));
  EXPECT_TRUE(accepts(grammar, "greenish"));
  EXPECT_FALSE(accepts(grammar, "gree"));
  const auto constraint = grammar.start();
  EXPECT_EQ(constraint->forced_bytes(), "");
  ASSERT_TRUE(feed(*constraint, "g"));
  EXPECT_EQ(constraint->forced_bytes(), "reen");
  EXPECT_THROW(Grammar::choices(table, {}), Error);
  EXPECT_THROW(Grammar::choices(table, {"\xff"}), Error);
}

/// Answers of random tokens, until a limit is met; the message.
std::string limit_met(const std::function<Grammar()>& make) {
  try {
    const Grammar grammar = make();
    std::mt19937 rng(5);
    for (int answer = 0; answer < 200; ++answer) {
      const auto constraint = grammar.start();
      std::vector<uint32_t> mask((static_cast<size_t>(constraint->vocab_size()) + 31) / 32);
      for (int step = 0; step < 40 && constraint->allowed_tokens(mask); ++step) {
        auto id = static_cast<int32_t>(rng() % static_cast<uint32_t>(constraint->vocab_size()));
        while (!(mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1)) {
          id = (id + 1) % constraint->vocab_size();
        }
        constraint->accept(id);
      }
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    return error.what();
  }
  return "";
}

TEST(Grammar, AHostSetsTheLimitsOfEachKind) {
  const TokenTable table = byte_table();
  GrammarCache cache;
  std::mt19937 rng(1);
  std::vector<std::string> texts(300, std::string(20, ' '));
  for (std::string& text : texts) {
    for (char& letter : text) letter = static_cast<char>('a' + rng() % 26);
  }
  const std::string pattern = "(a|b)*a(a|b){12}";
  const std::vector<std::function<Grammar(const GrammarOptions&)>> kinds = {
      [&](const auto& o) { return Grammar::regex(table, pattern, o); },
      [&](const auto& o) { return cache.regex(table, pattern, o); },
      [&](const auto& o) { return Grammar::choices(table, texts, o); },
      [&](const auto& o) { return cache.choices(table, texts, o); },
      [&](const auto& o) { return Grammar::json(table, o.schema); },
      [&](const auto& o) { return cache.json(table, o.schema); },
      [&](const auto& o) {
        return Grammar::json_schema(table, R"({"pattern":"^)" + pattern + R"($"})", o.schema);
      },
      [&](const auto& o) { return Grammar::gbnf(table, "root ::= ([ab] [ab]){9} \"x\"", o); },
      [&](const auto& o) { return Grammar::lark(table, "start: /" + pattern + "/", o); },
      [&](const auto& o) {
        return Grammar::tags(
            table, R"({"tags":[{"begin":"x","regex":")" + pattern + R"(","end":"y"}]})", o);
      }};
  for (size_t i = 0; i < kinds.size(); ++i) {
    GrammarOptions small;
    small.max_states = small.schema.max_states = i == 4 || i == 5 ? 100 : 150;
    EXPECT_EQ(limit_met([&] { return kinds[i]({}); }), "") << i;
    const std::string message = limit_met([&] { return kinds[i](small); });
    EXPECT_NE(message.find("automaton"), std::string::npos) << i << ": " << message;
    EXPECT_EQ(limit_met([&] { return kinds[i]({}); }), "") << i;
  }
}

TEST(Constraint, ForcedBytesOfAnObject) {
  SchemaOptions options;
  options.whitespace = JsonWhitespace::kCompact;
  const Grammar grammar = Grammar::json_schema(
      byte_table(),
      R"({"type":"object","properties":{"name":{"enum":["x1","x2"]}},"required":["name"],"additionalProperties":false})",
      options);
  const auto constraint = grammar.start();
  // A character may be spelt as an escape, so only what has no other spelling is forced.
  EXPECT_EQ(constraint->forced_bytes(), "{\"");
  EXPECT_EQ(constraint->forced_text(), "{\"name\":\"x");
  ASSERT_TRUE(feed(*constraint, "{\"name"));
  EXPECT_EQ(constraint->forced_bytes(), "\":\"");
  ASSERT_TRUE(feed(*constraint, "\":\"x1\""));
  EXPECT_EQ(constraint->forced_bytes(), "}");
}

TEST(Constraint, ForcedTextLeavesOutEscapesThatOnlySpell) {
  SchemaOptions options;
  options.whitespace = JsonWhitespace::kCompact;
  const auto forced = [&](const std::string& schema, const std::string& behind) {
    const auto constraint = Grammar::json_schema(byte_table(), schema, options).start();
    EXPECT_TRUE(feed(*constraint, behind));
    return constraint->forced_text();
  };
  // Here an escape is another value, not another spelling.
  EXPECT_EQ(forced(R"({"enum":["a\b","acd"]})", "\"a"), "");
  EXPECT_EQ(forced(R"({"enum":["a\b","acd"]})", "\"ac"), "d\"");
  EXPECT_EQ(forced(R"({"const":"a\"b"})", ""), "\"a");
  EXPECT_EQ(forced(R"({"const":"aé"})", "\"\\u006"), "");  // an escape has begun
  EXPECT_EQ(forced(R"({"const":"aé"})", ""), "\"aé\"");
  EXPECT_EQ(forced(R"({"type":"string","pattern":"^ab(c|d)e$"})", ""), "\"ab");
  const std::string two =
      R"({"type":"object","required":["ab","ac"],"additionalProperties":false,
          "properties":{"ab":{"const":1},"ac":{"const":[]}}})";
  EXPECT_EQ(forced(two, ""), "{\"a");
  EXPECT_EQ(forced(two, "{\"ac"), "\":[],\"ab\":1}");  // that key has come
  options.integers = JsonIntegers::kAny;
  EXPECT_EQ(forced(two, "{\"ac"), "\":[],\"ab\":1");                       // 1.0 is 1, too
  EXPECT_EQ(forced(R"({"type":"object","required":["ab"]})", "{"), "\"");  // and any other
}

TEST(Constraint, EndsOnlyWhereComplete) {
  const TokenTable table = byte_table();
  const Grammar grammar = Grammar::json_schema(table, R"({"type":"integer"})");
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  EXPECT_TRUE(constraint->allowed_tokens(mask));
  EXPECT_FALSE(mask[0] & 1);
  EXPECT_FALSE(constraint->accept(kEndId));
  ASSERT_TRUE(feed(*constraint, "12"));
  EXPECT_TRUE(constraint->allowed_tokens(mask));
  EXPECT_TRUE(mask[0] & 1);
  EXPECT_TRUE(constraint->accept(kEndId));
  EXPECT_FALSE(constraint->allowed_tokens(mask));
  EXPECT_FALSE(feed(*constraint, "3"));
  constraint->rollback(1);
  EXPECT_TRUE(feed(*constraint, "3"));
  EXPECT_THROW(constraint->rollback(4), Error);
  EXPECT_THROW(constraint->rollback(-1), Error);
  std::vector<uint32_t> wrong(1);
  EXPECT_THROW(constraint->allowed_tokens(wrong), Error);
  EXPECT_FALSE(constraint->accept(-1));
  EXPECT_FALSE(constraint->accept(table.vocab_size()));
}

TEST(Constraint, RollbackAndForkComeBackToTheSameMasks) {
  const TokenTable table = byte_table({"\"a", "\":", "\", \"", "{\"", "\"}", "], ", "abc", "1, 2"});
  const Grammar grammar = Grammar::json_schema(
      table,
      R"({"type":"object","additionalProperties":{"type":"array","items":{"type":["string","integer"]},"uniqueItems":true},"oneOf":[{"required":["a"]},{"required":["b"]}]})");
  const std::string text = R"({"a": ["x", 1, 2, "abc"], "c": [], "dd": [7]})";
  std::mt19937 rng(3);
  auto constraint = grammar.start();
  std::vector<std::vector<uint32_t>> masks;
  std::vector<uint32_t> mask(table.mask_words());
  size_t at = 0;
  std::vector<std::unique_ptr<Constraint>> forks;
  for (int step = 0; step < 3000; ++step) {
    if (masks.size() <= at) {
      constraint->allowed_tokens(mask);
      masks.push_back(mask);
    }
    constraint->allowed_tokens(mask);
    ASSERT_EQ(mask, masks[at]) << "after " << text.substr(0, at);
    const uint32_t roll = rng() % 10;
    if (roll == 0 && at > 0) {
      const size_t back = 1 + rng() % at;
      constraint->rollback(static_cast<int32_t>(back));
      at -= back;
    } else if (roll == 1) {
      auto other = constraint->fork();
      if (rng() % 2) std::swap(other, constraint);
      // The one left behind goes its own way.
      if (at > 2 && rng() % 2) other->rollback(2);
      for (char byte : std::string("\"zz\"")) other->accept(1 + static_cast<uint8_t>(byte));
      forks.push_back(std::move(other));
      if (forks.size() > 5) forks.erase(forks.begin());
    } else if (at < text.size()) {
      ASSERT_TRUE(constraint->accept(1 + static_cast<uint8_t>(text[at]))) << text.substr(0, at);
      ++at;
    } else {
      EXPECT_TRUE(constraint->is_complete());
    }
  }
  EXPECT_EQ(masks.size(), text.size() + 1);
}

TEST(Constraint, OneGrammarServesSeveralThreads) {
  const TokenTable table = byte_table();
  const Grammar grammar = Grammar::json_schema(
      table, R"({"type":"array","items":{"type":"string","pattern":"^[a-f]{2,9}(-[0-9]+)?$"}})");
  std::vector<std::thread> threads;
  std::vector<int> good(4);
  for (size_t i = 0; i < good.size(); ++i) {
    threads.emplace_back([&, i] {
      std::vector<uint32_t> mask(table.mask_words());
      for (int round = 0; round < 50; ++round) {
        const auto constraint = grammar.start();
        const std::string text = "[\"" + std::string(2 + round % 7, static_cast<char>('a' + i)) +
                                 "-" + std::to_string(round) + "\"]";
        bool all = true;
        for (char byte : text) {
          constraint->allowed_tokens(mask);
          const int32_t id = 1 + static_cast<uint8_t>(byte);
          all = all && (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) &&
                constraint->accept(id);
        }
        good[i] += all && constraint->is_complete();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, std::vector<int>(4, 50));
}

TEST(TokenTable, RefusesWhatIsNoVocabulary) {
  EXPECT_THROW(TokenTable::from_bytes({}, {}), Error);
  EXPECT_THROW(TokenTable::from_bytes({"a"}, {1}), Error);
  EXPECT_THROW(TokenTable::from_bytes({"a"}, {-1}), Error);
  EXPECT_THROW(TokenTable::from_bytes({std::string(2000, 'a')}, {}), Error);
  // Two ids of the same bytes are both allowed.
  const TokenTable table = TokenTable::from_bytes({"", "1", "1", "x"}, {0});
  std::vector<uint32_t> mask(table.mask_words());
  Grammar::regex(table, "1+").start()->allowed_tokens(mask);
  EXPECT_EQ(mask[0], 0b0110u);
}

}  // namespace
}  // namespace vitrine
