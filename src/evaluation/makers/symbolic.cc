// SPDX-License-Identifier: Apache-2.0
// Small symbolic problems with one answer: sorting, reversing, ordering and sets.
#include <algorithm>
#include <set>

#include "evaluation/fields.h"
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

std::string with_commas(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::vector<std::string> number_texts(const std::vector<int64_t>& numbers) {
  std::vector<std::string> texts;
  for (const int64_t number : numbers) texts.push_back(std::to_string(number));
  return texts;
}

std::vector<int64_t> different_numbers(Random& random, size_t count, size_t most) {
  std::vector<int64_t> numbers;
  for (const size_t place : random.sample(most, count)) {
    numbers.push_back(static_cast<int64_t>(place) + 1);
  }
  return numbers;
}

Json make_sorted_numbers(Random& random, size_t size) {
  std::vector<int64_t> numbers = different_numbers(random, size, 99);
  const std::string given = with_commas(number_texts(numbers));
  std::ranges::sort(numbers);
  return {{"prompt", "Sort these numbers in ascending order: " + given +
                         ". Answer with the numbers alone, separated by commas."},
          {"answer", with_commas(number_texts(numbers))}};
}

Json make_sorted_words(Random& random, size_t size) {
  std::vector<std::string> words = nouns();
  random.shuffle(words);
  words.resize(size);
  const std::string given = with_commas(words);
  std::ranges::sort(words);
  return {{"prompt", "Sort these words in alphabetical order: " + given +
                         ". Answer with the words alone, separated by commas."},
          {"answer", with_commas(words)}};
}

Json make_reversed(Random& random, size_t size) {
  std::string letters = random.text("abcdefghijklmnopqrstuvwxyz", size);
  std::string given;
  for (const char letter : letters) given += (given.empty() ? "" : " ") + std::string(1, letter);
  std::ranges::reverse(letters);
  std::string right;
  for (const char letter : letters) right += (right.empty() ? "" : " ") + std::string(1, letter);
  return {{"prompt", "Write these letters in reverse order: " + given +
                         ". Answer with the letters alone, separated by spaces."},
          {"answer", right}};
}

/// People in a row, told by pairs of neighbours in random order.
Json make_ordering(Random& random, size_t size) {
  std::vector<std::string> names = first_names();
  random.shuffle(names);
  names.resize(size);
  std::vector<std::string> facts;
  for (size_t i = 0; i + 1 < size; ++i) {
    const bool is_taller = random.below(2) == 0;
    facts.push_back(is_taller ? names[i] + " is taller than " + names[i + 1] + "."
                              : names[i + 1] + " is shorter than " + names[i] + ".");
  }
  random.shuffle(facts);
  std::string text;
  for (const std::string& fact : facts) text += fact + " ";
  const bool asks_tallest = random.below(2) == 0;
  return {{"prompt", text + "Who is the " + (asks_tallest ? "tallest" : "shortest") +
                         "? Answer with the name alone."},
          {"answer", asks_tallest ? names.front() : names.back()}};
}

Json make_sets(Random& random, size_t size) {
  const std::vector<int64_t> drawn = different_numbers(random, size + size / 2, 20);
  std::vector<int64_t> first(drawn.begin(), drawn.begin() + static_cast<ptrdiff_t>(size));
  std::vector<int64_t> second(drawn.end() - static_cast<ptrdiff_t>(size), drawn.end());
  const std::string given = "A = {" + with_commas(number_texts(first)) + "}, B = {" +
                            with_commas(number_texts(second)) + "}. ";
  std::ranges::sort(first);
  std::ranges::sort(second);
  std::vector<int64_t> right;
  const bool is_both = random.below(2) == 0;
  if (is_both) {
    std::ranges::set_intersection(first, second, std::back_inserter(right));
  } else {
    std::ranges::set_difference(first, second, std::back_inserter(right));
  }
  return {{"prompt", given + "Which numbers are in A " + (is_both ? "and in B" : "but not in B") +
                         "? Answer with the numbers alone, in ascending order, separated by "
                         "commas."},
          {"answer", with_commas(number_texts(right))}};
}

std::vector<Item> make_symbolic(const Json& options, uint64_t seed, int64_t count) {
  const std::string operation = choice_field(
      options, "", "operation", {"sort_numbers", "sort_words", "reverse", "order", "sets"});
  const auto size = static_cast<size_t>(whole_field(options, "", "size", 3, 12, 4));
  const auto make = operation == "sort_numbers" ? make_sorted_numbers
                    : operation == "sort_words" ? make_sorted_words
                    : operation == "reverse"    ? make_reversed
                    : operation == "order"      ? make_ordering
                                                : make_sets;
  return make_by_number(seed, count, "symbolic/" + operation, [&](Random& random, int64_t) {
    Json data = make(random, size);
    data["reference"] = data["answer"];
    return data;
  });
}

VITRINE_REGISTER_MAKER({.name = "symbolic",
                        .make = make_symbolic,
                        .options = {"operation", "size"}});

}  // namespace

}  // namespace vitrine::evaluation
