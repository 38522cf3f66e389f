// SPDX-License-Identifier: Apache-2.0
// Masks that are made from parts known beforehand say what trying each token says.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "constraint_fixture.h"

namespace vitrine {
namespace {

using test::kEndId;

/// All bytes, and tokens that run through what the masks know: runs of white space, keys that end
/// and go on, words of each kind of character, more than one string in a token, escapes.
TokenTable mixed_table() {
  return test::byte_table({"  ",
                           "\n\n",
                           "\n  ",
                           " \"",
                           "\n\"",
                           "  {",
                           " [",
                           ", ",
                           ",\"",
                           "\": ",
                           "\":",
                           "\":\"",
                           "\":{\"",
                           "\":1,\"",
                           "\",\"",
                           "\", \"",
                           "a\":",
                           "a\"",
                           "b\":1",
                           "ab\":\"",
                           "x\",\"y",
                           "\":\"a\",\"b\":",
                           "lower",
                           "UPPER",
                           "Mixed1",
                           "12345",
                           "a-b_c",
                           "a b c",
                           "a.b/c",
                           "is longer than eight",
                           "and this token is longer than all slices are",
                           "\xc3\xa9",
                           "\xc3\xa9t\xc3\xa9",
                           "a\xe2\x82",
                           "\\n",
                           "\\u00",
                           "\\u0061",
                           "\\\"",
                           "\\\"\":",
                           "\\\\\"",
                           "a\\nb",
                           "}",
                           "}}",
                           "}, {",
                           "]}",
                           "\"}",
                           "\"},",
                           "\"]",
                           "0,",
                           "1}",
                           "true",
                           "null,",
                           "aa",
                           "aaa",
                           "aaaa",
                           "abab",
                           "red",
                           "red\"",
                           "green",
                           "gre",
                           "en\"",
                           "een\", \"",
                           "blue\"]",
                           "re",
                           "d\",",
                           "1-",
                           "-1",
                           "1.5",
                           "5e",
                           ".0",
                           "bl",
                           "ue",
                           "z",
                           "zz"});
}

/// Compares each mask along random answers, which lean towards longer tokens, with trying each.
void check_walks(const Grammar& grammar, const TokenTable& table, const char* what) {
  std::mt19937 random(7);
  std::vector<uint32_t> mask(table.mask_words());
  for (int walk = 0; walk < 30; ++walk) {
    const auto constraint = grammar.start();
    std::string text;
    for (int length = 0; length < 40; ++length) {
      constraint->allowed_tokens(mask);
      std::vector<int32_t> allowed, longer;
      for (int32_t id = 0; id < table.vocab_size(); ++id) {
        const bool is_allowed = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
        const bool is_accepted = constraint->accept(id);
        if (is_accepted) constraint->rollback(1);
        ASSERT_EQ(is_allowed, is_accepted)
            << what << ": token " << id << " '" << table.bytes(id) << "' behind '" << text << "'";
        if (!is_allowed || id == kEndId) continue;
        allowed.push_back(id);
        if (table.bytes(id).size() > 1 && table.bytes(id)[0] != ' ') longer.push_back(id);
      }
      if (allowed.empty()) break;
      const auto& from = !longer.empty() && random() % 4 != 0 ? longer : allowed;
      const int32_t id = from[random() % from.size()];
      ASSERT_TRUE(constraint->accept(id));
      text += table.bytes(id);
    }
  }
}

TEST(Mask, OfSchemasIsWhatTryingEachTokenSays) {
  const TokenTable table = mixed_table();
  for (
      const char* schema : {
          "true",
          R"({"type":"object"})",
          R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"string"},"\"":{"const":1}}})",
          R"({"type":"object","properties":{"a":false},"additionalProperties":{"type":"string"}})",
          R"({"type":"object","patternProperties":{"^a":{"type":"integer"}},"additionalProperties":{"type":"object"}})",
          R"({"type":"object","minProperties":2,"maxProperties":3})",
          R"({"type":"object","required":["a"],"maxProperties":2})",
          R"({"type":"object","properties":{"lower":{"type":"null"},"a-b_c":{"type":"array"}},"additionalProperties":false})",
          R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"})",
          R"({"type":"array","items":{"enum":["red","green","blue","re"]},"uniqueItems":true})",
          R"({"type":"array","items":{"enum":["a\"b","a\nb","a","b","\\"]},"uniqueItems":true})",
          R"({"type":"array","items":{"type":"string","pattern":"^[ab]{1,2}$"},"uniqueItems":true})",
          R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
          R"({"type":"array","uniqueItems":true,"contains":{"type":"string"},"minContains":2})",
          R"({"type":"string","pattern":"^[a-z]+$"})",
          R"({"type":"string","pattern":"^[A-Za-z0-9_-]{3,12}$"})",
          R"({"type":"string","pattern":"^[ -~]*$","maxLength":9})",
          R"({"type":"string","pattern":"^(\\S+\\s){0,3}\\S+$","maxLength":25})",
          R"({"type":"string","pattern":"a.*b","maxLength":60})",
          R"({"type":"string","pattern":"^a{2,30}b?$"})",
          R"({"type":"string","minLength":5,"maxLength":30})",
          // Bounds that no token meets at first, and some do later.
          R"({"type":"string","pattern":"^[a-z ]{1,100}$"})",
          R"({"type":"string","pattern":"^[a-z ]{2,50}[A-Z0-9]{0,70}$"})",
          R"({"type":"string","pattern":"^$|^[a-z]+(-[a-z]+)*$","minLength":1,"maxLength":70})",
          R"({"type":"string","pattern":"^[a-z ]+x{20}$","minLength":40,"maxLength":80})",
          R"({"type":"string","pattern":"^([a-z]{1,60} ){1,50}end$","maxLength":90})",
          R"({"type":"string","pattern":"^[a-z ]{0,200}$","maxLength":60,"not":{"pattern":"^z"}})",
          R"({"type":"string","pattern":"^([a-z ]{0,60}[0-9]){1,50}$"})",
          R"({"type":["number","null"],"minimum":-3,"maximum":120})",
      }) {
    for (const JsonWhitespace whitespace : {JsonWhitespace::kRfc, JsonWhitespace::kOneLine}) {
      SchemaOptions options;
      options.whitespace = whitespace;
      check_walks(Grammar::json_schema(table, schema, options), table, schema);
    }
  }
  check_walks(Grammar::json(table), table, "any JSON");
}

TEST(Mask, OfRegularExpressionsIsWhatTryingEachTokenSays) {
  const TokenTable table = mixed_table();
  for (const char* pattern :
       {"[a-z]*", "[a-zA-Z0-9]{4,9}", "[a-z ]{8}", ".{1,25}", "([a-z]{3} ){1,5}end", "a{1,4}",
        "(lower|UPPER)[0-9]*x", "[^b]*", "[a-z]{4}", "[a-z]{20}[0-9]"}) {
    check_walks(Grammar::regex(table, pattern), table, pattern);
  }
}

}  // namespace
}  // namespace vitrine
