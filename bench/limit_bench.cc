// SPDX-License-Identifier: Apache-2.0
// Time of masks near the limit of new tokens, in microseconds of the processor: random answers
// under a few schemas that have open keys, each with little more room than it needs, and with much
// more. A line of JSON on standard output for each vocabulary: those that are given (a
// tokenizer.json, a folder with one, a .gguf file), and two that are made here, of 49,152 tokens
// without all bytes and of 151,936.
//
//     build/bench/limit_bench [--answers N] [TOKENIZER...]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bench_vocabulary.h"
#include "vitrine/checkpoint.h"
#include "vitrine/constrain.h"
#include "vitrine/tokenizer.h"

namespace {

/// The thread's processor time in microseconds: what other programs take does not count.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

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
    {"strings", R"({"type": "object", "additionalProperties": {"type": "string"}})"},
    {"long_strings", R"({"type": "object", "required": ["text"], "additionalProperties": false,
      "properties": {"text": {"type": "string", "minLength": 20, "maxLength": 400}}})"},
    {"wanted_keys", R"({"type": "object", "minProperties": 3,
      "additionalProperties": {"type": "string"}})"},
};

vitrine::Tokenizer tokenizer_of(const std::string& path) {
  if (path.ends_with(".json")) return vitrine::Tokenizer::from_file(path);
  return vitrine::Tokenizer::from_json(vitrine::Checkpoint::open(path).tokenizer_json(), path);
}

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

struct Times {
  std::vector<double> whole, limit;    // of a mask, and of its limit alone
  uint64_t hash = 0xcbf29ce484222325;  // of all masks: the same where none differs
};

/// One answer of random tokens; appends the time of each limited mask.
void answer(const vitrine::Grammar& grammar, uint32_t room, std::vector<uint32_t>& mask,
            std::mt19937& rng, Times& times) {
  const auto constraint = grammar.start();
  std::vector<int32_t> allowed;
  uint32_t left = constraint->tokens_to_finish() + room;
  for (; left > 0; --left) {
    const double start = now();
    constraint->allowed_tokens(mask);
    const double middle = now();
    constraint->keep_within(mask, left);
    const double end = now();
    times.whole.push_back(end - start);
    times.limit.push_back(end - middle);
    for (const uint32_t word : mask) times.hash = (times.hash ^ word) * 0x100000001b3;
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

void print(const char* name, std::vector<double> times) {
  std::ranges::sort(times);
  double sum = 0;
  for (const double time : times) sum += time;
  const auto at = [&times](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("\"%s\": {\"mean\": %.1f, \"p50\": %.1f, \"p99\": %.1f, \"slowest\": %.1f}", name,
              sum / static_cast<double>(times.size()), at(0.5), at(0.99), at(1));
}

void measure(const std::string& name, const vitrine::TokenTable& table, int answers) {
  std::vector<uint32_t> mask(table.mask_words());
  std::vector<double> whole, limit;
  std::printf("{\"name\": \"%s\", \"vocabulary\": %d", name.c_str(), table.vocab_size());
  for (const Case& one : kCases) {
    std::mt19937 rng(1);
    Times times;
    vitrine::SchemaOptions options;
    options.whitespace = vitrine::JsonWhitespace::kOneLine;
    const auto grammar = vitrine::Grammar::json_schema(table, one.schema, options);
    for (int i = 0; i < answers; ++i) {
      const uint32_t room = i % 4 == 3 ? 200 : static_cast<uint32_t>(i % 30);
      answer(grammar, room, mask, rng, times);
    }
    std::printf(",\n  \"%s\": {\"n\": %zu, \"hash\": \"%016llx\",\n    ", one.name,
                times.whole.size(), static_cast<unsigned long long>(times.hash));
    print("mask", times.whole);
    std::printf(",\n    ");
    print("limit", times.limit);
    std::printf("}");
    whole.insert(whole.end(), times.whole.begin(), times.whole.end());
    limit.insert(limit.end(), times.limit.begin(), times.limit.end());
  }
  std::printf(",\n  \"all\": {\"n\": %zu,\n    ", whole.size());
  print("mask", whole);
  std::printf(",\n    ");
  print("limit", limit);
  std::printf("}}\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  int answers = 100, first = 1;
  if (argc > 2 && std::string_view(argv[1]) == "--answers") {
    answers = std::atoi(argv[2]);
    first = 3;
  }
  if (answers < 1 || (first < argc && argv[first][0] == '-')) {
    std::fprintf(stderr, "usage: limit_bench [--answers N] [TOKENIZER...]\n");
    return 2;
  }
  for (int i = first; i < argc; ++i) measure(argv[i], table_of(tokenizer_of(argv[i])), answers);
  measure("made, without all bytes", vitrine::bench::VocabularyMaker(49152, true).make(), answers);
  measure("made", vitrine::bench::VocabularyMaker(151936, false).make(), answers);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "limit_bench: %s\n", error.what());
  return 1;
}
