// SPDX-License-Identifier: Apache-2.0
// RULER's needles (Hsieh et al., arXiv 2404.06654; github.com/NVIDIA/RULER): texts, needles and
// questions are as there, word for word. Words come from a list of this library's own, and lengths
// are estimated (docs/evaluation.md).
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// One of RULER's tasks: what hides the needle, and what its key and value are.
struct NeedleTask {
  std::string name;
  bool is_among_needles;  // else the haystack is noise
  bool is_uuid_key;       // else an adjective and a noun
  bool is_uuid_value;     // else a number of seven digits
};

std::string made_uuid(Random& random) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = random.text(kDigits, 8) + "-" + random.text(kDigits, 4) + "-4" +
                     random.text(kDigits, 3) + "-" + random.text("89ab", 1) +
                     random.text(kDigits, 3) + "-" + random.text(kDigits, 12);
  return text;
}

std::string needle_key(const NeedleTask& task, Random& random) {
  if (task.is_uuid_key) return made_uuid(random);
  return random.choose(adjectives()) + "-" + random.choose(nouns());
}

std::string needle_value(const NeedleTask& task, Random& random) {
  if (task.is_uuid_value) return made_uuid(random);
  return std::to_string(random.between(1'000'000, 9'999'999));
}

std::string needle_text(const NeedleTask& task, const std::string& key, const std::string& value) {
  return std::string("One of the special magic ") + (task.is_uuid_value ? "uuids" : "numbers") +
         " for " + key + " is: " + value + ".";
}

Json make_needle(const NeedleTask& task, Random& random, int64_t length) {
  const std::string key = needle_key(task, random);
  const std::string value = needle_value(task, random);
  const std::string kind = task.is_uuid_value ? "uuid" : "number";
  const std::string begin = "A special magic " + kind +
                            " is hidden within the following text. Make sure to memorize it. I "
                            "will quiz you about the " +
                            kind + " afterwards.\n";
  const std::string end =
      "\nWhat is the special magic " + kind + " for " + key + " mentioned in the provided text?";
  const std::string start =
      "The special magic " + kind + " for " + key + " mentioned in the provided text is";
  std::vector<std::string> sentences;
  int64_t tokens = estimated_tokens(begin + end + start + needle_text(task, key, value)) + 1;
  while (true) {
    std::string sentence(kNoise);
    if (task.is_among_needles) {
      std::string other = needle_key(task, random);
      while (other == key) other = needle_key(task, random);
      sentence = needle_text(task, other, needle_value(task, random));
    }
    tokens += estimated_tokens(sentence) + 1;
    if (tokens > length && !sentences.empty()) break;
    sentences.push_back(std::move(sentence));
  }
  const size_t place = random.below(sentences.size());
  const double depth = static_cast<double>(place) / static_cast<double>(sentences.size());
  sentences.insert(sentences.begin() + static_cast<ptrdiff_t>(place),
                   needle_text(task, key, value));
  std::string context;
  for (const std::string& sentence : sentences) {
    context += (context.empty() ? "" : "\n") + sentence;
  }
  return {{"prompt", begin + context + end},
          {"answer_start", start},
          {"answer", Json::array({value})},
          {"depth", depth}};
}

std::vector<Item> make_needles(const NeedleTask& task, const Json& options, uint64_t seed,
                               int64_t count) {
  return make_by_length(
      options, seed, count, task.name,
      [&](Random& random, int64_t length, int64_t) { return make_needle(task, random, length); });
}

std::vector<Item> make_niah_single_1(const Json& options, uint64_t seed, int64_t count) {
  return make_needles({"niah_single_1", false, false, false}, options, seed, count);
}

std::vector<Item> make_niah_multikey_2(const Json& options, uint64_t seed, int64_t count) {
  return make_needles({"niah_multikey_2", true, false, false}, options, seed, count);
}

std::vector<Item> make_niah_multikey_3(const Json& options, uint64_t seed, int64_t count) {
  return make_needles({"niah_multikey_3", true, true, true}, options, seed, count);
}

VITRINE_REGISTER_MAKER({.name = "niah_single_1",
                        .make = make_niah_single_1,
                        .options = {"lengths", "longest"}});
VITRINE_REGISTER_MAKER({.name = "niah_multikey_2",
                        .make = make_niah_multikey_2,
                        .options = {"lengths", "longest"}});
VITRINE_REGISTER_MAKER({.name = "niah_multikey_3",
                        .make = make_niah_multikey_3,
                        .options = {"lengths", "longest"}});

}  // namespace

}  // namespace vitrine::evaluation
