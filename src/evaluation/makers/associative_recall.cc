// SPDX-License-Identifier: Apache-2.0
// Multi-query associative recall (MQAR; Arora et al., arXiv 2312.04927) by forced choice: pairs of
// words, then some keys again with their values, then the key that is asked for.
#include <algorithm>

#include "evaluation/fields.h"
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostQueries = 3;  // keys that come again before the one that is asked for

Json make_recall(Random& random, size_t pairs, size_t num_choices) {
  std::vector<std::string> keys = nouns();
  random.shuffle(keys);
  const std::vector<std::string> values(keys.begin() + static_cast<ptrdiff_t>(pairs),
                                        keys.begin() + static_cast<ptrdiff_t>(2 * pairs));
  std::string text;
  for (size_t i = 0; i < pairs; ++i) text += keys[i] + " = " + values[i] + "\n";
  std::vector<size_t> asked = random.sample(pairs, std::min(pairs, kMostQueries + 1));
  for (size_t i = 0; i + 1 < asked.size(); ++i) {
    text += keys[asked[i]] + " = " + values[asked[i]] + "\n";
  }
  const size_t right = asked.back();
  std::vector<std::string> choices = {" " + values[right]};
  for (const size_t other : random.sample(pairs, pairs)) {
    if (other != right && choices.size() < num_choices) choices.push_back(" " + values[other]);
  }
  random.shuffle(choices);
  const auto place = std::ranges::find(choices, " " + values[right]) - choices.begin();
  return {{"prompt", text + keys[right] + " ="},
          {"choices", choices},
          {"answer", place},
          {"depth", static_cast<double>(right) / static_cast<double>(pairs)},
          {"note", std::to_string(pairs) + " pairs"}};
}

std::vector<Item> make_mqar(const Json& options, uint64_t seed, int64_t count) {
  const auto most = static_cast<int64_t>(nouns().size() / 2);
  const std::vector<int64_t> pairs = wholes_field(options, "", "pairs", 4, most, {8});
  const int64_t num_choices = whole_field(options, "", "num_choices", 2, 4, 4);
  return make_by_number(seed, count, "mqar", [&](Random& random, int64_t number) {
    return make_recall(random,
                       static_cast<size_t>(pairs[static_cast<size_t>(number) % pairs.size()]),
                       static_cast<size_t>(num_choices));
  });
}

VITRINE_REGISTER_MAKER({.name = "mqar", .make = make_mqar, .options = {"pairs", "num_choices"}});

}  // namespace

}  // namespace vitrine::evaluation
