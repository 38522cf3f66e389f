// SPDX-License-Identifier: Apache-2.0
// The answer's number, and the sums on the way to it: a right answer by wrong steps shows in the
// part "steps".
#include <algorithm>
#include <cmath>

#include "evaluation/scorers/arithmetic_steps.h"
#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

/// The number behind the last marker; else behind "####" or in "\boxed{…}"; else the last one.
std::optional<WrittenNumber> answer_number(std::string_view text, const Json& options) {
  for (const std::string& marker :
       {options.value("marker", ""), std::string("####"), std::string("\\boxed{")}) {
    const auto behind = after_marker(text, marker);
    if (!behind) continue;
    // Behind a marker a sum may be written out on its line: its last number is the answer.
    const std::string_view line = first_line(*behind);
    const bool is_sum = line.find('=') != std::string_view::npos;
    if (const auto number = is_sum ? last_number(line) : first_number(line)) return number;
  }
  return last_number(text);
}

double right_number(const Item& item) {
  const Json& right = item.data["answer"];
  return right.is_number() ? right.get<double>() : last_number(right.get<std::string>())->value;
}

/// The share of intermediate values of the item's "steps" that the answer's sums state.
double share_of_values(const Json& expected, const std::vector<ArithmeticStep>& steps) {
  size_t found = 0;
  for (const Json& value : expected) {
    const auto states = [&](const ArithmeticStep& step) {
      return std::abs(step.stated - value.get<double>()) < 1e-9;
    };
    if (std::ranges::any_of(steps, states)) ++found;
  }
  return static_cast<double>(found) / static_cast<double>(expected.size());
}

void add_step_parts(const ScoredAnswer& answer, const std::string& text, Score& score) {
  const std::vector<ArithmeticStep> steps = arithmetic_steps(text);
  score.parts["num_steps"] = static_cast<double>(steps.size());
  if (!steps.empty()) {
    const auto right = std::ranges::count_if(steps, &ArithmeticStep::is_right);
    score.parts["steps"] = static_cast<double>(right) / static_cast<double>(steps.size());
  }
  const Json* expected = find_field(answer.item.data, "steps");
  if (expected != nullptr) score.parts["step_values"] = share_of_values(*expected, steps);
}

Score score_number(const ScoredAnswer& answer) {
  const std::string text = answer_text(answer);
  Score score;
  const std::optional<WrittenNumber> found = answer_number(text, answer.options);
  score.is_parsed = found.has_value();
  if (found) {
    score.extracted = Json(found->value).dump();
    const double right = right_number(answer.item);
    const double room = answer.options.value("tolerance", 0.0) + std::abs(right) * 1e-12;
    score.is_right = std::abs(found->value - right) <= room;
  }
  score.value = score.is_right ? 1 : 0;
  add_step_parts(answer, text, score);
  return score;
}

std::string check_number(const Item& item, const Json& options) {
  text_field(options, "", "marker", "");
  number_field(options, "", "tolerance", 0, 1e300, 0);
  const Json* steps = find_field(item.data, "steps");
  const bool has_steps = steps == nullptr ||
                         (steps->is_array() && !steps->empty() &&
                          std::ranges::all_of(*steps, [](const Json& v) { return v.is_number(); }));
  if (!has_steps) return field_problem("steps", steps, "a list of numbers, at least one");
  const Json* right = find_field(item.data, "answer");
  const bool is_number =
      right != nullptr &&
      (right->is_number() || (right->is_string() && last_number(right->get<std::string>())));
  return is_number ? "" : field_problem("answer", right, "a number");
}

std::string expected_number(const Item& item) { return Json(right_number(item)).dump(); }

VITRINE_REGISTER_SCORER({.name = "number",
                         .score = score_number,
                         .check = check_number,
                         .expected = expected_number,
                         .options = {"marker", "tolerance"},
                         .item_fields = {"steps"}});

}  // namespace

}  // namespace vitrine::evaluation
