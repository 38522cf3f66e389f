// SPDX-License-Identifier: Apache-2.0
// Tags within free text: what they accept, what is refused, and random ones against brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "constraint_fixture.h"

namespace vitrine {
namespace {

using nlohmann::json;

using test::is_prefix;
using test::kEndId;

TokenTable small_table() {
  return test::byte_table(
      {"<t", "t>", "<t>", "<t>{", "}</",  "</t>",  "]</t>",   "a<",        "ab<",  "<<",
       "b]", "[[", "]]",  "[]<",  "1</t", "</t>a", "</t><t>", "\xc3\xa9<", "\xa9", "\"}<"},
      "ab<[]");
}

GrammarOptions compact() {
  GrammarOptions options;
  options.schema.whitespace = JsonWhitespace::kCompact;
  return options;
}

/// Follows random tokens: each mask against trying every token, every bound against following it,
/// and steps back and copies against what they should equal.
void check_walk(const Grammar& grammar, const TokenTable& table, std::mt19937& rng, int steps) {
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words()), again(table.mask_words());
  std::string text;
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE("after '" + text + "'");
    ASSERT_TRUE(constraint->allowed_tokens(mask));
    const auto copy = constraint->fork();
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < table.vocab_size(); ++id) {
      const bool is_set = mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
      const bool is_accepted = constraint->accept(id);
      if (is_accepted) constraint->rollback(1);
      ASSERT_EQ(is_set, is_accepted) << "token " << id;
      if (is_set && id != kEndId) allowed.push_back(id);
    }
    copy->allowed_tokens(again);
    ASSERT_EQ(mask, again);
    const uint32_t needed = constraint->tokens_to_finish();
    ASSERT_LT(needed, 1000u);
    ASSERT_EQ(needed == 0, constraint->is_complete());
    for (uint32_t limit = needed; limit < needed + 3; ++limit) {
      again = mask;
      ASSERT_TRUE(constraint->keep_within(again, limit) || (limit == 0 && mask[0] % 2 == 0));
      for (int32_t id = 1; id < table.vocab_size(); ++id) {
        if (!(again[static_cast<size_t>(id) / 32] >> (id % 32) & 1)) continue;
        ASSERT_TRUE(copy->accept(id));
        ASSERT_LE(copy->tokens_to_finish() + 1, limit) << "token " << id;
        copy->rollback(1);
      }
    }
    if (allowed.empty()) return;
    const int32_t id = allowed[rng() % allowed.size()];
    ASSERT_TRUE(constraint->accept(id));
    text += table.bytes(id);
  }
  const auto fresh = grammar.start();
  fresh->allowed_tokens(mask);
  const auto copy = constraint->fork();
  for (int step = 0; step < steps; ++step) constraint->rollback(1);
  constraint->allowed_tokens(again);
  ASSERT_EQ(mask, again);
  ASSERT_EQ(constraint->tokens_to_finish(), fresh->tokens_to_finish());
  copy->rollback(steps);
  copy->allowed_tokens(again);
  ASSERT_EQ(mask, again);
}

TEST(Tags, SpecialTokensThatAreWritten) {
  const TokenTable plain = TokenTable::from_bytes({"", "a", "<", "", ""}, {0});
  const TokenTable table =
      plain.with(std::vector<std::pair<int32_t, std::string>>{{0, "</end>"}, {2, "<"}, {3, "<t>"}});
  EXPECT_EQ(table.bytes(3), "<t>");
  EXPECT_EQ(table.bytes(0), "");  // it ends the sequence
  const auto constraint =
      Grammar::tags(table, R"({"tags":[{"begin":"<t>","regex":"a","end":"<t>"}]})").start();
  for (const int32_t id : {1, 3, 1, 3, 2}) EXPECT_TRUE(constraint->accept(id)) << id;
  EXPECT_FALSE(constraint->accept(4));
  EXPECT_TRUE(constraint->is_complete());
  EXPECT_TRUE(constraint->accept(3));
  EXPECT_FALSE(constraint->accept(0));
  EXPECT_THROW(plain.with(std::vector<std::pair<int32_t, std::string>>{{5, "b"}}), Error);
}

TEST(Tags, AnErrorCallsASchemaByItsPlace) {
  try {
    Grammar::tags(small_table(), R"({"type":"json_schema","place":"the parameters of 'f'",
"json_schema":{"items":{"minimum":"x"}}})");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(
        std::string_view(error.what()).starts_with("the parameters of 'f' at '#/items/minimum': "))
        << error.what();
  }
}

TEST(Tags, SchemasExcludeTexts) {
  const TokenTable table = small_table();
  const Grammar grammar = Grammar::tags(
      table,
      R"({"type":"json_schema","excludes":["<t>","ab"],"json_schema":{"type":"object","properties":
{"xab":{},"x":{"enum":["ab","b"]}}}})",
      compact());
  const std::pair<const char*, bool> cases[] = {
      {R"({})", true},
      {R"({"x":"b"})", true},
      {R"({"x":"ab"})", false},
      {R"({"xab":1})", false},
      {R"({"a":"<t"})", true},
      {R"({"a":"<t>"})", false},
      {R"({"a":"\u003ct>"})", false},
      {R"({"a":["ba",{"b<t>":1}]})", false},
      {R"({"a":["ba",{"b<t":1}]})", true},
  };
  for (const auto& [text, is_whole] : cases)
    EXPECT_EQ(is_prefix(grammar, text, true), is_whole) << text;
  std::mt19937 rng(7);
  for (int walk = 0; walk < 20; ++walk) check_walk(grammar, table, rng, 24);
}

TEST(Tags, AcceptWhatTheySay) {
  const TokenTable table = small_table();
  struct Case {
    const char* document;
    std::vector<const char*> whole, not_whole, no_prefix;
  };
  const char* kCall =
      R"({"tags":[{"begin":"<t>","schema":{"type":"object","required":["x"],"properties":{"x":{"type":
"integer"}},"additionalProperties":false},"end":"</t>"}]})";
  const std::vector<Case> cases = {
      {kCall,
       {"", "some text", "<t>{\"x\":1}</t>", "a < b <t",
        "é<t>{\"x\":12}</t> and <t>{\"x\":-1}</t>.", "<<t>{\"x\":1}</t>", "</t>",
        "<t<t>{\"x\":0}</t>"},
       {"<t>", "<t>{\"x\":1", "<t>{\"x\":1}", "<t>{\"x\":1}</t", "\xc3"},
       {"<t>a", "<t><", "<t>{}", "<t>{\"y\"", "<t>{\"x\":1}</t><t>x", "\xff"}},
      {R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f="],"tags":[
{"type":"tag","begin":"<f=a>","content":{"type":"regex","pattern":"[0-9]+"},"end":"</f>"},
{"type":"tag","begin":"<f=b>","content":{"type":"grammar","grammar":"root ::= \"(\" root \")\" | \"x\""},
"end":["</f>","!"]}],"stop_after_first":true}})",
       {"<f", "<f=a>12</f>", "hm <f=b>((x))</f>", "<f=b>x!"},
       {"<f=", "<f=a", "<f=b>((x"},
       {"<f=c", "<f=a>x", "<f=b>x)", "<f=a>1</f> ", "<f=b>x!x"}},
      {R"({"tags":[{"begin":"<a","regex":"1*","end":">"},{"begin":"<ab","regex":"2+","end":">"}],
"at_least_one":true})",
       {"<a>", "<ab2>", "<a1> <ab2>x", "<a11>"},
       {"", "<", "<a", "<ab"},
       {" ", "<b", "<a2", "<ab1", "<a>< <a!"}},
      {R"({"structures":[{"begin":"[","schema":"{\"const\":[]}","end":"]"}],"triggers":["["],
"type":"structural_tag"})",
       {"x", "[[]]", "a[[]]b[[]]"},
       {"[", "[["},
       {"[a", "[]"}},
      {R"({"type":"sequence","elements":[{"type":"tag","begin":"<k>","content":{"type":"any_text"},
"end":"</k>"},{"type":"triggered_tags","triggers":["<t"],"tags":[{"begin":"<t>","content":
{"type":"const_string","value":"!"},"end":""}],"excludes":["no"]}]})",
       {"<k></k>", "<k>no < k <k></k>x", "<k>a</k> n <t>! o"},
       {"<k>", "<k>a</k", "<k></k> <t"},
       {"k", "<k></k>no", "<k></k><t>?"}},
      {R"({"type":"tags_with_separator","separator":", ","at_least_one":true,"tags":[
{"begin":"a","regex":"b?","end":""},{"begin":"c","content":{"type":"or","elements":[
{"type":"const_string","value":"d"},{"type":"repeat","min":2,"max":3,"content":
{"type":"const_string","value":"e"}}]},"end":"."}]})",
       {"a", "ab, cd., a", "cee., ceee."},
       {"c", "a,", "ce"},
       {"b", "aa", "ce.", "ceeee", "a,a"}},
      {R"({"type":"dispatch","rules":[["<1>",{"type":"regex","pattern":"a"}],["<2>",
{"type":"optional","content":{"type":"const_string","value":"b"}}]],"excludes":["x"]})",
       {"", "..<1>a <2>b<2>c", "<2>", "<2>b"},
       {"<1>"},
       {"<1>b", "x", "<1>ax"}},
      {R"({"type":"tag","begin":"(","content":{"type":"any_text","max_chars":2},"end":"]"})",
       {"(]", "(ab]", "(é(]"},
       {"(ab"},
       {"(abc", "(]a", "(]]"}},
      {R"({"type":"sequence","elements":[{"type":"star","content":{"type":"const_string","value":"a"}},
{"type":"plus","content":{"type":"json_schema","json_schema":{"enum":[true,false]}}}]})",
       {"true", "aatruefalse"},
       {"", "aat"},
       {"b", "truea"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.document);
    const Grammar grammar = Grammar::tags(table, one.document, compact());
    for (const char* text : one.whole) EXPECT_TRUE(is_prefix(grammar, text, true)) << text;
    for (const char* text : one.not_whole) {
      EXPECT_TRUE(is_prefix(grammar, text, false)) << text;
      EXPECT_FALSE(is_prefix(grammar, text, true)) << text;
    }
    for (const char* text : one.no_prefix) EXPECT_FALSE(is_prefix(grammar, text, false)) << text;
    std::mt19937 rng(5);
    for (int walk = 0; walk < 3; ++walk) check_walk(grammar, table, rng, 12);
  }
}

TEST(Tags, MistakesHaveAPointer) {
  const TokenTable table = small_table();
  const std::vector<std::pair<const char*, std::vector<const char*>>> cases = {
      {"{", {"tags: "}},
      {"[]", {"'#'", "object"}},
      {"{}", {"'#'", "'type' is missing"}},
      {R"({"tags":[]})", {"'#/tags'", "not empty"}},
      {R"({"tags":[{"end":"b","regex":"c"}]})", {"'#/tags/0'", "'begin'"}},
      {R"({"tags":[{"begin":"","end":"b","regex":"c"}]})", {"'#/tags/0/begin'", "not empty"}},
      {R"({"tags":[{"begin":"a","regex":"c"}]})", {"'#/tags/0'", "'end'"}},
      {R"({"tags":[{"begin":"a","end":"b"}]})", {"'#/tags/0'", "content"}},
      {R"({"tags":[{"begin":"a","end":"b","regex":"c","schema":{}}]})", {"contradict"}},
      {R"({"tags":[{"begin":"a","end":"b","regex":"("}]})", {"'#/tags/0/regex'", "regular"}},
      {R"({"tags":[{"begin":"a","end":"b","regex":"[^\\s\\S]"}]})",
       {"'#/tags/0/regex'", "no text"}},
      {R"({"tags":[{"begin":"a","end":"b","schema":{"x":1,"type":"objekt"}}]})",
       {"tags at '#/tags/0/schema/type'"}},
      {R"({"tags":[{"begin":"a","end":"b","schema":"{"}]})", {"'#/tags/0/schema'"}},
      {R"({"tags":[{"begin":"a","end":"b","grammar":"root ::= x"}]})",
       {"'#/tags/0/grammar'", "line 1, column 10"}},
      {R"({"tags":[{"begin":"a","end":"b","grammar":"root ::= \"x\" root"}]})",
       {"'#/tags/0/grammar'", "no text that ends"}},
      {R"({"tags":[{"begin":"a","end":"b","regex":"c"}],"trigers":["a"]})", {"\"trigers\""}},
      {R"({"tags":[{"begin":"a","end":"b","regex":"c"}],"triggers":["b"]})",
       {"'#/triggers/0'", "no tag"}},
      {R"({"tags":[{"begin":"a","end":"b","regex":"c"},{"begin":"x","end":"","regex":"c"}],
"triggers":["a"]})",
       {"'#/tags/1/begin'", "none of the triggers"}},
      {R"({"tags":[{"begin":"ab","end":"b","regex":"c"}],"triggers":["a","ab"]})",
       {"'#/triggers/1'", "comes first"}},
      {R"({"tags":[{"begin":"xay","end":"b","regex":"c"},{"begin":"a","end":"b","regex":"c"}]})",
       {"never comes first"}},
      {R"({"tags":[{"begin":"a","end":"b","regex":"c"}],"at_least_one":1})",
       {"'#/at_least_one'", "true or false"}},
      {R"({"type":"token","token":3})", {"'#/type'", "not supported"}},
      {R"({"type":"tag","begin":{"type":"token","token":3},"content":{},"end":""})",
       {"'#/begin'", "tokens are not supported"}},
      {R"({"type":"repeat","min":3,"max":2,"content":{"type":"any_text"}})", {"min <= max"}},
      {R"({"type":"any_text","max_tokens":3})", {"'#/max_tokens'"}},
      {R"({"type":"json_schema","json_schema":{},"style":"qwen_xml"})", {"'#/style'"}},
  };
  for (const auto& [text, words] : cases) {
    try {
      Grammar::tags(table, text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kBadFile || error.kind() == ErrorKind::kUnsupported ||
                  error.kind() == ErrorKind::kInvalidArgument);
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos);
      for (const char* word : words) EXPECT_NE(what.find(word), std::string::npos) << what;
    }
  }
  std::string deep = R"({"type":"any_text"})";
  for (int i = 0; i < 150; ++i) deep = R"({"type":"star","content":)" + deep + "}";
  EXPECT_THROW(Grammar::tags(table, deep), Error);
}

TEST(Tags, WhatIsForcedIsSaid) {
  const TokenTable table = small_table();
  const Grammar grammar = Grammar::tags(
      table,
      R"({"tags":[{"begin":"<call>","schema":{"const":[]},"end":"</call>"}],"triggers":["<c"]})",
      compact());
  const auto constraint = grammar.start();
  EXPECT_EQ(constraint->forced_bytes(), "");
  for (const char byte : std::string("a <c")) {
    ASSERT_TRUE(constraint->accept(1 + static_cast<uint8_t>(byte)));
  }
  EXPECT_EQ(constraint->forced_bytes(), "all>[]</call>");
  EXPECT_EQ(constraint->forced_text(), "all>[]</call>");
  constraint->rollback(1);
  EXPECT_EQ(constraint->forced_bytes(), "");
  EXPECT_TRUE(constraint->is_complete());
}

// ---- random documents ---------------------------------------------------------------------------

struct RandomTags {
  struct Tag {
    std::string begin, end;
    std::vector<std::string> contents;
    json schema;  // null: the contents are a regular expression
  };
  std::vector<Tag> tags;
  std::vector<std::string> triggers;
  std::string exclude;
  bool at_least_one = false, stop_after_first = false;

  json document() const {
    json out;
    for (const Tag& tag : tags) {
      json one = {{"begin", tag.begin}, {"end", tag.end}};
      if (tag.schema.is_null()) {
        std::string pattern;
        for (size_t i = 0; i < tag.contents.size(); ++i) {
          pattern += (i > 0 ? "|" : "") + tag.contents[i];
        }
        one["regex"] = "(" + pattern + ")";
      } else {
        one["schema"] = tag.schema;
      }
      out["tags"].push_back(one);
    }
    out["triggers"] = triggers;
    if (!exclude.empty()) out["excludes"] = {exclude};
    out["at_least_one"] = at_least_one;
    out["stop_after_first"] = stop_after_first;
    return out;
  }

  bool is_free(std::string_view text) const {
    return exclude.empty() || text.find(exclude) == std::string_view::npos;
  }
  /// A whole answer from here on, by the definition.
  bool matches(std::string_view text, bool is_first) const {
    if (!is_first && stop_after_first) return text.empty();
    if (is_first && at_least_one) return matches_tag(text, "");
    size_t first = std::string_view::npos;  // where the first trigger ends
    for (const std::string& trigger : triggers) {
      const size_t at = text.find(trigger);
      if (at != std::string_view::npos) first = std::min(first, at + trigger.size());
    }
    if (first == std::string_view::npos) return is_free(text);
    return std::any_of(triggers.begin(), triggers.end(), [&](const std::string& trigger) {
      return text.substr(0, first).ends_with(trigger) && is_free(text.substr(0, first)) &&
             matches_tag(text.substr(first - trigger.size()), trigger);
    });
  }
  bool matches_tag(std::string_view text, std::string_view trigger) const {
    for (const Tag& tag : tags) {
      if (!tag.begin.starts_with(trigger) || !text.starts_with(tag.begin)) continue;
      for (const std::string& content : tag.contents) {
        const std::string written = tag.begin + content + tag.end;
        if (text.starts_with(written) && matches(text.substr(written.size()), false)) return true;
      }
    }
    return false;
  }
};

RandomTags draw_tags(std::mt19937& rng) {
  static const char* const kBegins[] = {"<", "<a", "<b", "<<", "a<", "b<a"};
  static const char* const kEnds[] = {"", "b", ">", "<", "]", "a<"};
  RandomTags out;
  std::set<std::string> begins;
  for (size_t i = 1 + rng() % 3; i > 0; --i) {
    RandomTags::Tag tag;
    tag.begin = kBegins[rng() % 6];
    tag.end = kEnds[rng() % 6];
    switch (rng() % 4) {
      case 0: tag.contents = {"a", "ab"}; break;
      case 1: tag.contents = {"", "<", "<a"}; break;
      case 2:
        tag.schema = {{"type", "array"}, {"maxItems", 0}};
        tag.contents = {"[]"};
        break;
      default:
        tag.schema = {{"type", "array"}, {"maxItems", 1}, {"items", {{"const", json::array()}}}};
        tag.contents = {"[]", "[[]]"};
        break;
    }
    begins.insert(tag.begin);
    out.tags.push_back(tag);
  }
  for (const std::string& begin : begins) {  // shortest beginnings
    if (out.triggers.empty() || !begin.starts_with(out.triggers.back())) {
      out.triggers.push_back(begin);
    }
  }
  if (rng() % 3 == 0) out.exclude = rng() % 2 == 0 ? "bb" : "b";
  out.at_least_one = rng() % 4 == 0;
  out.stop_after_first = rng() % 3 == 0;
  return out;
}

TEST(Tags, RandomTagsAreReadAsByBruteForce) {
  const TokenTable table = small_table();
  const std::string letters = "ab<[]";
  std::mt19937 rng(17);
  int compiled = 0, members = 0;
  for (int round = 0; round < 60; ++round) {
    const RandomTags drawn = draw_tags(rng);
    SCOPED_TRACE(drawn.document().dump());
    std::optional<Grammar> grammar;
    try {
      grammar = Grammar::tags(table, drawn.document().dump(), compact());
    } catch (const Error& error) {
      // A trigger within another one, or excluded.
      EXPECT_NE(std::string(error.what()).find("never comes first"), std::string::npos);
      continue;
    }
    ++compiled;
    // Every text of up to five letters, letter by letter.
    const auto constraint = grammar->start();
    std::string text;
    const auto visit = [&](auto&& self) -> void {
      const bool is_member = drawn.matches(text, true);
      members += is_member ? 1 : 0;
      ASSERT_EQ(constraint->is_complete(), is_member) << text;
      if (text.size() == 5) return;
      for (const char letter : letters) {
        text += letter;
        if (constraint->accept(1 + static_cast<uint8_t>(letter))) {
          self(self);
          constraint->rollback(1);
        } else {  // nothing that begins so is an answer
          for (const char second : letters) {
            ASSERT_FALSE(drawn.matches(text + second, true)) << text << second;
          }
          ASSERT_FALSE(drawn.matches(text, true)) << text;
        }
        text.pop_back();
      }
    };
    visit(visit);
    check_walk(*grammar, table, rng, 8);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(compiled, 25);
  EXPECT_GT(members, 1000);
}

}  // namespace
}  // namespace vitrine
