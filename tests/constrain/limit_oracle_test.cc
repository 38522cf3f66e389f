// SPDX-License-Identifier: Apache-2.0
// Masks near the limit against their definition: of each token by itself, whether what it leaves
// can be finished.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "constrain/json_limit.h"
#include "constrain/regex_parse.h"

namespace vitrine {
namespace {

using namespace constrain;  // NOLINT

/// `size` tokens like those of published models, but far more that bear on JSON: some with an
/// escape, with half a character, with what stands between two strings.
TokenTable vocabulary(size_t size, bool has_all_bytes, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::string> bytes(1);
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_rare = (byte < 0x20 && byte != '\n') || byte == 0xC0 || byte == 0xF1 ||
                         byte >= 0xF5 || byte == 'Q';
    if (has_all_bytes || !is_rare) bytes.emplace_back(1, static_cast<char>(byte));
  }
  static const std::vector<std::string> kParts = {
      "a",    "b",        "name",     "x-",       "the ",  " ",     "  ",  "xy",
      "\"",   "\":",      "\",",      ":",        ",",     "{",     "}",   "[",
      "]",    "\xC3\xA9", "\xE4\xBD", "\xF0\x9F", "\x80",  "\\",    "\\n", "\\u0",
      "061",  "\\ud83",   "d",        "\\\"",     "1",     "20",    "-",   "null",
      "true", "\n",       "\"a",      "{\"",      "\":\"", "\",\"", "\"}", "long one"};
  while (bytes.size() < size) {
    std::string token;
    for (size_t parts = 1 + rng() % 4; parts > 0; --parts) token += kParts[rng() % kParts.size()];
    bytes.push_back(std::move(token));
  }
  return TokenTable::from_bytes(std::move(bytes), {0});
}

bool has(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

const char* const kSchemas[] = {
    R"({"type":"object"})",
    R"({"type":"object","additionalProperties":{"type":"integer"}})",
    R"({"type":"object","required":["name"],"properties":{"name":{"type":"string"},
        "n":{"type":"number"},"aa":{"const":"long one, long one"}}})",
    R"({"type":"object","required":["a"],"properties":{"a":{"type":"object",
        "additionalProperties":{"type":"object"}}}})",
    R"({"type":"object","patternProperties":{"^x-":{"type":"boolean"}},
        "additionalProperties":{"type":"array","items":{"type":"integer"}}})",
    R"({"type":"object","propertyNames":{"pattern":"^[a-z_]{1,20}$"},
        "additionalProperties":{"type":"string","maxLength":10}})",
    R"({"type":"object","minProperties":3,"additionalProperties":{"type":"string"}})",
    R"({"type":"object","maxProperties":2,"additionalProperties":{"type":"string"}})",
    R"({"type":"array","items":{"type":"string","minLength":6,"maxLength":40}})",
    R"({"type":"array","items":{"type":"string","minLength":30},"minItems":2})",
    R"({"type":"array","items":{"type":"string","maxLength":3}})",
    R"({"type":"string","pattern":"^(a|b|name)*x-[0-9]+$"})",
    R"({"type":"string","pattern":"(long one)$"})",
    R"({"type":"array","items":{"type":"string","pattern":"^[a-z ]*$","maxLength":25}})",
    R"({"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":2})",
    R"({"type":"array","items":{"anyOf":[{"type":"string"},{"type":"object"}]}})",
    R"({"anyOf":[{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}},
        {"type":"object","required":["name"],"additionalProperties":{"type":"string"}}]})",
    R"({"oneOf":[{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}},
        {"type":"object","required":["b"],"properties":{"b":{"type":"array","minItems":2}}}]})",
    R"({"anyOf":[{"type":"string","pattern":"^a*b$"},{"type":"string","minLength":9}]})",
    R"({"$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},
        {"type":"null"}]},"name":{"type":"string"}},"required":["name","next"]}},
        "$ref":"#/$defs/n"})",
    R"({"type":"object","not":{"required":["a","b"]},"required":["name"]})",
    R"({"enum":["long one","name",{"a":["the name",1]}]})",
    R"({"type":["integer","string","null"],"maximum":2000})",
    "true",
};

/// Follows random tokens under a grammar of JSON, and compares at each place the masks for limits
/// around what is needed.
class JsonWalk {
 public:
  JsonWalk(const TokenTable& table, JsonGrammar& grammar, std::mt19937& rng)
      : table_(constrain::impl_of(table)),
        terminals_(grammar.pool(), table_),
        texts_(grammar.pool(), &grammar, table_),
        machine_(grammar),
        finish_(machine_, texts_),
        mask_(machine_, table_, terminals_),
        limit_(machine_, table_, terminals_, finish_, texts_),
        rng_(rng) {
    machine_.start(at_);
  }

  size_t run(int steps) {
    size_t ruled_out = 0;
    for (int step = 0; step < steps; ++step) {
      std::vector<uint32_t> whole((table_.bytes.size() + 31) / 32);
      mask_.add(at_, whole);
      const std::vector<uint32_t> bounds = bounds_of(whole);
      const uint32_t least = finish_.bound(at_);
      if (least == kNoBound) return ruled_out;
      for (const uint32_t left : {least, least + static_cast<uint32_t>(rng_() % 4),
                                  least + static_cast<uint32_t>(rng_() % 30), least + 500}) {
        std::vector<uint32_t> mask = whole;
        limit_.keep(at_, mask, left);
        for (size_t id = 0; id < bounds.size(); ++id) {
          const auto token = static_cast<int32_t>(id);
          const bool is_kept = has(whole, token) && bounds[id] <= left;
          ruled_out += has(whole, token) && !is_kept;
          EXPECT_EQ(has(mask, token), is_kept)
              << "'" << table_.bytes[id] << "' behind '" << text_ << "' of " << bounds[id]
              << " tokens where " << left << " are left";
          if (::testing::Test::HasFailure()) return ruled_out;
        }
      }
      std::vector<int32_t> allowed;
      for (size_t id = 0; id < bounds.size(); ++id) {
        if (has(whole, static_cast<int32_t>(id))) allowed.push_back(static_cast<int32_t>(id));
      }
      if (allowed.empty()) return ruled_out;
      // Those that do much are few.
      std::string next = table_.bytes[static_cast<size_t>(allowed[rng_() % allowed.size()])];
      if (rng_() % 2 == 0) next.resize(1);
      take(next);
      text_ += next;
    }
    return ruled_out;
  }

 private:
  void take(std::string_view text) {
    Configs next;
    for (const char byte : text) {
      machine_.step(at_, static_cast<uint8_t>(byte), next);
      std::swap(at_, next);
    }
  }
  std::vector<uint32_t> bounds_of(const std::vector<uint32_t>& mask) {
    std::vector<uint32_t> bounds(table_.bytes.size(), kNoBound);
    const JsonMachine::Mark mark = machine_.mark();
    const Configs start = at_;
    for (size_t id = 0; id < bounds.size(); ++id) {
      if (!has(mask, static_cast<int32_t>(id))) continue;
      take(table_.bytes[id]);
      bounds[id] = finish_.bound(at_);
      at_ = start;
      machine_.return_to(mark);
    }
    return bounds;
  }

  const TokenTable::Impl& table_;
  TerminalMasks terminals_;
  FinishTexts texts_;
  JsonMachine machine_;
  JsonFinish finish_;
  JsonMask mask_;
  JsonLimit limit_;
  Configs at_;
  std::string text_;
  std::mt19937& rng_;
};

TEST(LimitOracle, JsonIsAsIfEachTokenWereTried) {
  std::mt19937 rng(2);
  size_t ruled_out = 0;
  for (const bool has_all_bytes : {true, false}) {
    const TokenTable table = vocabulary(has_all_bytes ? 1237 : 2111, has_all_bytes, rng());
    for (const char* schema : kSchemas) {
      for (const auto whitespace : {JsonWhitespace::kOneLine, JsonWhitespace::kRfc}) {
        SCOPED_TRACE(schema);
        SchemaOptions options;
        options.whitespace = whitespace;
        for (int run = 0; run < 6; ++run) {
          JsonGrammar grammar(schema, options);
          ruled_out += JsonWalk(table, grammar, rng).run(12);
          ASSERT_FALSE(HasFailure());
        }
      }
    }
    JsonGrammar any{SchemaOptions{}};
    for (int run = 0; run < 6; ++run) ruled_out += JsonWalk(table, any, rng).run(12);
  }
  EXPECT_GT(ruled_out, 100000u);
}

TEST(LimitOracle, PatternsAreAsIfEachTokenWereTried) {
  std::mt19937 rng(12);
  size_t ruled_out = 0;
  for (const bool has_all_bytes : {true, false}) {
    const TokenTable table = vocabulary(has_all_bytes ? 1237 : 2111, has_all_bytes, rng());
    for (const char* pattern :
         {"[a-z]{2,30}\\.(com|info)", "(ab|abname)+x", "[^Q]*Q", "[a-z ]{8,20}", "(the )*long one",
          "[\\s\\S]*", "[0-9]{1,3}(,[0-9]{3})*", "(?=.*name)[a-z ]{8,20}"}) {
      SCOPED_TRACE(pattern);
      RegexPool pool;
      const NodeId start = compile_pattern(pool, pattern, PatternScope::kWhole);
      TerminalMasks terminals(pool, constrain::impl_of(table));
      FinishTexts texts(pool, nullptr, constrain::impl_of(table));
      for (int run = 0; run < 6; ++run) {
        NodeId state = start;
        for (int step = 0; step < 10; ++step) {
          const std::vector<uint32_t> whole = terminals.at(state).words;
          const uint32_t least = texts.of_state(state).tokens;
          if (least == kNoBound) break;
          std::vector<int32_t> allowed;
          for (const uint32_t left : {least, least + static_cast<uint32_t>(rng() % 20)}) {
            std::vector<uint32_t> mask = whole;
            keep_fitting(constrain::impl_of(table), terminals, texts, pool, state, mask, left);
            allowed.clear();
            for (int32_t id = 0; id < table.vocab_size(); ++id) {
              if (!has(whole, id)) continue;
              allowed.push_back(id);
              const bool is_kept = texts.of_state(pool.step(state, table.bytes(id))).tokens <= left;
              ruled_out += !is_kept;
              ASSERT_EQ(has(mask, id), is_kept) << table.bytes(id) << ' ' << left;
            }
          }
          if (allowed.empty()) break;
          state = pool.step(state, table.bytes(allowed[rng() % allowed.size()]));
        }
      }
    }
  }
  EXPECT_GT(ruled_out, 10000u);
}

}  // namespace
}  // namespace vitrine
