// SPDX-License-Identifier: Apache-2.0
// What grammars share: the masks are the same with and without, from any number of threads.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "vitrine/constrain.h"

namespace vitrine {
namespace {

TokenTable make_table() {
  std::vector<std::string> bytes(1);
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* more :
       {"\"a", "\":", "\", \"", "a\"", "ab",   "abc", "null",  "true", "10",     "1,",
        ".5",  "[]",  "{}",     "\"}", "\"]",  "  ",  "\\u00", "\\\"", "202",    "-0",
        "T1",  ":0",  "Z\"",    "@a",  ".com", "://", "http",  "19",   "abcabc", "-12-"}) {
    bytes.emplace_back(more);
  }
  return TokenTable::from_bytes(std::move(bytes), {0});
}

std::string string_schema(const std::string& keyword) {
  return R"({"type":"string",)" + keyword + "}";
}

/// Schemas that have patterns, formats, bounds and enumerations in common, each in its own order.
std::vector<std::string> schemas() {
  const std::vector<std::string> parts = {string_schema(R"("format":"date-time")"),
                                          string_schema(R"("format":"email")"),
                                          string_schema(R"("pattern":"^[a-c]{2,5}-[0-9]+$")"),
                                          string_schema(R"("pattern":"a.*b|c+")"),
                                          string_schema(R"("minLength":2,"maxLength":70)"),
                                          R"({"enum":["abc","abcabc","\"\\ab","é"]})",
                                          R"({"type":"integer","minimum":-12,"maximum":190})",
                                          R"({"type":"number","multipleOf":0.5})",
                                          string_schema(R"("not":{"pattern":"^ab"})")};
  std::vector<std::string> out;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = 0; j < parts.size(); ++j) {
      out.push_back(
          R"({"type":"object","required":["a"],"additionalProperties":false,"properties":{"a":)" +
          parts[i] + R"(,"b":{"anyOf":[)" + parts[j] + "," + parts[i] + "]}}}");
    }
  }
  return out;
}

/// Everything that a walk of random allowed tokens sees.
uint64_t hash_of_walk(const Grammar& grammar, const TokenTable& table, uint64_t seed) {
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  std::mt19937_64 random(seed);
  uint64_t hash = seed;
  for (int step = 0; step < 60 && constraint->allowed_tokens(mask); ++step) {
    std::vector<int32_t> allowed;
    for (size_t word = 0; word < mask.size(); ++word) {
      hash = (hash ^ mask[word]) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 31;
      for (int bit = 0; bit < 32; ++bit) {
        if (mask[word] >> bit & 1) allowed.push_back(static_cast<int32_t>(word * 32) + bit);
      }
    }
    if (!constraint->accept(allowed[random() % allowed.size()])) return 0;
  }
  return hash;
}

TEST(SharedMasks, AreTheSameAsOnesOwn) {
  const TokenTable own = make_table(), shared = make_table(), small = make_table();
  own.limit_shared(0);
  small.limit_shared(2000);
  for (const std::string& schema : schemas()) {
    for (uint64_t seed = 1; seed < 4; ++seed) {
      const uint64_t expected = hash_of_walk(Grammar::json_schema(own, schema), own, seed);
      ASSERT_NE(expected, 0u);
      EXPECT_EQ(hash_of_walk(Grammar::json_schema(shared, schema), shared, seed), expected);
      EXPECT_EQ(hash_of_walk(Grammar::json_schema(small, schema), small, seed), expected);
    }
  }
  EXPECT_EQ(own.shared_statistics().hits, 0u);
  EXPECT_EQ(own.shared_statistics().masks, 0u);
  const auto counts = shared.shared_statistics();
  EXPECT_GT(counts.hits, 5 * counts.misses);
  EXPECT_EQ(counts.evictions, 0u);
  EXPECT_GT(counts.masks, 10u);
  EXPECT_GT(small.shared_statistics().evictions, 10u);
  EXPECT_LE(small.shared_statistics().bytes, 2000u);
}

TEST(SharedMasks, ADeepExpressionIsRead) {
  const TokenTable table = make_table();
  std::string pattern;
  for (int i = 0; i < 60000; ++i) pattern += "[ab]c";
  const auto constraint = Grammar::regex(table, pattern).start();
  std::vector<uint32_t> mask(table.mask_words());
  EXPECT_TRUE(constraint->allowed_tokens(mask));
  EXPECT_TRUE(constraint->accept(1 + 'a'));
}

TEST(GrammarCache, KeepsWhatComesAgain) {
  const TokenTable table = make_table(), other = make_table();
  GrammarCache cache;
  const std::string schema = schemas()[3];
  const Grammar first = cache.json_schema(table, schema);
  hash_of_walk(first, table, 1);
  const size_t states = first.statistics().states;
  const Grammar again = cache.json_schema(table, schema);
  EXPECT_EQ(again.statistics().states, states);  // the same one, with what it has compiled
  EXPECT_EQ(cache.statistics().hits, 1u);
  EXPECT_EQ(cache.statistics().misses, 1u);
  SchemaOptions compact;
  compact.whitespace = JsonWhitespace::kCompact;
  cache.json_schema(table, schema, compact);
  cache.json_schema(other, schema);
  cache.regex(table, "a+");
  cache.gbnf(table, "root ::= \"a\"");
  cache.lark(table, "start: \"a\"");
  cache.choices(table, {"a", "b"});
  cache.choices(table, {"a1:b"});
  cache.tags(table, R"({"tags":[{"begin":"<a>","regex":"b","end":"</a>"}]})");
  EXPECT_EQ(cache.statistics().hits, 1u);
  EXPECT_EQ(cache.statistics().grammars, 9u);
  EXPECT_GT(cache.statistics().bytes, 10000u);
  EXPECT_THROW(cache.regex(table, "("), Error);
  EXPECT_THROW(cache.json_schema(table, "{"), Error);
  EXPECT_EQ(cache.statistics().grammars, 9u);
}

TEST(GrammarCache, IsBounded) {
  const TokenTable table = make_table();
  GrammarCache cache(200000);
  std::vector<Grammar> kept;
  for (const std::string& schema : schemas()) kept.push_back(cache.json_schema(table, schema));
  EXPECT_LE(cache.statistics().bytes, 200000u);
  EXPECT_GT(cache.statistics().evictions, 10u);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_NE(hash_of_walk(kept[i], table, i + 1), 0u);
  GrammarCache none(0);
  none.regex(table, "a");
  EXPECT_EQ(none.statistics().grammars, 0u);
}

TEST(Prepare, MakesWhatIsNeededAndChangesNothing) {
  const TokenTable table = make_table(), other = make_table();
  for (const std::string& schema : schemas()) {
    const Grammar ahead = Grammar::json_schema(table, schema);
    EXPECT_EQ(ahead.prepare(0), 0u);
    EXPECT_GT(ahead.prepare(), 0u);
    EXPECT_LE(ahead.prepare(3), 3u);
    EXPECT_EQ(hash_of_walk(ahead, table, 7),
              hash_of_walk(Grammar::json_schema(other, schema), other, 7));
  }
  const Grammar tags = Grammar::tags(
      table,
      R"({"tags":[{"begin":"<a>","schema":{"type":"string","format":"date"},"end":"</a>"}]})");
  EXPECT_GT(tags.prepare(), 0u);
  EXPECT_GT(Grammar::regex(table, "(ab|c){3,9}").prepare(), 0u);
  // What a grammar cannot finish is no reason to fail here.
  SchemaOptions few;
  few.max_states = 700;
  try {
    Grammar::json_schema(table, schemas()[0], few).prepare();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  }
}

/// Everything that a walk of random allowed tokens near a limit sees, forks and steps back
/// included.
uint64_t hash_of_all(const Grammar& grammar, const TokenTable& table, uint64_t seed) {
  auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  std::mt19937_64 random(seed);
  uint64_t hash = seed;
  const auto add = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 31;
  };
  for (int step = 0; step < 40; ++step) {
    add(constraint->is_complete() ? 1 : 2);
    if (!constraint->allowed_tokens(mask)) break;
    const uint32_t needed = constraint->tokens_to_finish();
    add(needed);
    for (const char byte : constraint->forced_text()) add(static_cast<uint8_t>(byte));
    if (step % 3 == 2) constraint->keep_within(mask, needed + 1);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < table.vocab_size(); ++id) {
      if (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) allowed.push_back(id);
    }
    for (const uint32_t word : mask) add(word);
    if (allowed.empty() || !constraint->accept(allowed[random() % allowed.size()])) break;
    if (step % 7 == 6) {
      constraint = constraint->fork();
      constraint->rollback(2);
    }
  }
  return hash;
}

TEST(Threads, OfOneGrammarSeeWhatOneAloneSees) {
  const TokenTable table = make_table();
  const std::vector<std::function<Grammar()>> makers = {
      [&] { return Grammar::regex(table, "((ab|c)*[0-9]{1,40}|x.*y)+"); },
      [&] { return Grammar::json(table); },
      [&] {
        return Grammar::json_schema(
            table, R"({"type":"object","additionalProperties":{"type":"array","uniqueItems":true,
                       "items":{"enum":["ab","abc",1,2]}},"maxProperties":4,
                       "properties":{"a":{"type":"string","pattern":"^[a-c]+$"},
                                     "b":{"oneOf":[{"type":"integer"},{"minLength":2}]}}})");
      },
      [&] {
        return Grammar::gbnf(table,
                             "root ::= root \"+\" term | term\nterm ::= [0-9]+ | \"(\" "
                             "root \")\" | \"ab\"* \"c\"");
      },
      [&] {
        return Grammar::lark(table,
                             "start: \"a\" start \"b\" | /[0-9]+/ | json\n"
                             "json: %json {\"type\": [\"object\", \"number\"]}");
      },
      [&] {
        return Grammar::tags(table, R"({"tags":[{"begin":"<a>","schema":{"type":"object"},
                                        "end":"</a>"},{"begin":"<b>","regex":"[ab]+",
                                        "end":"b>"}]})");
      }};
  for (const auto& make : makers) {
    constexpr size_t kThreads = 4, kWalks = 30;
    std::vector<uint64_t> expected;
    for (uint64_t seed = 1; seed <= kWalks; ++seed) {
      expected.push_back(hash_of_all(make(), table, seed));
    }
    const Grammar grammar = make();
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (size_t i = 0; i < kWalks; ++i) {
          const size_t walk = (i + thread * 7) % kWalks;
          if (hash_of_all(grammar, table, walk + 1) != expected[walk]) ++wrong;
          if (grammar.statistics().states == 0 || grammar.num_bytes() == 0) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Threads, CompileMatchAndPrepareAtOnce) {
  const TokenTable table = make_table(), alone = make_table();
  const std::vector<std::string> all = schemas();
  GrammarCache cache(400000);
  std::atomic<int> wrong = 0;
  std::vector<uint64_t> expected;
  for (size_t i = 0; i < all.size(); ++i) {
    expected.push_back(hash_of_walk(Grammar::json_schema(alone, all[i]), alone, i + 1));
  }
  const auto work = [&](size_t offset) {
    for (size_t round = 0; round < all.size(); ++round) {
      const size_t i = (round + offset) % all.size();
      const Grammar grammar = cache.json_schema(table, all[i]);
      if (offset % 2 == 1) grammar.prepare(8);
      if (hash_of_walk(grammar, table, i + 1) != expected[i]) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (size_t offset = 0; offset < 4; ++offset) threads.emplace_back(work, offset);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace vitrine
