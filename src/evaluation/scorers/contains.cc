// SPDX-License-Identifier: Apache-2.0
// The share of references that stand in the answer, in any case: RULER's string_match_all (Hsieh et
// al., arXiv 2404.06654).
#include <algorithm>

#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

Score score_contains(const ScoredAnswer& answer) {
  const std::string text = fold_case(answer_text(answer));
  const std::vector<std::string> references = texts_field(answer.item.data, "", "answer");
  Score score;
  size_t found = 0;
  for (const std::string& reference : references) {
    if (text.find(fold_case(reference)) == std::string::npos) continue;
    ++found;
    score.extracted += (score.extracted.empty() ? "" : ", ") + reference;
  }
  score.value = static_cast<double>(found) / static_cast<double>(references.size());
  score.is_right = found == references.size();
  score.is_parsed = !trim(text).empty();
  return score;
}

std::string check_contains(const Item& item, const Json&) {
  const std::vector<std::string> references = texts_field(item.data, "", "answer");
  const bool is_empty =
      std::ranges::any_of(references, [](const std::string& text) { return trim(text).empty(); });
  if (!references.empty() && !is_empty) return {};
  return field_problem("answer", find_field(item.data, "answer"),
                       "a text or a list of texts, none empty");
}

std::string expected_contains(const Item& item) {
  std::string text;
  for (const std::string& reference : texts_field(item.data, "", "answer")) {
    text += (text.empty() ? "" : ", ") + reference;
  }
  return text;
}

VITRINE_REGISTER_SCORER({.name = "contains",
                         .score = score_contains,
                         .check = check_contains,
                         .expected = expected_contains});

}  // namespace

}  // namespace vitrine::evaluation
