// SPDX-License-Identifier: Apache-2.0
// Chains of + - ×, worked out from left to right by steps that are known.
#include <algorithm>
#include <cstdlib>

#include "evaluation/fields.h"
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

struct ArithmeticForm {
  int64_t digits = 2, terms = 3, num_choices = 4;
  std::vector<std::string> operators;
  bool has_choices = false;
};

ArithmeticForm read_arithmetic(const Json& options) {
  ArithmeticForm form;
  form.digits = whole_field(options, "", "digits", 1, 3, 2);
  form.terms = whole_field(options, "", "terms", 2, 8, 3);
  form.num_choices = whole_field(options, "", "num_choices", 2, 10, 4);
  form.operators = texts_field(options, "", "operators");
  if (form.operators.empty()) form.operators = {"+", "-"};
  for (const std::string& sign : form.operators) {
    if (sign != "+" && sign != "-" && sign != "*") {
      const Json found = sign;
      throw_field("", field_problem("operators[]", &found, "+, - or *"));
    }
  }
  form.has_choices = options.value("kind", "answer") == "choice";
  return form;
}

/// A chain and its value, with the value of each operation in the order in which it is done.
struct SumChain {
  std::string text;
  int64_t value = 0;
  std::vector<int64_t> steps;
};

SumChain make_sum(Random& random, const ArithmeticForm& form) {
  int64_t most = 9;
  for (int64_t i = 1; i < form.digits; ++i) most = most * 10 + 9;
  std::vector<int64_t> numbers = {random.between(most / 10 + 1, most)};
  std::vector<std::string> signs;
  SumChain sum;
  sum.text = std::to_string(numbers[0]);
  for (int64_t i = 1; i < form.terms; ++i) {
    signs.push_back(random.choose(form.operators));
    // A factor has one digit: what is tested is the order of the steps, not long products.
    const bool is_product = signs.back() == "*";
    numbers.push_back(is_product ? random.between(2, 9) : random.between(most / 10 + 1, most));
    sum.text += " " + signs.back() + " " + std::to_string(numbers.back());
  }
  for (size_t i = 0; i < signs.size();) {
    if (signs[i] != "*") {
      ++i;
      continue;
    }
    numbers[i] *= numbers[i + 1];
    sum.steps.push_back(numbers[i]);
    numbers.erase(numbers.begin() + static_cast<ptrdiff_t>(i) + 1);
    signs.erase(signs.begin() + static_cast<ptrdiff_t>(i));
  }
  sum.value = numbers[0];
  for (size_t i = 0; i < signs.size(); ++i) {
    sum.value += signs[i] == "-" ? -numbers[i + 1] : numbers[i + 1];
    sum.steps.push_back(sum.value);
  }
  return sum;
}

/// The value, and wrong ones near to it: as slips of one digit, of a sign or a carry leave them.
Json choices_of(Random& random, const SumChain& sum, int64_t count, Json data) {
  std::vector<int64_t> values = {sum.value};
  const std::vector<int64_t> slips = {1, -1, 2, -2, 10, -10, 9, -9, 11, -11, 20, -20, 100, -100};
  while (static_cast<int64_t>(values.size()) < count) {
    const int64_t wrong = sum.value + random.choose(slips);
    // What is not negative stays so: a sign alone would give the right one away.
    if ((wrong < 0) == (sum.value < 0) && std::ranges::find(values, wrong) == values.end()) {
      values.push_back(wrong);
    } else if (std::abs(sum.value) < 20) {
      values.push_back(sum.value + static_cast<int64_t>(values.size()) + 2);
      std::ranges::sort(values);
      values.erase(std::ranges::unique(values).begin(), values.end());
    }
  }
  random.shuffle(values);
  data["choices"] = Json::array();
  for (const int64_t value : values) data["choices"].push_back(" " + std::to_string(value));
  data["answer"] = std::ranges::find(values, sum.value) - values.begin();
  return data;
}

std::vector<Item> make_arithmetic(const Json& options, uint64_t seed, int64_t count) {
  const ArithmeticForm form = read_arithmetic(options);
  return make_by_number(seed, count, "arithmetic", [&](Random& random, int64_t) -> Json {
    const SumChain sum = make_sum(random, form);
    Json data = {{"question", sum.text}};
    if (form.has_choices) {
      data["prompt"] = sum.text + " =";
      return choices_of(random, sum, form.num_choices, std::move(data));
    }
    data["prompt"] = "Calculate " + sum.text +
                     ". Write each calculation on a line of its own, such as \"3 * 4 = 12\". End "
                     "with a line \"Answer: \" and the result.";
    data["answer"] = sum.value;
    data["steps"] = sum.steps;
    return data;
  });
}

VITRINE_REGISTER_MAKER({.name = "arithmetic",
                        .make = make_arithmetic,
                        .options = {"digits", "terms", "operators", "num_choices"}});

}  // namespace

}  // namespace vitrine::evaluation
