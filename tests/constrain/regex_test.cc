// SPDX-License-Identifier: Apache-2.0
// The algebra of regular languages, against sets of short strings.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/constrain/regex_parse.h"
#include "src/constrain/regex_pool.h"
#include "vitrine/core.h"

namespace vitrine::constrain {
namespace {

/// All strings over a and b of up to five letters.
const std::vector<std::string>& short_strings() {
  static const std::vector<std::string> strings = [] {
    std::vector<std::string> out = {""};
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i].size() == 5) break;
      out.push_back(out[i] + "a");
      out.push_back(out[i] + "b");
    }
    return out;
  }();
  return strings;
}

using Set = std::set<std::string>;

struct Pair {
  NodeId node;
  Set set;  // of the short strings
};

Pair draw(RegexPool& pool, std::mt19937& rng, int depth) {
  const auto letter = [&](const char* text) { return Pair{pool.literal(text), Set{text}}; };
  if (depth == 0) {
    switch (rng() % 4) {
      case 0: return letter("a");
      case 1: return letter("b");
      case 2: return {kEpsilonNode, {""}};
      default: return {pool.literals({"ab", "a", "bba", "abab"}), {"ab", "a", "bba", "abab"}};
    }
  }
  const Pair x = draw(pool, rng, depth - 1), y = draw(pool, rng, depth - 1);
  Set set;
  switch (rng() % 5) {
    case 0:
      for (const auto& s : x.set) {
        for (const auto& t : y.set) {
          if (s.size() + t.size() <= 5) set.insert(s + t);
        }
      }
      return {pool.cat(x.node, y.node), set};
    case 1:
      set = x.set;
      set.insert(y.set.begin(), y.set.end());
      return {pool.any_of(x.node, y.node), set};
    case 2:
      for (const auto& s : x.set) {
        if (y.set.count(s)) set.insert(s);
      }
      return {pool.all_of(x.node, y.node), set};
    case 3:
      for (const auto& s : short_strings()) {
        if (!x.set.count(s)) set.insert(s);
      }
      return {pool.text_complement(x.node), set};
    default: {
      const uint32_t low = rng() % 3, high = rng() % 2 ? kUnbounded : low + rng() % 3;
      Set power = {""};
      for (uint32_t count = 0; count <= 6 && count <= high; ++count) {
        if (count >= low) set.insert(power.begin(), power.end());
        Set next;
        for (const auto& s : power) {
          for (const auto& t : x.set) {
            if (s.size() + t.size() <= 5) next.insert(s + t);
          }
        }
        power = next;
      }
      if (high == kUnbounded || high > 6) set.insert(power.begin(), power.end());
      return {pool.repeat(x.node, low, high), set};
    }
  }
}

TEST(RegexPool, AgreesWithSetsOfStrings) {
  std::mt19937 rng(7);
  int64_t checked = 0;
  for (int round = 0; round < 3000; ++round) {
    RegexPool pool;
    const Pair pair = draw(pool, rng, 1 + static_cast<int>(rng() % 4));
    for (const std::string& text : short_strings()) {
      ASSERT_EQ(pool.matches(pair.node, text), pair.set.count(text) > 0)
          << "round " << round << " on '" << text << "'";
      ++checked;
    }
    // A state that is reached is live: some string goes on from it.
    if (!pool.is_live(pair.node)) {
      EXPECT_TRUE(pair.set.empty());
    } else {
      const std::string shortest = pool.shortest(pair.node);
      EXPECT_TRUE(pool.matches(pair.node, shortest));
      EXPECT_LE(shortest.size(), pool.shortest_bound(pair.node));
      for (const std::string& text : pair.set) EXPECT_LE(shortest.size(), text.size());
    }
  }
  EXPECT_GT(checked, 150000);
}

TEST(RegexPool, CountsStrings) {
  RegexPool pool;
  const NodeId ab = pool.bytes(ByteSet::range('a', 'b'));
  EXPECT_EQ(pool.count_strings(pool.repeat(ab, 0, 3), 1000), 15u);
  EXPECT_EQ(pool.count_strings(pool.repeat(ab, 0, 3), 10), 10u);
  EXPECT_TRUE(pool.is_infinite(pool.repeat(ab, 2, kUnbounded)));
  EXPECT_FALSE(pool.is_infinite(pool.repeat(ab, 2, 300)));
  EXPECT_EQ(pool.count_strings(kEmptyNode, 10), 0u);
}

TEST(RegexPool, LongRepetitionTakesNoSpaceOfItsOwn) {
  RegexPool pool;
  const size_t before = pool.num_nodes();
  const NodeId node = compile_pattern(pool, "^[a-z]{3,10000}$", PatternScope::kSearch);
  EXPECT_LT(pool.num_nodes() - before, 10u);
  EXPECT_FALSE(pool.matches(node, "ab"));
  EXPECT_TRUE(pool.matches(node, std::string(10000, 'x')));
  EXPECT_FALSE(pool.matches(node, std::string(10001, 'x')));
}

TEST(RegexPool, StopsAtItsLimit) {
  RegexPool pool(2000);
  EXPECT_THROW(
      {
        const NodeId node = compile_pattern(pool, "(a|b)*a(a|b){200}", PatternScope::kWhole);
        std::mt19937 rng(1);
        NodeId at = node;
        for (int i = 0; i < 5000; ++i) at = pool.step(at, rng() % 2 ? 'a' : 'b');
      },
      Error);
}

/// `count` letters, each with `behind` behind it.
std::string letters(int count, const std::string& behind) {
  std::string out;
  for (int i = 0; i < count; ++i) out += static_cast<char>('a' + i % 26) + behind;
  return out;
}

TEST(RegexPool, LongSequencesNeedNoStackAndNoEndOfTime) {
  RegexPool pool;
  const auto whole = [&pool](const std::string& pattern) {
    return compile_pattern(pool, pattern, PatternScope::kWhole);
  };
  for (const char* behind : {"?", "*", "{0,3}", "?z?"}) {
    const NodeId some = whole(letters(400, behind));
    const size_t before = pool.num_nodes();
    const std::string text = letters(390, behind == std::string("?z?") ? "z" : "");
    EXPECT_TRUE(pool.matches(some, text)) << behind;
    EXPECT_TRUE(pool.matches(some, "acaz")) << behind;
    EXPECT_FALSE(pool.matches(some, letters(401, "") + "a")) << behind;
    EXPECT_FALSE(pool.matches(some, "a!")) << behind;
    EXPECT_LT(pool.num_nodes() - before, 4000u) << behind;
    EXPECT_THROW(whole(letters(200000, behind)), Error) << behind;
  }
  const std::string text = letters(200000, "");
  EXPECT_TRUE(pool.matches(whole("(" + text + ")*"), text + text));
  EXPECT_TRUE(pool.matches(whole("(" + text + "){2,3}"), text + text));
  // Each subset of the parts is a state of its own.
  RegexPool few(1000);
  EXPECT_THROW(
      few.matches(compile_pattern(few, letters(900, "?b?(cd?|ce?)?"), PatternScope::kWhole),
                  letters(3000, "")),
      Error);
}

TEST(CompilePattern, ABraceThatIsNoQuantifierStandsForItself) {
  RegexPool pool;
  for (const auto& [pattern, text] : {std::pair{"a{,2}", "a{,2}"},
                                      {"{a}", "{a}"},
                                      {"x{2}{a", "xx{a"},
                                      {"{2", "{2"},
                                      {"a{2}?{", "aa{"},
                                      {"(?<n1>a)", "a"}}) {
    EXPECT_TRUE(pool.matches(compile_pattern(pool, pattern, PatternScope::kWhole), text))
        << pattern;
  }
}

/// Every text of up to seven of three letters, as Python's `re` matches it: FNV-1a over the
/// answers.
TEST(CompilePattern, LooksAheadBeforeEachOfManyCharacters) {
  RegexPool pool;
  const std::pair<const char*, uint64_t> cases[] = {
      {"(?:(?!ab).)*", 0xa9816eb2b9a3a315},
      {"(?:(?!ab).)+", 0xb2bbdb7fa8a09874},
      {"((?!ab)[abc]){3,}", 0x57f5f0bee1d534f3},
      {"c(?:(?!ab).)*ab", 0x6908e8440fab8f51},
      {"(?:(?!ca|b)[^c])*c+", 0xe28b545564d0eb25},
      {"(?:(?=ab|b|c).)*", 0xcbb04fea89314e75},
      {"(?:(?!a$).)*", 0x477054c3a40b2b7e},
      {"(?:(?!)[ab])*", 0x143df637e4527824},
      {"(?:(?!)a)*b", 0x7ab5a29f8ed9c10c},
      {"a(?:(?!cc)[bc])*a?", 0x109c4aa31d5c3dc2},
      {"(?:(?!ab).)*(?:ab|ba|cc)", 0xdadf3a045c3a30e1},
      {"(?:(?!aa)(?:a|b))*", 0xc22d954c9b591e1e},
      {"(?:(?:(?!b.b).))*", 0xe7b2851bd0a34500},
  };
  for (const auto& [pattern, expected] : cases) {
    const NodeId node = compile_pattern(pool, pattern, PatternScope::kWhole);
    uint64_t hash = 0xcbf29ce484222325;
    for (int length = 0, count = 1; length <= 7; ++length, count *= 3) {
      for (int number = 0; number < count; ++number) {
        std::string text;
        for (int i = 0, left = number; i < length; ++i, left /= 3) text += "abc"[left % 3];
        hash = (hash ^ (pool.matches(node, text) ? 1U : 0U)) * 0x100000001b3;
      }
    }
    EXPECT_EQ(hash, expected) << pattern;
  }
  // Where a text may be split in several ways, and where the text before matters, it is refused.
  for (const char* pattern :
       {"(?:(?!ab).)*a*", "(?:(?!^a).)*", "(?:(?!ab)(?<!c).)*", "(?:(?!ab)..)*"}) {
    EXPECT_THROW(compile_pattern(pool, pattern, PatternScope::kWhole), PatternError) << pattern;
  }
  EXPECT_TRUE(
      pool.matches(compile_pattern(pool, "^(?:(?!ab).)*$", PatternScope::kSearch), "a\u00E9b"));
  EXPECT_FALSE(pool.matches(compile_pattern(pool, "^(?:(?!ab).)*$", PatternScope::kSearch), "xab"));
}

TEST(CompilePattern, KnowsPropertiesOfUnicode) {
  RegexPool pool;
  struct Case {
    const char *pattern, *inside, *outside;
  };
  for (const Case& one :
       std::initializer_list<Case>{{"\\p{Script=Greek}", "\u03B1", "a"},
                                   {"\\p{sc=Grek}", "\u1F00", "\u0431"},
                                   {"\\p{Script=Han}", "\u6F22", "\u3042"},
                                   {"\\p{scx=Hira}", "\u30FC", "\u30AB"},
                                   {"\\p{Script_Extensions=Hiragana}", "\u3042", "\u6F22"},
                                   {"[\\p{sc=Cyrillic}\\p{Nd}]", "\u0436", "z"},
                                   {"\\P{Script=Latin}", "1", "z"},
                                   {"\\p{Alphabetic}", "\u10D0", "1"},
                                   {"\\p{White_Space}", "\u00A0", "_"},
                                   {"\\p{Uppercase}", "\u00C9", "\u00E9"},
                                   {"\\p{ID_Start}", "\u00E9", "5"},
                                   {"\\p{Emoji}", "\U0001F600", "a"},
                                   {"\\p{Pd}", "-", "_"},
                                   {"\\p{gc=Sm}", "+", "$"},
                                   {"\\p{Format}", "\u200D", " "},
                                   {"\\p{Cn}", "\u0378", "a"},
                                   {"\\p{Assigned}", "a", "\u0378"},
                                   {"\\p{LC}", "x", "\u6F22"}}) {
    const NodeId node = compile_pattern(pool, one.pattern, PatternScope::kWhole);
    EXPECT_TRUE(pool.matches(node, one.inside)) << one.pattern;
    EXPECT_FALSE(pool.matches(node, one.outside)) << one.pattern;
  }
  for (const char* pattern :
       {"\\p{Greek}", "\\p{Script=Nope}", "\\p{Script=}", "\\p{Xan}", "\\p{alphabetic}",
        "\\p{sc:Greek}", "\\p{Scrip=Greek}", "\\p{Alphabetic=Yes}"}) {
    EXPECT_THROW(compile_pattern(pool, pattern, PatternScope::kWhole), PatternError) << pattern;
  }
}

TEST(CompilePattern, SaysWhereAPatternIsWrong) {
  RegexPool pool;
  for (const char* pattern :
       {"(",        "a)",    "[a",      "*a",       "a**",      "\\",        "\\1",   "(?<=a",
        "(?<!a)*",  "\\b?",  "a{3,1}",  "a{99999}", "[b-a]",    "\\p{Nope}", "(?<n",  "\\u12",
        "\xff",     "(a$)*", "{2}a",    "({2})",    "a|{2,}",   "x{2}{3}",   "a*{2}", "a+{2,3}b",
        "a{2}?{3}", "a{2}+", "(?<1>a)", "(?<>a)",   "(?<a b>a)"}) {
    EXPECT_THROW(compile_pattern(pool, pattern, PatternScope::kSearch), PatternError) << pattern;
  }
  EXPECT_THROW(compile_pattern(pool, std::string(500, '('), PatternScope::kSearch), PatternError);
  try {
    compile_pattern(pool, "\\p{L\n}", PatternScope::kSearch);
    FAIL() << "a property's name with a line feed was accepted";
  } catch (const PatternError& error) {
    EXPECT_EQ(std::string(error.message).find('\n'), std::string::npos) << error.message;
  }
}

TEST(CompilePattern, SaysWhereAnAssertionCannotBeKept) {
  RegexPool pool;
  const auto message = [&](const char* pattern, PatternScope scope) -> std::string {
    try {
      compile_pattern(pool, pattern, scope);
    } catch (const PatternError& error) {
      return error.message;
    }
    return "";
  };
  const std::pair<const char*, const char*> cases[] = {
      {"ab(?:c(?<=bc))*", "in a repetition at character 7"},
      {"(\\w+\\b)+", "in a repetition at character 5"},
      {"a(b$)*", "in a repetition at character 4"},
      {"x(?<=a(?=b))", "within a lookbehind at character 7"},
      {"(?<=\\ba)b", "within a lookbehind at character 5"},
      {"(?<=a$)", "within a lookbehind at character 6"}};
  for (const auto& [pattern, end] : cases) {
    EXPECT_NE(message(pattern, PatternScope::kSearch).find(end), std::string::npos)
        << pattern << ": " << message(pattern, PatternScope::kSearch);
  }
  EXPECT_NE(message("^a(?<!b)", PatternScope::kPart).find("at character 3"), std::string::npos);
  EXPECT_EQ(message("a(?!b)", PatternScope::kPart), "");
}

TEST(CompilePattern, LooksBehind) {
  struct Case {
    const char* pattern;
    std::vector<const char*> whole, not_whole, found, not_found;
  };
  const std::vector<Case> cases = {
      {"(?<=a)b", {}, {"b", "ab"}, {"ab", "xaby", "baab"}, {"b", "bb", "a", ""}},
      {"(?<!a)b", {"b"}, {"ab"}, {"b", "bb", "xb"}, {"ab", "a", "abab"}},
      {"(?<!^)b", {}, {"b"}, {"bb", "ab"}, {"b", "ba"}},
      {"[a-z-]+(?<!-)", {"a", "a-b"}, {"a-", "-", ""}, {"a-", "a"}, {"-", "--", ""}},
      {"(?!-)[a-z-]+(?<!-)", {"a", "a-b"}, {"a-", "-a", "-"}, {"-a-"}, {"-"}},
      // A lookahead that sees beyond a lookbehind that sees beyond it.
      {"(?!.*cc)[abc]+(?<=a|bc)b*", {"abb", "abc", "acab"}, {"acca", "accab"}, {"a"}, {"c"}},
      {"(?<=(?<!x)a)b", {}, {"b"}, {"ab", "bab"}, {"xab", "b"}},
      {"(?<=é)😀", {}, {"😀"}, {"é😀"}, {"è😀", "😀"}},
      {"(?<=a{2,300})b", {}, {"aab"}, {"aab", "aaaab"}, {"ab", "aacb"}},
      {"(?:a|(?<=b)c)(?<!bc)d", {"ad"}, {"cd"}, {"ad", "bad"}, {"bcd"}},
      {"\\bfoo\\b", {"foo"}, {"foos"}, {"foo", "a foo!", "-foo"}, {"foos", "_foo", "foo1"}},
      {"\\Boo\\b", {}, {"oo"}, {"foo", "a foo."}, {"oo", "fool", " oo"}},
      {"(?i)(?<=AB)c", {}, {"c"}, {"abC", "aBc"}, {"ac"}},
      {"(a(?<!ba)){0,2}b", {"b", "ab", "aab"}, {"aaab"}, {"bab"}, {"a", ""}}};
  for (const Case& one : cases) {
    RegexPool pool;
    const NodeId whole = compile_pattern(pool, one.pattern, PatternScope::kWhole);
    const NodeId found = compile_pattern(pool, one.pattern, PatternScope::kSearch);
    for (const char* text : one.whole)
      EXPECT_TRUE(pool.matches(whole, text)) << one.pattern << text;
    for (const char* text : one.not_whole) {
      EXPECT_FALSE(pool.matches(whole, text)) << one.pattern << text;
    }
    for (const char* text : one.found)
      EXPECT_TRUE(pool.matches(found, text)) << one.pattern << text;
    for (const char* text : one.not_found) {
      EXPECT_FALSE(pool.matches(found, text)) << one.pattern << text;
    }
  }
}

TEST(CompilePattern, LookbehindsAreBounded) {
  RegexPool pool(100000);
  const auto compile = [&](const std::string& pattern) {
    return compile_pattern(pool, pattern, PatternScope::kSearch);
  };
  EXPECT_THROW(compile("(?<=a.{20})b"), PatternError);  // 2^20 states
  std::string many, boundaries;
  for (int i = 0; i < 40; ++i) boundaries += "\\b.*";
  for (int i = 0; i < 100; ++i) {
    many += "|(?<=" + std::string(1, static_cast<char>('a' + i / 26)) +
            static_cast<char>('a' + i % 26) + ")x";
  }
  EXPECT_THROW(compile(many), PatternError);
  // Each takes a part of the stack; 100 in a row are still read.
  std::string chain;
  for (int i = 0; i < 100; ++i) chain += "\\b";
  EXPECT_TRUE(pool.matches(compile("a" + chain), "a"));
  for (int i = 0; i < 3200; ++i) chain += "\\b";
  EXPECT_THROW(compile("a" + chain), PatternError);
  EXPECT_FALSE(pool.matches(compile("^" + boundaries + "$"), " ,; "));
  EXPECT_TRUE(pool.matches(compile("^" + boundaries + "$"), letters(20, " ")));
  // All automata of a grammar together count against its limit of states.
  EXPECT_THROW(for (int i = 0; i < 400; ++i) compile("(?<=" + std::to_string(100000 + i) + ")x"),
               Error);
}

TEST(CompilePattern, ManyLookaheadsAreReadInTime) {
  RegexPool pool;
  std::string pattern = "^";
  for (int i = 0; i < 24; ++i) {
    pattern += ".*(?![a-c]{" + std::to_string(i % 3 + 1) + "})(?:(?=\\w)|(?!\\d)).*";
  }
  EXPECT_THROW(compile_pattern(pool, "(?:(?=a)){9}", PatternScope::kSearch), PatternError);
  EXPECT_TRUE(
      pool.matches(compile_pattern(pool, pattern + "$", PatternScope::kSearch), letters(30, " ")));
}

TEST(CompilePattern, KnowsUnicode) {
  RegexPool pool;
  const auto search = [&](const char* pattern, const char* text) {
    return pool.matches(compile_pattern(pool, pattern, PatternScope::kSearch), text);
  };
  EXPECT_TRUE(search("^\\p{Lu}\\p{Ll}+$", "Éa"));
  EXPECT_FALSE(search("^\\p{Lu}\\p{Ll}+$", "éa"));
  EXPECT_TRUE(search("^.$", "😀"));
  EXPECT_TRUE(search("^\\u{1F600}$", "😀"));
  EXPECT_TRUE(search("^\\uD83D\\uDE00$", "😀"));
  EXPECT_FALSE(search("^\\w$", "é"));
  EXPECT_TRUE(search("^\\s$", "\xc2\xa0"));
  EXPECT_FALSE(search("^.$", "\xe2\x80\xa8"));
  EXPECT_TRUE(search("(?i)ABC", "xabcx"));
}

/// Which lengths in characters, up to `most`, the language's texts have: by walking all its states.
std::vector<bool> lengths_of(RegexPool& pool, NodeId language, size_t most) {
  std::vector<bool> out;
  std::set<NodeId> states = {language};
  for (size_t length = 0; length <= most; ++length) {
    out.push_back(std::any_of(states.begin(), states.end(),
                              [&](NodeId state) { return pool.nullable(state); }));
    std::set<NodeId> next;
    std::set<std::pair<NodeId, int>> within;  // and how many bytes the character still has
    for (const NodeId state : states) within.emplace(state, -1);
    while (!within.empty()) {
      const auto [state, left] = within.extract(within.begin()).value();
      for (int byte = 0; byte < 256; ++byte) {
        const NodeId to = pool.row(state)[byte];
        if (to == kEmptyNode) continue;
        const int more = left >= 0     ? left - 1
                         : byte < 0x80 ? 0
                         : byte < 0xE0 ? 1
                                       : 3 - (byte < 0xF0);
        if (more == 0) next.insert(to);
        if (more > 0) within.emplace(to, more);
      }
    }
    states = std::move(next);
  }
  return out;
}

TEST(RegexPool, KnowsWhetherATextHasALength) {
  constexpr uint32_t kMax = 12;
  for (const char* pattern :
       {"a{3,}", "(ab){2,}", "(ab){2,4}", "(a|bcd)*e", "é{2,5}(ab)*", "(é|ab|😀){3}", "a?b?c?", "",
        "(a{3}){2,}|b", "([a-f]{2}-)*x", "a{2}(bc)*(def)*", "(a*b){3,5}", "\\S+( \\S+){0,3}"}) {
    RegexPool counting;
    const std::vector<bool> lengths =
        lengths_of(counting, compile_pattern(counting, pattern, PatternScope::kWhole), kMax);
    for (uint32_t low = 0; low <= kMax; ++low) {
      for (uint32_t high = low; high <= kMax; ++high) {
        RegexPool pool;
        const NodeId text = compile_pattern(pool, pattern, PatternScope::kWhole);
        const NodeId both = pool.all_of(text, pool.repeat(pool.any_char(), low, high));
        const bool is_there = std::find(lengths.begin() + low, lengths.begin() + high + 1, true) !=
                              lengths.begin() + high + 1;
        EXPECT_EQ(pool.is_live(both), is_there) << pattern << " " << low << " to " << high;
        // Lengths that say nothing new may go: the same texts are left.
        const NodeId plain = pool.without_idle_lengths(both);
        const std::vector<bool> same = lengths_of(pool, both, kMax + 3);
        EXPECT_EQ(lengths_of(pool, plain, kMax + 3), same) << pattern << " " << low << " " << high;
      }
    }
  }
}

TEST(RegexPool, JsonSpellings) {
  RegexPool pool;
  const NodeId quoted = pool.cat(pool.literal("\""), pool.json_body(pool.literal("aé\n")));
  for (const char* text : {"\"aé\\n\"", "\"\\u0061\\u00e9\\u000A\"", "\"\\u0061é\\u000a\""}) {
    EXPECT_TRUE(pool.matches(quoted, text)) << text;
  }
  for (const char* text : {"\"aé\n\"", "\"aé\"", "\"b", "\"\\u0062", "\"a\\x", "\"\\u1"}) {
    EXPECT_EQ(pool.step(quoted, std::string_view(text)), kEmptyNode) << text;
  }
  const NodeId smile = pool.cat(pool.literal("\""), pool.json_body(pool.literal("😀")));
  EXPECT_TRUE(pool.matches(smile, "\"\\ud83d\\ude00\""));
  EXPECT_EQ(pool.step(smile, "\"\\ud83d\\ude01"), kEmptyNode);
  EXPECT_EQ(pool.step(smile, "\"\\ud83e"), kEmptyNode);
}

}  // namespace
}  // namespace vitrine::constrain
