// SPDX-License-Identifier: Apache-2.0
// Lark's notation: what it accepts and what is refused. lark_oracle_test.py has random grammars.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "constraint_fixture.h"

namespace vitrine {
namespace {

using test::is_prefix;

TokenTable small_table() {
  return test::byte_table({"ab", "a b", "1 +", "+ 2", "\"}", "}x", "  ", "(1", "\n\n"});
}

void check_masks(const Grammar& grammar, const TokenTable& table, std::string_view text) {
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  for (size_t at = 0;; ++at) {
    constraint->allowed_tokens(mask);
    for (int32_t id = 0; id < table.vocab_size(); ++id) {
      const bool is_set = mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
      const bool is_accepted = constraint->accept(id);
      if (is_accepted) constraint->rollback(1);
      ASSERT_EQ(is_set, is_accepted) << "token " << id << " at byte " << at << " of " << text;
    }
    EXPECT_EQ(constraint->tokens_to_finish() == 0, constraint->is_complete());
    if (at == text.size()) return;
    ASSERT_TRUE(constraint->accept(1 + static_cast<uint8_t>(text[at])));
  }
}

TEST(Lark, AcceptsWhatItSays) {
  const TokenTable table = small_table();
  struct Case {
    const char* grammar;
    std::vector<const char*> whole, not_whole, no_prefix;
  };
  const std::vector<Case> cases = {
      {R"x(// arithmetic
%import common.INT
%import common.WS_INLINE -> SPACE
%ignore SPACE
?start: sum
?sum: product | sum "+" product -> add   # left recursion
    | sum "-" product -> sub
?product.2: atom
    | product "*" atom
atom: INT | "(" sum ")"
)x",
       {"1", " 1 + 2*(3-4) ", "((7))", "1  "},
       {"", "1 +", "(1"},
       {"+", "1 1", "1)"}},
      {"start: \"se\"i \"x\"..\"z\" /[a-c]+/i? /./s NAME~2..3\nNAME: LOW+ \"!\" | /é\\//\nLOW: "
       "\"l\" | \"o\"",
       {"Sexa\nlo!\xc3\xa9/", "sEyBl!o!l!", "sezAbCxl!l!"},
       {"sexa\nlo!", "se"},
       {"sa", "sew", "sexa\nlo!lo!lo!lo!"}},
      {"start: [\"a\"] (\"b\" | \"c\")* \"d\"{2,} \"e\"~2 \"f\"{1} \"g\"{,1}",
       {"ddeef", "abcddddeefg"},
       {"a", "ddee"},
       {"de", "ddefg", "ddeefgg"}},
      {"start: call \"x\"?\ncall: \"f\" %json {\"type\": \"object\", \"properties\": {\"}\\\"\": "
       "{\"type\":"
       " \"null\"}},\n  \"additionalProperties\": false}\n%ignore \" \"",
       {"f{}", "f {\"}\\\"\":null} x ", "f{} "},
       {"f", "f{\""},
       {"x", "f{\"a", "f{}{"}},
      {"start: (f_a | f_b)* TEXT\nTEXT: /(.|\\n)*/\nhead_a[lazy]: TEXT \"<f\"\n"
       "f_a: head_a \"=a>\" \"1\"\nf_b: head_a \"=b>\" \"2\"\n",
       {"", "any <text", "x<f=a>1y<f=b>2", "<f=a>1<f=a>1 "},
       {},
       {}},
      {"%import common (ESCAPED_STRING, NUMBER)\nstart: pair (\",\" pair)*\npair: ESCAPED_STRING "
       "\":\" "
       "NUMBER\n",
       {"\"a\":1", "\"\\\"\":.5e3,\"\":1."},
       {"\"a", "\"a\":"},
       {"\"\n", "\"a\":e"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.grammar);
    GrammarOptions options;
    options.schema.whitespace = JsonWhitespace::kCompact;
    const Grammar grammar = Grammar::lark(table, one.grammar, options);
    for (const char* text : one.whole) {
      EXPECT_TRUE(is_prefix(grammar, text, true)) << text;
      check_masks(grammar, table, text);
    }
    for (const char* text : one.not_whole) {
      EXPECT_TRUE(is_prefix(grammar, text, false)) << text;
      EXPECT_FALSE(is_prefix(grammar, text, true)) << text;
    }
    for (const char* text : one.no_prefix) EXPECT_FALSE(is_prefix(grammar, text, false)) << text;
  }
}

TEST(Lark, EveryImportedTerminalCompiles) {
  const TokenTable table = small_table();
  const std::vector<std::pair<const char*, std::vector<const char*>>> terminals = {
      {"DIGIT", {"7"}},
      {"HEXDIGIT", {"f"}},
      {"INT", {"12"}},
      {"SIGNED_INT", {"-12", "+1"}},
      {"DECIMAL", {"1.", ".5"}},
      {"FLOAT", {"1e5", "1.5", ".5E-2"}},
      {"SIGNED_FLOAT", {"-1.5"}},
      {"NUMBER", {"1", "1.", "1.5e3"}},
      {"SIGNED_NUMBER", {"+.5"}},
      {"ESCAPED_STRING", {"\"a\\\"b\""}},
      {"LCASE_LETTER", {"a"}},
      {"UCASE_LETTER", {"A"}},
      {"LETTER", {"A"}},
      {"WORD", {"Ab"}},
      {"CNAME", {"_a1"}},
      {"WS_INLINE", {" \t"}},
      {"WS", {" \n"}},
      {"CR", {"\r"}},
      {"LF", {"\n"}},
      {"NEWLINE", {"\n\r\n"}},
      {"SH_COMMENT", {"#x"}},
      {"CPP_COMMENT", {"//x"}},
      {"C_COMMENT", {"/* * **/"}},
      {"SQL_COMMENT", {"--"}}};
  for (const auto& [name, texts] : terminals) {
    const std::string text = std::string("%import common.") + name + "\nstart: " + name;
    const Grammar grammar = Grammar::lark(table, text);
    for (const char* one : texts) EXPECT_TRUE(is_prefix(grammar, one, true)) << name << one;
    EXPECT_FALSE(is_prefix(grammar, "", true)) << name;
  }
}

TEST(Lark, MistakesHaveAPlace) {
  const TokenTable table = small_table();
  const std::vector<std::pair<const char*, std::vector<const char*>>> cases = {
      {"start: \"a\" other", {"line 1, column 12", "rule 'other' is not defined"}},
      {"start: A", {"line 1, column 8", "terminal 'A' is not defined"}},
      {"start: \"a\"\nlost: \"b\"", {"line 2, column 1", "'lost' cannot be reached"}},
      {"start: \"a\"\nLOST: \"b\"", {"line 2, column 1", "'LOST' cannot be reached"}},
      {"a: \"b\"", {"no rule 'start'"}},
      {"", {"no rule 'start'"}},
      {"start: \"a", {"line 1, column 8", "does not end"}},
      {"start: /a", {"line 1, column 8", "does not end"}},
      {"start: /(a/", {"line 1, column 8", "regular expression"}},
      {"start: /a/x", {"line 1, column 11", "flag"}},
      {"start: (\"a\"", {"')'"}},
      {"start: \"z\"..\"a\"", {"line 1, column 8", "range"}},
      {"start: \"\\q\"", {"line 1, column 9", "unknown escape"}},
      {"start = \"a\"", {"line 1, column 7", "':'"}},
      {"start: \"a\"~3..2", {"line 1, column 11", "least number"}},
      {"start: \"a\"~99999", {"more than 10000"}},
      {"start: \"a\"\nstart: \"b\"", {"line 2, column 1", "defined twice"}},
      {"start: \"a\" start", {"line 1, column 1", "'start' has no text that ends"}},
      {"start: A\nA: \"x\" B\nB: A", {"leads back to itself"}},
      {"start: A\nA: b\nb: \"x\"", {"line 2, column 4", "'b' is a rule"}},
      {"%import common.INTEGER\nstart: \"a\"", {"line 1, column 16", "INTEGER"}},
      {"%import python.NAME\nstart: \"a\"", {"line 1, column 9", "common"}},
      {"%declare A\nstart: \"a\"", {"line 1, column 1", "%declare"}},
      {"start: %json {\"type\": \"objekt\"}", {"line 1, column 8", "/type"}},
      {"start: %json {\"type\"", {"braces"}},
      {"start: t{a}\nt{x}: x", {"line 1, column 9", "templates"}},
      {"start: <|tool|>", {"line 1, column 8", "'<'"}},
      {"start[stop=\"x\"]: \"a\"", {"'stop' is not supported"}},
      {"start: \"a\" \xff", {"UTF-8"}},
  };
  for (const auto& [text, words] : cases) {
    try {
      Grammar::lark(table, text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kInvalidArgument ||
                  error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kBadFile);
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos);
      for (const char* word : words) {
        EXPECT_NE(what.find(word), std::string::npos) << what;
      }
    }
  }
  EXPECT_THROW(Grammar::lark(table, "start: " + std::string(1000, '(')), Error);
}

TEST(Lark, TheNotationShows) {
  const std::vector<std::pair<const char*, GrammarNotation>> cases = {
      {"root ::= \"a\"", GrammarNotation::kGbnf},
      {"# text\n\nroot   ::=\n  \"a\"", GrammarNotation::kGbnf},
      {"start: \"::=\"", GrammarNotation::kLark},
      {"// x\n%import common.INT\nstart: INT", GrammarNotation::kLark},
      {"?start : \"a\"", GrammarNotation::kLark},
      {"start[lazy]: /a/", GrammarNotation::kLark}};
  for (const auto& [text, notation] : cases) EXPECT_EQ(grammar_notation(text), notation) << text;
  // Tags take either.
  const Grammar grammar =
      Grammar::tags(small_table(),
                    R"({"tags":[{"begin":"<","grammar":"start: \"a\" start | \"b\"","end":">"}]})");
  EXPECT_TRUE(is_prefix(grammar, "x <aab> y", true));
  EXPECT_FALSE(is_prefix(grammar, "x <c", false));
}

TEST(Lark, DepthIsBounded) {
  std::string text = "start: r0 \"x\"\n";  // rules within rules, far beyond any stack
  for (int i = 0; i < 50000; ++i) {
    text += "r" + std::to_string(i) + ": r" + std::to_string(i + 1) + "\n";
  }
  text += "r50000: \"a\"\n";
  EXPECT_NO_THROW(Grammar::lark(small_table(), text));
}

}  // namespace
}  // namespace vitrine
