// SPDX-License-Identifier: Apache-2.0
// RULER's fwe: the three most frequent of coded words, whose frequencies follow a zeta
// distribution with exponent 2 (Hsieh et al., arXiv 2404.06654; github.com/NVIDIA/RULER).
#include <algorithm>
#include <numbers>
#include <set>

#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kCodedLetters = 6;
constexpr double kZetaOfTwo = std::numbers::pi * std::numbers::pi / 6;

const std::string kFweBegin =
    "Read the following coded text and track the frequency of each coded word. Find the three "
    "most frequently appeared coded words. ";
const std::string kFweEnd =
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three "
    "most frequently appeared words in the above coded text?";
const std::string kFweStart =
    "Answer: According to the coded text above, the three most frequently appeared words are:";

std::string coded_text(Random random, const std::vector<std::string>& vocabulary, int64_t count) {
  std::vector<std::string> words;
  for (size_t rank = 1; rank <= vocabulary.size(); ++rank) {
    const double share = 1 / static_cast<double>(rank * rank) / kZetaOfTwo;
    words.insert(words.end(), static_cast<size_t>(static_cast<double>(count) * share),
                 vocabulary[rank - 1]);
  }
  random.shuffle(words);
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Six letters at random are four tokens of the usual encodings, and three dots one.
int64_t coded_tokens(std::string_view text) {
  const auto words = std::ranges::count(text, ' ') + 1;
  return 4 * words - std::ranges::count(text, '.');
}

Json make_frequent_words(Random& random, int64_t length) {
  const auto size = static_cast<size_t>(std::max<int64_t>(length / 50, 8));
  std::vector<std::string> vocabulary = {"..."};  // the most frequent one is noise
  std::set<std::string> seen;
  while (vocabulary.size() < size) {
    std::string word = random.text("abcdefghijklmnopqrstuvwxyz", kCodedLetters);
    if (seen.insert(word).second) vocabulary.push_back(std::move(word));
  }
  const int64_t room = length - estimated_tokens(kFweBegin + kFweEnd + kFweStart);
  // Below 60 words the third and the fourth come equally often.
  const int64_t count = largest_that_fits(
      60, [&](int64_t n) { return coded_tokens(coded_text(random, vocabulary, n)) <= room; });
  return {{"prompt", kFweBegin + coded_text(random, vocabulary, count) + kFweEnd},
          {"answer_start", kFweStart},
          {"answer", std::vector<std::string>(vocabulary.begin() + 1, vocabulary.begin() + 4)}};
}

std::vector<Item> make_fwe(const Json& options, uint64_t seed, int64_t count) {
  return make_by_length(options, seed, count, "fwe", [](Random& random, int64_t length, int64_t) {
    return make_frequent_words(random, length);
  });
}

VITRINE_REGISTER_MAKER({.name = "fwe", .make = make_fwe, .options = {"lengths", "longest"}});

}  // namespace

}  // namespace vitrine::evaluation
