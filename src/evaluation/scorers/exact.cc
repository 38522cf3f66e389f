// SPDX-License-Identifier: Apache-2.0
// The answer is one of the texts that are right, but for case, white space and punctuation at its
// ends.
#include <algorithm>

#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

constexpr std::string_view kEnds = " \t\r\n\f\v.!?,;:\"'`*()";

/// White space within becomes one blank.
std::string joined(std::string_view text) {
  std::string result;
  for (const char byte : text) {
    const bool is_space = std::string_view(" \t\r\n\f\v").find(byte) != std::string_view::npos;
    if (!is_space) {
      result += byte;
    } else if (!result.empty() && result.back() != ' ') {
      result += ' ';
    }
  }
  return result;
}

std::string exact_form(std::string_view text, const Json& options) {
  if (options.value("strict", false)) return std::string(trim(text));
  const size_t begin = text.find_first_not_of(kEnds);
  if (begin == std::string_view::npos) return {};
  const std::string_view inner = text.substr(begin, text.find_last_not_of(kEnds) - begin + 1);
  std::string form = joined(fold_case(inner));
  if (options.value("ignore_spaces", false)) std::erase(form, ' ');
  return form;
}

/// What is compared: behind the last marker where there is one, its first line.
std::string_view exact_part(std::string_view text, const Json& options) {
  const std::string marker = options.value("marker", "");
  const auto behind = after_marker(text, marker);
  if (behind) return first_line(*behind);
  return options.value("first_line", false) ? first_line(text) : text;
}

Score score_exact(const ScoredAnswer& answer) {
  const std::string text = answer_text(answer);
  Score score;
  score.extracted = short_text(exact_form(exact_part(text, answer.options), answer.options));
  score.is_parsed = !score.extracted.empty();
  const std::string form = exact_form(exact_part(text, answer.options), answer.options);
  for (const std::string& right : texts_field(answer.item.data, "", "answer")) {
    score.is_right = score.is_right || form == exact_form(right, answer.options);
  }
  score.value = score.is_right ? 1 : 0;
  return score;
}

std::string check_exact(const Item& item, const Json& options) {
  text_field(options, "", "marker", "");
  for (const char* name : {"strict", "ignore_spaces", "first_line"}) {
    flag_field(options, "", name, false);
  }
  const std::vector<std::string> right = texts_field(item.data, "", "answer");
  const bool is_empty = std::ranges::any_of(
      right, [&](const std::string& text) { return exact_form(text, options).empty(); });
  if (!right.empty() && !is_empty) return {};
  return field_problem("answer", find_field(item.data, "answer"),
                       "a text or a list of texts, none empty");
}

std::string expected_exact(const Item& item) {
  return one_of_text(texts_field(item.data, "", "answer"));
}

VITRINE_REGISTER_SCORER({.name = "exact",
                         .score = score_exact,
                         .check = check_exact,
                         .expected = expected_exact,
                         .options = {"marker", "strict", "ignore_spaces", "first_line"}});

}  // namespace

}  // namespace vitrine::evaluation
