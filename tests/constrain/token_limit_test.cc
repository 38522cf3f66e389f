// SPDX-License-Identifier: Apache-2.0
// Answers that end within a number of tokens: bounds are kept, and masks leave nothing out.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "constraint_fixture.h"

namespace vitrine {
namespace {

constexpr int32_t kEnd = 0;

/// All bytes and some that JSON often has: 300 tokens.
TokenTable small_table(bool has_all_bytes = true) {
  std::vector<std::string> bytes(1);
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* token :
       {"{\"", "\":",  "\": ",  ", ",    ",\"",  "\"}",  "\"]",   "[]",   "{}",    "}}",     "]}",
        "\",", "[{\"", "true",  "false", "null", "name", "tem",   "pera", "ture",  "id",     "10",
        "00",  "123",  "abc",   "the ",  " a",   "\\\"", "\\u00", "e9",   "\":\"", "\", \"", "0.",
        ".5",  "aaaa", "value", "items", "\":[", "],",   "\":{",  "kind", "--",    "2024-"}) {
    bytes.emplace_back(token);
  }
  if (!has_all_bytes) bytes[1 + '}'].clear();
  EXPECT_EQ(bytes.size(), 300u);
  return TokenTable::from_bytes(std::move(bytes), {kEnd});
}

const char* const kSchemas[] = {
    R"({"type":"integer","minimum":1000,"maximum":99999})",
    R"({"type":"string","minLength":12,"maxLength":40})",
    R"({"type":"string","pattern":"^[a-f]{3}-[0-9]{4}(x|yy)$"})",
    R"({"type":"string","format":"date-time"})",
    R"({"enum":["alpha","beta",12,null,{"a":[1,2]}]})",
    R"({"type":"object","properties":{"name":{"type":"string"},"temperature":{"type":"number"}},
        "required":["name","temperature"],"additionalProperties":false})",
    R"({"type":"object","properties":{"a":{"type":"integer"},"abc":{"type":"boolean"}},
        "required":["abc"]})",
    R"({"type":"object","minProperties":3})",
    R"({"type":"object","patternProperties":{"^x-":{"type":"boolean"}},"minProperties":2,
        "additionalProperties":false})",
    R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"}},
        "required":["id"]},"minItems":3})",
    R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":2})",
    R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":9},"uniqueItems":true,
        "minItems":3})",
    R"({"type":"array","items":{"type":"object","properties":{"id":{"enum":[1,2]}},
        "required":["id"]},"uniqueItems":true,"minItems":2})",
    R"({"type":"array","items":{"type":["array","boolean"]},"uniqueItems":true})",
    R"({"type":"array","items":{"type":["string","integer"]},"uniqueItems":true,
        "contains":{"type":"string"},"minContains":2})",
    R"({"type":"array","contains":{"const":"abc"},"minItems":2,"maxItems":4})",
    R"({"type":"array","prefixItems":[{"type":"string"},{"type":"boolean"}],"minItems":2})",
    R"({"oneOf":[{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}},
        {"type":"object","required":["b"],"properties":{"b":{"type":"array","minItems":2}}}]})",
    R"({"$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},
        {"type":"null"}]},"id":{"type":"integer"}},"required":["id","next"]}},"$ref":"#/$defs/n"})",
    R"({"type":"object","not":{"required":["a","b"]},"required":["kind"]})",
    R"({"if":{"properties":{"kind":{"const":1}},"required":["kind"]},"then":{"required":["value"]},
        "type":"object"})",
    R"({"type":"array","items":{"type":"object"},"not":{"uniqueItems":true}})",
    "true",
};

std::vector<Grammar> all_grammars(const TokenTable& table) {
  std::vector<Grammar> grammars;
  for (const char* schema : kSchemas) {
    for (const auto whitespace : {JsonWhitespace::kCompact, JsonWhitespace::kOneLine}) {
      SchemaOptions options;
      options.whitespace = whitespace;
      grammars.push_back(Grammar::json_schema(table, schema, options));
    }
  }
  grammars.push_back(Grammar::json(table));
  for (const char* pattern : {"[a-z]{2,30}\\.(com|info)", "(ab|abc123)+e", "(?=.*the )[a-z ]{8,20}",
                              "[0-9]{1,3}(,[0-9]{3})*"}) {
    grammars.push_back(Grammar::regex(table, pattern));
  }
  grammars.push_back(Grammar::gbnf(
      table, "root ::= root \", \" item | item\nitem ::= \"name\" (\"[]\" | \"{\" root \"}\")"));
  grammars.push_back(Grammar::choices(table, {"value", "values of the name", "item"}));
  return grammars;
}

std::vector<int32_t> ids_of(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < mask.size() * 32; ++id) {
    if (mask[id / 32] >> (id % 32) & 1) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

TEST(TokenLimit, EveryAnswerEndsInTime) {
  const TokenTable table = small_table();
  std::mt19937 rng(5);
  std::vector<uint32_t> mask(table.mask_words());
  size_t at_limit = 0, number = 0;
  for (const Grammar& grammar : all_grammars(table)) {
    ++number;
    const uint32_t least = grammar.start()->tokens_to_finish();
    ASSERT_LT(least, 100u) << number;
    for (int run = 0; run < 12; ++run) {
      const auto constraint = grammar.start();
      const uint32_t room = least + static_cast<uint32_t>(rng() % 12);
      std::string text;
      uint32_t used = 0;
      for (; used < room; ++used) {
        ASSERT_TRUE(constraint->allowed_tokens(mask)) << number << ' ' << text;
        const size_t before = ids_of(mask).size();
        ASSERT_TRUE(constraint->keep_within(mask, room - used)) << number << ' ' << text;
        const std::vector<int32_t> ids = ids_of(mask);
        at_limit += ids.size() < before;
        const int32_t token = ids[rng() % ids.size()];
        if (token == kEnd) break;
        ASSERT_TRUE(constraint->accept(token));
        text += table.bytes(token);
        ASSERT_LE(constraint->tokens_to_finish(), room - used - 1) << number << ' ' << text;
      }
      EXPECT_TRUE(constraint->is_complete()) << number << ' ' << text;
    }
  }
  EXPECT_GT(at_limit, 1000u);
}

/// What the interface does by itself: tries each token.
class Plain : public Constraint {
 public:
  explicit Plain(std::unique_ptr<Constraint> of) : of_(std::move(of)) {}
  int32_t vocab_size() const override { return of_->vocab_size(); }
  bool allowed_tokens(std::span<uint32_t> mask) override { return of_->allowed_tokens(mask); }
  bool accept(int32_t token) override { return of_->accept(token); }
  void rollback(int32_t count) override { of_->rollback(count); }
  bool is_complete() const override { return of_->is_complete(); }
  std::string forced_bytes() override { return of_->forced_bytes(); }
  uint32_t tokens_to_finish() override { return of_->tokens_to_finish(); }
  std::unique_ptr<Constraint> fork() const override { return of_->fork(); }

 private:
  std::unique_ptr<Constraint> of_;
};

TEST(TokenLimit, WhatIsLeftOutWasTriedInVain) {
  const TokenTable table = small_table();
  std::mt19937 rng(6);
  std::vector<uint32_t> mask(table.mask_words()), plain_mask(table.mask_words());
  size_t number = 0, more = 0, masks = 0;
  for (const Grammar& grammar : all_grammars(table)) {
    ++number;
    SCOPED_TRACE(number);
    const auto constraint = grammar.start();
    Plain plain(grammar.start());
    std::string text;
    for (int step = 0; step < 14; ++step) {
      const uint32_t limit =
          std::max(1U, constraint->tokens_to_finish() + static_cast<uint32_t>(rng() % 6));
      ASSERT_TRUE(constraint->allowed_tokens(mask));
      plain_mask = mask;
      const std::vector<int32_t> all = ids_of(mask);
      constraint->keep_within(mask, limit);
      plain.keep_within(plain_mask, limit);
      ++masks;
      for (const int32_t id : ids_of(plain_mask)) {
        // One by one the whole text is counted, which may be less than part by part.
        more += (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0;
      }
      for (const int32_t id : ids_of(mask)) {
        if (plain_mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) continue;
        // The completion that is known goes on so; one that is looked for anew may be longer.
        const auto follower = constraint->fork();
        ASSERT_TRUE(follower->accept(id));
        EXPECT_LT(follower->tokens_to_finish(), limit)
            << number << ": '" << table.bytes(id) << "' behind '" << text << "'";
      }
      const int32_t token = all[rng() % all.size()];
      if (token == kEnd) break;
      ASSERT_TRUE(constraint->accept(token));
      ASSERT_TRUE(plain.accept(token));
      text += table.bytes(token);
      if (constraint->tokens_to_finish() == Constraint::kNoTokenBound) break;
    }
  }
  EXPECT_LT(more, 20 * masks);
}

TEST(TokenLimit, KeysThatMayBeAnyAreDecidedTogether) {
  const TokenTable table = small_table();
  std::vector<uint32_t> mask(table.mask_words());
  const auto after = [&](const char* schema, std::string_view text, uint32_t limit) {
    const auto constraint = Grammar::json_schema(table, schema).start();
    EXPECT_TRUE(test::feed(*constraint, text));
    constraint->allowed_tokens(mask);
    constraint->keep_within(mask, limit);
    std::string kept;  // of the letters and the quote
    for (const char letter : std::string_view("\"abcxyz")) {
      const auto id = 1 + static_cast<size_t>(letter);
      if (mask[id / 32] >> (id % 32) & 1) kept += letter;
    }
    return kept;
  };
  // The last key that must come: a letter, the key's quote, ':', '""' and '}'.
  const char* three =
      R"({"type":"object","minProperties":3,"additionalProperties":{"type":"string"}})";
  const std::string two = R"({"a":"","b":"",")";
  EXPECT_EQ(after(three, two, 6), "\"cxyz");  // "a" and "b" are taken: they must go on
  EXPECT_EQ(after(three, two, 7), "\"abcxyz");
  const char* open = R"({"type":"object","properties":{"xy":{"const":"12345678"}}})";
  EXPECT_EQ(after(open, R"({"ab":1,"a)", 5), "\"acxyz");
  EXPECT_EQ(after(open, R"({"ab":1,"a)", 6), "\"abcxyz");
  EXPECT_EQ(after(open, R"({"x)", 5), "\"abcxz");  // what is named has a long value
  EXPECT_EQ(after(open, R"({"x)", 20), "\"abcxyz");
}

TEST(TokenLimit, AnEndStaysAndNoRoomLeavesNothingElse) {
  const TokenTable table = small_table();
  const auto constraint = Grammar::regex(table, "a*").start();
  std::vector<uint32_t> mask(table.mask_words());
  constraint->allowed_tokens(mask);
  EXPECT_TRUE(constraint->keep_within(mask, 0));
  EXPECT_EQ(ids_of(mask), std::vector<int32_t>{kEnd});
  EXPECT_EQ(constraint->tokens_to_finish(), 0u);
  EXPECT_TRUE(constraint->accept(kEnd));
  EXPECT_EQ(constraint->tokens_to_finish(), 0u);
}

TEST(TokenLimit, WhatNoTokenSpellsHasNoBound) {
  const TokenTable table = small_table(/*has_all_bytes=*/false);
  // "}" is there in "{}", '"}' and "}}" only.
  EXPECT_EQ(Grammar::json_schema(table, R"({"const":{}})").start()->tokens_to_finish(), 1u);
  const auto constraint = Grammar::regex(table, "a\\}").start();
  EXPECT_EQ(constraint->tokens_to_finish(), Constraint::kNoTokenBound);
}

TEST(TokenLimit, LongRepetitionsWithinOneAnother) {
  // A derivative of it is dear, and its shortest text has as many bytes as there are derivatives.
  const auto grammar = Grammar::regex(small_table(), "(((a{1,30}c?){1,64}d?){1,9}b?){4096}");
  EXPECT_EQ(grammar.start()->tokens_to_finish(), 1024u);  // "aaaa" is a token
}

TEST(TokenLimit, ARollbackForgetsThePlan) {
  const TokenTable table = small_table();
  const auto constraint = Grammar::choices(table, {"abc", "abcaaaa123"}).start();
  EXPECT_EQ(constraint->tokens_to_finish(), 1u);
  ASSERT_TRUE(constraint->accept(1 + 'a'));
  EXPECT_EQ(constraint->tokens_to_finish(), 2u);
  ASSERT_TRUE(constraint->accept(1 + 'b'));
  constraint->rollback(2);
  EXPECT_EQ(constraint->tokens_to_finish(), 1u);
}

/// What was known before a token is known after it was taken back, and by a fork.
TEST(TokenLimit, RollbacksAndForksForgetNoCompletion) {
  const TokenTable table = small_table();
  std::mt19937 rng(8);
  std::vector<uint32_t> mask(table.mask_words());
  for (const Grammar& grammar : all_grammars(table)) {
    const auto constraint = grammar.start();
    std::vector<uint32_t> bounds = {constraint->tokens_to_finish()};
    std::string text;
    for (int step = 0; step < 30; ++step) {
      if (rng() % 4 == 0 && bounds.size() > 1) {
        const auto count = 1 + static_cast<int32_t>(rng() % (bounds.size() - 1));
        constraint->rollback(count);
        bounds.resize(bounds.size() - static_cast<size_t>(count));
        EXPECT_LE(constraint->tokens_to_finish(), bounds.back()) << count << " back from " << text;
        text += '<';
        continue;
      }
      ASSERT_TRUE(constraint->allowed_tokens(mask));
      const std::vector<int32_t> ids = ids_of(mask);
      const int32_t token = ids[rng() % ids.size()];
      if (token == kEnd) break;
      ASSERT_TRUE(constraint->accept(token));
      text += table.bytes(token);
      bounds.push_back(constraint->tokens_to_finish());
      EXPECT_EQ(constraint->fork()->tokens_to_finish(), bounds.back()) << text;
    }
  }
}

/// What answers need at least that are too long to be written out is known before they begin; the
/// byte table's longest tokens are one byte, so that bytes are tokens.
TEST(TokenLimit, KnowsHowLargeALongAnswerIs) {
  const TokenTable table = test::byte_table();
  const auto needed = [](const Grammar& grammar) { return grammar.start()->tokens_to_finish(); };
  const auto of_schema = [&](const std::string& schema) {
    return needed(Grammar::json_schema(table, schema));
  };
  EXPECT_EQ(needed(Grammar::regex(table, "(a{1000}){1000}")), 1'000'000u);
  EXPECT_EQ(needed(Grammar::regex(table, "((a{1000}){1000}){1000}|(b{1000}){70}")), 70'000u);
  EXPECT_EQ(needed(Grammar::regex(table, "((ab{1000}){1000}){1000}")), 1'001'000'000u);
  EXPECT_EQ(needed(Grammar::regex(table, "((a{1000}){1000}){1000}((a{1000}){1000}){9000}")),
            Constraint::kNoTokenBound - 1);  // 10^10, and more than that
  EXPECT_EQ(of_schema(R"({"type":"string","minLength":70000})"), 70'002u);
  EXPECT_EQ(of_schema(R"({"type":"string","minLength":70000,"pattern":"^[a-z]*$"})"), 70'002u);
  EXPECT_EQ(of_schema(R"({"type":"array","minItems":1000000000})"), 2'000'000'001u);
  EXPECT_EQ(of_schema(R"({"type":"object","minProperties":100000})"), 500'001u);
  EXPECT_EQ(of_schema(R"({"type":"object","required":["a"],"properties":{"a":
      {"type":"string","minLength":3000000000}}})"),
            3'000'000'008u);
  EXPECT_EQ(needed(Grammar::gbnf(table, "root ::= ((\"a\"{1000}){1000}){10}")), 10'000'000u);
  EXPECT_EQ(needed(Grammar::gbnf(table,
                                 "root ::= \"(\" root \")\" | b b\n"
                                 "b ::= (\"a\"{1000}){1000}")),
            2'000'000u);
  // As many tokens of three letters are needed as fit; of others more.
  const TokenTable three = test::byte_table({"aaa", "xyxyxy"});
  EXPECT_EQ(needed(Grammar::regex(three, "(a{1000}){1000}")), 333'334u);
}

TEST(TokenLimit, RulesOutNothingBeforeALongAnswersEndIsInSight) {
  const TokenTable table = test::byte_table();
  const auto constraint = Grammar::regex(table, "(a{1000}){65}a{540}b?").start();
  ASSERT_EQ(constraint->tokens_to_finish(), 65'540u);
  std::vector<uint32_t> mask(table.mask_words());
  for (uint32_t left = 65'540; left > 65'530; --left) {
    constraint->allowed_tokens(mask);
    EXPECT_TRUE(constraint->keep_within(mask, left));
    EXPECT_TRUE(constraint->accept(1 + 'a'));
  }
  EXPECT_EQ(constraint->tokens_to_finish(), 65'530u);
}

}  // namespace
}  // namespace vitrine
