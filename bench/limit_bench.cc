// SPDX-License-Identifier: Apache-2.0
// Time of masks near the limit of new tokens, in microseconds: random answers under a few schemas
// that have open keys, each with little more room than it needs. One JSON object on standard
// output.
//
//     build/bench/limit_bench TOKENIZER_JSON [ANSWERS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "vitrine/constrain.h"
#include "vitrine/tokenizer.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  const char* schema;
};

constexpr Case kCases[] = {
    {"any_object", R"({"type": "object"})"},
    {"integers", R"({"type": "object", "additionalProperties": {"type": "integer"}})"},
    {"named_and_open", R"({"type": "object", "required": ["name"], "additionalProperties": true,
      "properties": {"name": {"type": "string"}, "size": {"type": "number"}}})"},
    {"nested_open", R"({"type": "object", "required": ["a"],
      "properties": {"a": {"type": "object", "additionalProperties": {"type": "object"}}}})"},
    {"pattern_keys", R"({"type": "object", "patternProperties": {"^x-": {"type": "boolean"}},
      "additionalProperties": {"type": "array", "items": {"type": "integer"}}})"},
    {"key_names", R"({"type": "object", "propertyNames": {"pattern": "^[a-z_]{1,20}$"},
      "additionalProperties": {"type": "string", "maxLength": 10}})"},
    {"wanted_keys", R"({"type": "object", "minProperties": 3,
      "additionalProperties": {"type": "string"}})"},
};

vitrine::TokenTable table_of(const vitrine::Tokenizer& tokenizer) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  int32_t end = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) {
      end = id;
    } else {
      bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
    }
  }
  return vitrine::TokenTable::from_bytes(std::move(bytes), {end});
}

/// One answer of random tokens; appends the time of each limited mask.
void answer(const vitrine::Grammar& grammar, uint32_t room, std::vector<uint32_t>& mask,
            std::mt19937& rng, std::vector<double>& times, uint64_t& hash) {
  const auto constraint = grammar.start();
  std::vector<int32_t> allowed;
  uint32_t left = constraint->tokens_to_finish() + room;
  for (; left > 0; --left) {
    constraint->allowed_tokens(mask);
    const Clock::time_point start = Clock::now();
    constraint->keep_within(mask, left);
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    times.push_back(taken.count());
    for (const uint32_t word : mask) hash = (hash ^ word) * 0x100000001b3;
    allowed.clear();
    for (int32_t id = 0; id < constraint->vocab_size(); ++id) {
      if (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    if (!constraint->accept(allowed[rng() % allowed.size()])) {
      throw std::runtime_error("a mask allows what is refused");
    }
  }
  if (!constraint->is_complete()) throw std::runtime_error("an answer that is not whole");
}

}  // namespace

int main(int argc, char** argv) try {
  const int answers = argc > 2 ? std::atoi(argv[2]) : 100;
  if (argc < 2 || argc > 3 || answers < 1) {
    std::fprintf(stderr, "usage: limit_bench TOKENIZER_JSON [ANSWERS]\n");
    return 2;
  }
  const vitrine::TokenTable table = table_of(vitrine::Tokenizer::from_file(argv[1]));
  std::vector<uint32_t> mask(table.mask_words());
  std::printf("{\"vocabulary\": %d", table.vocab_size());
  for (const Case& one : kCases) {
    std::mt19937 rng(1);
    std::vector<double> times;
    uint64_t hash = 0xcbf29ce484222325;  // of all masks: the same where none differs
    vitrine::SchemaOptions options;
    options.whitespace = vitrine::JsonWhitespace::kOneLine;
    const auto grammar = vitrine::Grammar::json_schema(table, one.schema, options);
    for (int i = 0; i < answers; ++i) {
      answer(grammar, static_cast<uint32_t>(i % 30), mask, rng, times, hash);
    }
    std::ranges::sort(times);
    const auto at = [&times](double share) {
      return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
    };
    std::printf(
        ",\n\"%s\": {\"n\": %zu, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p100\": %.1f, "
        "\"hash\": \"%016llx\"}",
        one.name, times.size(), at(0.5), at(0.9), at(0.99), at(1),
        static_cast<unsigned long long>(hash));
  }
  std::printf("}\n");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "limit_bench: %s\n", error.what());
  return 1;
}
