// SPDX-License-Identifier: Apache-2.0
// RULER's vt: a chain of assignments hidden in noise, with one worked example before it (Hsieh et
// al., arXiv 2404.06654; github.com/NVIDIA/RULER).
#include <algorithm>
#include <set>

#include "evaluation/fields.h"
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

constexpr std::string_view kVtNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr int64_t kMostExampleTokens = 500;  // RULER's, of its worked example

/// One chain in noise, its question, and the variables that are right.
struct TrackedChain {
  std::string prompt, start;
  std::vector<std::string> variables;
};

std::vector<std::string> variable_names(Random& random, size_t count, size_t letters) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  while (names.size() < count) {
    std::string name = random.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", letters);
    if (seen.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

/// The context: the chain's lines in their order, among `count` lines of noise.
std::string chain_context(Random& random, const std::vector<std::string>& chain, int64_t count) {
  std::vector<std::string> sentences(static_cast<size_t>(count), std::string(kVtNoise));
  std::vector<size_t> places = random.sample(sentences.size(), chain.size());
  std::ranges::sort(places);
  for (size_t i = 0; i < chain.size(); ++i) {
    sentences.insert(sentences.begin() + static_cast<ptrdiff_t>(places[i] + i), chain[i]);
  }
  std::string context;
  for (const std::string& sentence : sentences) {
    context += (context.empty() ? "" : "\n") + sentence;
  }
  return context;
}

TrackedChain make_chain(Random& random, int64_t hops, size_t letters, int64_t length) {
  TrackedChain made;
  made.variables = variable_names(random, static_cast<size_t>(hops) + 1, letters);
  const std::string value = std::to_string(random.between(10'000, 99'998));
  std::vector<std::string> chain = {"VAR " + made.variables[0] + " = " + value};
  for (size_t i = 1; i < made.variables.size(); ++i) {
    chain.push_back("VAR " + made.variables[i] + " = VAR " + made.variables[i - 1] + " ");
  }
  const std::string begin =
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  const std::string end =
      "\nQuestion: Find all variables that are assigned the value " + value + " in the text above.";
  made.start = "Answer: According to the chain(s) of variable assignment in the text above, " +
               std::to_string(hops + 1) + " variables are assigned the value " + value +
               ", they are: ";
  int64_t tokens = estimated_tokens(begin + end + made.start);
  for (const std::string& line : chain) tokens += estimated_tokens(line) + 1;
  const int64_t noise = estimated_tokens(kVtNoise) + 1;
  const int64_t count = std::max((length - tokens) / noise, static_cast<int64_t>(chain.size()));
  made.prompt = begin + chain_context(random, chain, count) + end;
  return made;
}

Json make_tracking(Random& random, int64_t hops, int64_t length) {
  // The example has names of three letters, and at most half of a short prompt.
  const TrackedChain example =
      make_chain(random, std::min<int64_t>(hops, 10), 3, std::min(kMostExampleTokens, length / 2));
  std::string shown = example.prompt + " " + example.start;
  for (const std::string& name : example.variables) shown += " " + name;
  shown += "\n\n";
  TrackedChain made = make_chain(random, hops, 5, length - estimated_tokens(shown));
  // RULER's prefix ends with a blank, which would be a token that no model writes alone.
  made.start.pop_back();
  return {
      {"prompt", shown + made.prompt}, {"answer_start", made.start}, {"answer", made.variables}};
}

std::vector<Item> make_vt(const Json& options, uint64_t seed, int64_t count) {
  const int64_t hops = whole_field(options, "", "hops", 1, 20, 4);
  return make_by_length(options, seed, count, "vt", [&](Random& random, int64_t length, int64_t) {
    return make_tracking(random, hops, length);
  });
}

VITRINE_REGISTER_MAKER({.name = "vt", .make = make_vt, .options = {"lengths", "longest", "hops"}});

}  // namespace

}  // namespace vitrine::evaluation
