// SPDX-License-Identifier: Apache-2.0
// Needles by forced choice: which of the words that the text mentions belongs to the key. The
// margin between the right word and the best wrong one says more than right or wrong, and small
// models can do it.
#include <algorithm>

#include "evaluation/fields.h"
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

constexpr std::string_view kHay[] = {"The morning was quiet and the shop had just opened.",
                                     "A light wind moved the leaves along the street.",
                                     "Two people talked about the weather for a while.",
                                     "The bus came late, as it did on most days.",
                                     "Someone had left a newspaper on the bench.",
                                     "The baker put fresh bread into the window.",
                                     "Children ran home before the rain began.",
                                     "The old clock struck the hour and went on.",
                                     "A cat slept on the wall in the sun.",
                                     "The river was low after the dry summer.",
                                     "The mail was brought before noon.",
                                     "Lamps were lit one after the other.",
                                     "A train could be heard far away.",
                                     "The market closed and the square grew empty.",
                                     "Snow had fallen on the hills overnight.",
                                     "The teacher wrote a long list on the board."};

std::string hidden_line(const std::string& owner, const std::string& thing) {
  return owner + "'s secret word is " + thing + ".";
}

Json make_needle_choice(Random& random, int64_t length, int64_t depth, size_t num_choices) {
  std::vector<std::string> owners = first_names();
  random.shuffle(owners);
  std::vector<std::string> things = nouns();
  random.shuffle(things);
  const std::string question = "\nQuestion: What is " + owners[0] +
                               "'s secret word?\nAnswer: " + owners[0] + "'s secret word is";
  int64_t tokens = estimated_tokens(question);
  for (size_t i = 0; i < num_choices; ++i) {
    tokens += estimated_tokens(hidden_line(owners[i], things[i])) + 1;
  }
  std::vector<std::string> lines;
  while (true) {
    const std::string_view line = kHay[random.below(std::size(kHay))];
    tokens += estimated_tokens(line) + 1;
    if (tokens > length && lines.size() >= num_choices) break;
    lines.emplace_back(line);
  }
  // Decoys stand anywhere, the needle at its depth, counted in lines of hay.
  for (size_t i = 1; i < num_choices; ++i) {
    const auto place = static_cast<ptrdiff_t>(random.below(lines.size() + 1));
    lines.insert(lines.begin() + place, hidden_line(owners[i], things[i]));
  }
  const auto place = static_cast<ptrdiff_t>(lines.size()) * depth / 100;
  lines.insert(lines.begin() + place, hidden_line(owners[0], things[0]));
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  std::vector<std::string> choices;
  for (size_t i = 0; i < num_choices; ++i) choices.push_back(" " + things[i]);
  const std::string right = choices[0];
  random.shuffle(choices);
  return {{"prompt", text + question.substr(1)},
          {"choices", choices},
          {"answer", std::ranges::find(choices, right) - choices.begin()},
          {"depth", static_cast<double>(depth) / 100}};
}

std::vector<Item> make_needle_choices(const Json& options, uint64_t seed, int64_t count) {
  const std::vector<int64_t> depths =
      wholes_field(options, "", "depths", 0, 100, {0, 25, 50, 75, 100});
  const int64_t num_choices = whole_field(options, "", "num_choices", 2, 16, 4);
  return make_by_length(
      options, seed, count, "needle_choice", [&](Random& random, int64_t length, int64_t number) {
        const int64_t depth = depths[static_cast<size_t>(number) % depths.size()];
        return make_needle_choice(random, length, depth, static_cast<size_t>(num_choices));
      });
}

VITRINE_REGISTER_MAKER({.name = "needle_choice",
                        .make = make_needle_choices,
                        .options = {"lengths", "longest", "depths", "num_choices"}});

}  // namespace

}  // namespace vitrine::evaluation
