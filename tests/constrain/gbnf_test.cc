// SPDX-License-Identifier: Apache-2.0
// Context-free grammars: what they accept, what is refused, and random ones against brute force.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "constraint_fixture.h"

namespace vitrine {
namespace {

using test::is_prefix;
using test::kEndId;

TokenTable small_table() { return test::byte_table({}, "abc(+"); }

TEST(Gbnf, AcceptsWhatItSays) {
  const TokenTable table = small_table();
  struct Case {
    const char* grammar;
    std::vector<const char*> whole, not_whole, no_prefix;
  };
  const std::vector<Case> cases = {
      {"root ::= root \"+\" term | term\nterm ::= [0-9]+ | \"(\" root \")\"",
       {"1", "1+2", "(1+23)+4", "((7))"},
       {"", "1+", "((1)", "("},
       {"+", "1++", "())", "a"}},
      {"root ::= (\n  \"a\" | # one\n  \"bc\"\n)* \"!\"?\n",
       {"", "abca!", "!"},
       {"ab", "b"},
       {"!!", "c"}},
      {"root ::= s\ns ::= s s | \"a\" | \"\"", {"", "a", "aaaa"}, {}, {"b"}},
      {"root ::= \"x\"{2,4} y{3}\ny ::= \"y\" root?",
       {"xxyyy", "xxxxyyy", "xxyxxyyyyy"},
       {"xx", "xxyy", "xxyx"},
       {"xy", "xxxxx"}},
      {"root ::= [^a-c\\]\\n]+ \"\\u00e9\" .",
       {"xy\xc3\xa9z", "x\xc3\xa9\xc3\xa9"},
       {"x\xc3"},
       {"a", "x]", "\n"}},
      {"root ::= item (\", \" item)* \nitem ::= \"<\" name \">\" root \"</\" name \">\" | name\n"
       "name ::= [a-z]{1,3}",
       {"ab", "<a>b, c</x>, d"},
       {"<a>", "a,"},
       {"abcd", "<>"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.grammar);
    const Grammar grammar = Grammar::gbnf(table, one.grammar);
    for (const char* text : one.whole) EXPECT_TRUE(is_prefix(grammar, text, true)) << text;
    for (const char* text : one.not_whole) {
      EXPECT_TRUE(is_prefix(grammar, text, false)) << text;
      EXPECT_FALSE(is_prefix(grammar, text, true)) << text;
    }
    for (const char* text : one.no_prefix) EXPECT_FALSE(is_prefix(grammar, text, false)) << text;
  }
}

TEST(Gbnf, MistakesHaveAPlace) {
  const TokenTable table = small_table();
  const std::vector<std::pair<const char*, std::vector<const char*>>> cases = {
      {"root ::= \"a\" other", {"line 1, column 14", "'other' is not defined"}},
      {"root ::= \"a\"\nlost ::= \"b\"", {"line 2, column 1", "'lost' cannot be reached"}},
      {"a ::= \"b\"", {"no rule 'root'"}},
      {"root ::= \"a", {"line 1, column 12", "within quotes"}},
      {"root ::= (\"a\"", {"line 1, column 14", "')'"}},
      {"root ::= [z-a]", {"line 1, column 11", "a range"}},
      {"root ::= [^\\U00000000-\\U0010ffff]", {"without any character"}},
      {"root ::= \"\\q\"", {"line 1, column 11", "unknown escape"}},
      {"root = \"a\"", {"line 1, column 6", "'::='"}},
      {"root ::= \"a\"{3,2}", {"line 1, column 13", "least number"}},
      {"root ::= \"a\"{99999}", {"more than 10000"}},
      {"root ::= \"a\"\nroot ::= \"b\"", {"line 2, column 1", "defined twice"}},
      {"root ::= \"a\" root", {"line 1, column 1", "'root' has no text that ends"}},
      {"x ::= \"a\"\nroot ::= x root", {"line 2, column 1", "'root' has no text that ends"}},
      {"# none\nroot ::= root", {"line 2, column 1", "'root' has no text that ends"}},
      {"root ::= \"a\" \xff", {"UTF-8"}},
      {"", {"no rule 'root'"}},
  };
  for (const auto& [text, words] : cases) {
    try {
      Grammar::gbnf(table, text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos);
      for (const char* word : words) EXPECT_NE(what.find(word), std::string::npos) << what;
    }
  }
  EXPECT_THROW(Grammar::gbnf(table, "root ::= " + std::string(1000, '(')), Error);
}

TEST(Gbnf, WorkIsBounded) {
  GrammarOptions options;
  options.max_items = 3000;
  const Grammar grammar =
      Grammar::gbnf(small_table(), "root ::= root root | \"a\" | root root root", options);
  const auto constraint = grammar.start();
  try {
    for (int i = 0; i < 1000; ++i) constraint->accept(1 + 'a');
    ADD_FAILURE() << "no limit was met";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  }
  constraint->rollback(1);  // what was accepted before stands
  EXPECT_TRUE(constraint->is_complete());
  std::string deep = "root \"a\"";
  for (int i = 0; i < 12; ++i) deep = "(" + deep + "){0,9999}";
  EXPECT_THROW(Grammar::gbnf(small_table(), "root ::= \"b\" | \"a\" " + deep), Error);
  // Alternatives that all stay open: each byte looks at each.
  std::string wide = "root ::= [ab]+";
  for (char x = 'a'; x <= 'z'; ++x) {
    for (char y = 'A'; y <= 'Z'; ++y) wide += std::string(" | [") + x + y + "]+";
  }
  EXPECT_NO_THROW(Grammar::gbnf(small_table(), wide).start());
  options.max_states = 2400;
  try {
    Grammar::gbnf(small_table(), wide, options);
    ADD_FAILURE() << "no limit was met";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("alternatives at one place"), std::string::npos)
        << error.what();
  }
}

/// Masks and steps until the answer ends or a limit is met, which counts as an end.
bool ends_within(const Grammar& grammar, const TokenTable& table, int steps) {
  std::vector<uint32_t> mask(table.mask_words());
  try {
    const auto constraint = grammar.start();
    for (int i = 0; i < steps && constraint->allowed_tokens(mask); ++i) {
      constraint->tokens_to_finish();
      constraint->keep_within(mask, 5);
      for (const char byte : {'x', 'a', 'b'}) {
        if (constraint->accept(1 + static_cast<uint8_t>(byte))) break;
      }
    }
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kUnsupported;
  }
  return true;
}

TEST(Gbnf, LongRulesAndChainsOfThemNeedNoStackAndNoEndOfTime) {
  const TokenTable table = small_table();
  GrammarOptions options;
  options.max_items = 50000;
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 20000; ++i) {
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"a\"?\n";
  }
  EXPECT_TRUE(ends_within(Grammar::gbnf(table, chain + "r20000 ::= \"b\"\n", options), table, 5));
  for (const char* part : {"\"a\"? ", "(\"a\" root)? "}) {
    std::string run = "\"b\" | \"x\" root ";
    for (int i = 0; i < 100000; ++i) run += part;
    try {
      EXPECT_TRUE(ends_within(Grammar::gbnf(table, "root ::= " + run, options), table, 5)) << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << part;
    }
  }
  // Shortest texts that are long, many times.
  std::string texts = "root ::= \"a\" root | r0\n";
  for (int i = 0; i < 10000; ++i) {
    texts += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | \"z\" r" +
             std::to_string(i) + "\n";
  }
  texts += "r10000 ::= \"" + std::string(60000, 'y') + "\"\n";
  EXPECT_THROW(Grammar::gbnf(table, texts, options), Error);
}

// ---- random grammars ----------------------------------------------------------------------------

constexpr size_t kLongest = 5;

struct RandomGrammar {
  std::vector<std::vector<std::vector<std::string>>> rules;  // [rule][alternative][symbol]

  std::string text() const {
    std::string out;
    for (size_t i = 0; i < rules.size(); ++i) {
      out += name(i) + " ::= ";
      for (size_t k = 0; k < rules[i].size(); ++k) {
        if (k > 0) out += " | ";
        for (const std::string& symbol : rules[i][k]) {
          out +=
              (symbol[0] == '<' ? name(static_cast<size_t>(symbol[1] - '0')) : '"' + symbol + '"') +
              " ";
        }
        if (rules[i][k].empty()) out += "\"\"";
      }
      out += "\n";
    }
    return out;
  }
  static std::string name(size_t rule) { return rule == 0 ? "root" : "r" + std::to_string(rule); }

  /// All texts of at most kLongest bytes, by repeated substitution until nothing is new.
  std::set<std::string> language() const {
    std::vector<std::set<std::string>> found(rules.size());
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < rules.size(); ++i) {
        for (const auto& alternative : rules[i]) {
          std::set<std::string> texts = {""};
          for (const std::string& symbol : alternative) {
            std::set<std::string> longer;
            for (const std::string& begin : texts) {
              const std::set<std::string> literal = {symbol};
              for (const std::string& more :
                   symbol[0] == '<' ? found[static_cast<size_t>(symbol[1] - '0')] : literal) {
                if (begin.size() + more.size() <= kLongest) longer.insert(begin + more);
              }
            }
            texts = std::move(longer);
          }
          for (const std::string& text : texts) changed |= found[i].insert(text).second;
        }
      }
    }
    return found[0];
  }
};

RandomGrammar draw_grammar(std::mt19937& rng) {
  RandomGrammar grammar;
  const size_t count = 1 + rng() % 4;
  for (size_t i = 0; i < count; ++i) {
    auto& rule = grammar.rules.emplace_back(1 + rng() % 3);
    for (auto& alternative : rule) {
      for (size_t k = rng() % 4; k > 0; --k) {
        if (rng() % 2 == 0) {
          alternative.push_back("<" + std::to_string(rng() % count));
        } else {
          static const char* const kLiterals[] = {"a", "b", "ab", "c"};
          alternative.emplace_back(kLiterals[rng() % 4]);
        }
      }
    }
  }
  // Every rule is reached.
  for (size_t i = 1; i < count; ++i) grammar.rules[i - 1][0].push_back("<" + std::to_string(i));
  return grammar;
}

void check_masks(const Grammar& grammar, const TokenTable& table, std::mt19937& rng) {
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  for (int step = 0; step < 5; ++step) {
    const bool any = constraint->allowed_tokens(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < table.vocab_size(); ++id) {
      const bool is_set = mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
      const bool is_accepted = constraint->accept(id);
      if (is_accepted) constraint->rollback(1);
      ASSERT_EQ(is_set, is_accepted) << "token " << id << " at step " << step;
      if (is_set && id != kEndId) allowed.push_back(id);
    }
    ASSERT_TRUE(any);
    const uint32_t needed = constraint->tokens_to_finish();
    ASSERT_LT(needed, 1000u);
    ASSERT_EQ(needed == 0, constraint->is_complete());
    // Following what fits alone comes to an end in time.
    auto probe = constraint->fork();
    for (uint32_t left = needed; left > 0 && !probe->is_complete(); --left) {
      probe->allowed_tokens(mask);
      ASSERT_TRUE(probe->keep_within(mask, left));
      int32_t first = 0;
      while (!(mask[static_cast<size_t>(first) / 32] >> (first % 32) & 1)) ++first;
      ASSERT_TRUE(probe->accept(first));
    }
    ASSERT_TRUE(probe->is_complete());
    if (allowed.empty()) return;
    ASSERT_TRUE(constraint->accept(allowed[rng() % allowed.size()]));
  }
}

TEST(Gbnf, RandomGrammarsAreReadAsByBruteForce) {
  const TokenTable table = small_table();
  std::mt19937 rng(11);
  int compiled = 0;
  for (int round = 0; round < 150; ++round) {
    const RandomGrammar drawn = draw_grammar(rng);
    const std::set<std::string> language = drawn.language();
    SCOPED_TRACE(drawn.text());
    std::optional<Grammar> grammar;
    try {
      grammar = Grammar::gbnf(table, drawn.text());
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no text that ends"), std::string::npos);
      EXPECT_TRUE(language.empty());
      continue;
    }
    ++compiled;
    std::set<std::string> prefixes;
    for (const std::string& text : language) {
      for (size_t length = 0; length <= text.size(); ++length) {
        prefixes.insert(text.substr(0, length));
      }
    }
    std::vector<std::string> texts = {""};
    for (size_t at = 0; at < texts.size(); ++at) {
      const std::string text = texts[at];
      const bool is_read = is_prefix(*grammar, text, false);
      ASSERT_EQ(is_prefix(*grammar, text, true), language.contains(text)) << text;
      ASSERT_TRUE(is_read || !prefixes.contains(text)) << text;
      if (is_read && text.size() < kLongest) {
        for (const char* next : {"a", "b", "c"}) texts.push_back(text + next);
      }
    }
    check_masks(*grammar, table, rng);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(compiled, 60);
}

}  // namespace
}  // namespace vitrine
