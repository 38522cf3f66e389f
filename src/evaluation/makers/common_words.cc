// SPDX-License-Identifier: Apache-2.0
// RULER's cwe: ten words that come more often than the others of a numbered list, with one worked
// example before it (Hsieh et al., arXiv 2404.06654; github.com/NVIDIA/RULER).
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kNumCommon = 10;
constexpr int64_t kLongFrom = 4096;  // RULER's lists are denser below

const std::string kCweQuestion = "\nQuestion: What are the 10 most common words in the above list?";
const std::string kCweBegin =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n";
const std::string kCweStart = "Answer: The top 10 words that appear most often in the list are:";

struct WordList {
  std::string text;
  std::vector<std::string> common;
};

/// A list of `count` different words, the first ten `common` times each, others `uncommon` times.
WordList make_list(Random& random, size_t count, size_t common, size_t uncommon) {
  const std::vector<std::string> words = different_words(random, count);
  std::vector<std::string> all;
  for (size_t i = 0; i < words.size(); ++i) {
    all.insert(all.end(), i < kNumCommon ? common : uncommon, words[i]);
  }
  random.shuffle(all);
  WordList list;
  for (size_t i = 0; i < all.size(); ++i) {
    list.text += (i == 0 ? "" : " ") + std::to_string(i + 1) + ". " + all[i];
  }
  list.common.assign(words.begin(), words.begin() + kNumCommon);
  return list;
}

Json make_common_words(Random& random, int64_t length) {
  const bool is_long = length >= kLongFrom;
  const WordList example = is_long ? make_list(random, 40, 10, 3) : make_list(random, 20, 3, 1);
  std::string shown = kCweBegin + example.text + kCweQuestion + " " + kCweStart;
  for (size_t i = 0; i < kNumCommon; ++i) {
    shown += " " + std::to_string(i + 1) + ". " + example.common[i];
  }
  shown += "\n";
  const size_t common = is_long ? 30 : 6;
  const size_t uncommon = is_long ? 3 : 1;
  const int64_t room = length - estimated_tokens(shown + kCweBegin + kCweQuestion + kCweStart);
  // Each trial starts from the same numbers, so that the last one is what is asked.
  const Random start = random;
  const auto list_of = [&](int64_t count) {
    Random trial = start;
    return make_list(trial, static_cast<size_t>(count), common, uncommon);
  };
  const int64_t count = largest_that_fits(static_cast<int64_t>(kNumCommon) + 1, [&](int64_t n) {
    return estimated_tokens(list_of(n).text) <= room;
  });
  const WordList list = list_of(count);
  return {{"prompt", shown + kCweBegin + list.text + kCweQuestion},
          {"answer_start", kCweStart},
          {"answer", list.common}};
}

std::vector<Item> make_cwe(const Json& options, uint64_t seed, int64_t count) {
  return make_by_length(options, seed, count, "cwe", [](Random& random, int64_t length, int64_t) {
    return make_common_words(random, length);
  });
}

VITRINE_REGISTER_MAKER({.name = "cwe", .make = make_cwe, .options = {"lengths", "longest"}});

}  // namespace

}  // namespace vitrine::evaluation
