// SPDX-License-Identifier: Apache-2.0
// fuzz_tokenizer SECONDS [SEED]: mutates tokenizer.json files, then encodes and decodes with them.
//
// Every outcome must be success or vitrine::Error with one line; anything else ends with 1 and the
// iteration, which the same seed repeats. Meant for a build with AddressSanitizer and UBSan.
#include <stdexcept>

#include "tests/support/fuzz.h"
#include "tests/support/mutator.h"
#include "tokenizer_json.h"
#include "vitrine/tokenizer.h"

namespace {

using namespace vitrine;
using nlohmann::json;

std::vector<std::string> hostile_strings() {
  return {R"("")",
          R"("Split")",
          R"("Sequence")",
          R"("ByteLevel")",
          R"("NFC")",
          R"("TemplateProcessing")",
          R"x("Isolated")x",
          R"x("MergedWithNext")x",
          R"x("Removed")x",
          R"x("Regex")x",
          R"x("(a+)+$")x",
          R"x("((((((")x",
          R"x("\\p{L}+|\\s+(?!\\S)")x",
          R"x("[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+")x",
          R"x("(?i:'s|'t)|.")x",
          R"x("h e")x",
          R"x("he ll")x",
          R"x("hello")x",
          R"x("x y")x",
          R"x("<|end|>")x",
          R"x("\ud800")x",
          R"x("\n\u0000")x",
          "\"\xff\""};
}

/// Tokenizers that load: the pre-tokenizers, normalisers and post-processors of published models.
std::vector<std::string> healthy_files() {
  std::vector<std::string> files = {test::small_tokenizer().dump()};
  json split = test::small_tokenizer();
  const json byte_level = split["pre_tokenizer"];
  json plain = byte_level;
  plain["use_regex"] = false;
  split["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  split["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern",
          {{"Regex", R"((?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+|.)"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        plain}}};
  files.push_back(split.dump());
  json processed = test::small_tokenizer();
  processed["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens",
       {{"<|end|>", {{"id", "<|end|>"}, {"ids", {261}}, {"tokens", {"<|end|>"}}}}}}};
  files.push_back(processed.dump());
  return files;
}

/// True where nothing was refused.
bool use(const std::string& text) {
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(text, "tokenizer.json");
    for (const char* sample :
         {"hello well, 1234\n\t<|end|>MASK", "\xff\xc3 \xf0\x9f\x99\x82 he's"}) {
      std::vector<int32_t> ids = tokenizer.encode(sample);
      ids.insert(ids.end(), {0, 255, 260, 261, 262, 100000, -1});
      StreamDecoder decoder(tokenizer);
      for (int32_t id : ids) {
        if (id < 0 || id >= tokenizer.vocab_size()) continue;
        tokenizer.token_text(id);
        decoder.add(id);
      }
      decoder.finish();
    }
    return true;
  } catch (const Error& error) {
    testing::check_message(error);
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_fuzz(argc, argv, "fuzz_tokenizer", "files", [](uint64_t seed) {
    const auto healthy = healthy_files();
    const auto run = [healthy, mutator = testing::Mutator(seed, hostile_strings())](
                         long iteration) mutable -> std::optional<bool> {
      testing::Files files = {
          {"tokenizer.json", healthy[static_cast<size_t>(iteration) % healthy.size()]}};
      const bool is_mutated = iteration >= static_cast<long>(healthy.size());
      if (is_mutated) mutator.mutate(files);
      if (files.empty()) return std::nullopt;
      const bool is_read = use(files.begin()->second);
      if (!is_mutated && !is_read) throw std::runtime_error("a healthy file was refused");
      return is_read;
    };
    return testing::FuzzTarget{run, static_cast<long>(healthy.size())};
  });
}
