// SPDX-License-Identifier: Apache-2.0
// Induction: a sequence of random words that comes twice, whose second pass alone is scored. Only
// what a model reads back from its context makes the second pass probable (Olsson et al., arXiv
// 2209.11895).
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

Json make_pass_twice(Random& random, int64_t length) {
  std::string pass;
  while (estimated_tokens(pass) < length / 2 - 1) {
    const std::vector<std::string>* lists[] = {&nouns(), &adjectives(), &verbs()};
    pass += (pass.empty() ? "" : " ") + random.choose(*lists[random.below(3)]);
  }
  // Both passes begin a line, so that their tokens are the same.
  return {{"text", "\n" + pass + "\n" + pass}, {"scored_from", pass.size() + 2}};
}

std::vector<Item> make_induction(const Json& options, uint64_t seed, int64_t count) {
  return make_by_length(
      options, seed, count, "induction",
      [](Random& random, int64_t length, int64_t) { return make_pass_twice(random, length); });
}

VITRINE_REGISTER_MAKER({.name = "induction",
                        .make = make_induction,
                        .options = {"lengths", "longest"}});

}  // namespace

}  // namespace vitrine::evaluation
