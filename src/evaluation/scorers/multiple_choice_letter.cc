// SPDX-License-Identifier: Apache-2.0
// The letter of the choice that an answer names.
#include <algorithm>

#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

constexpr int64_t kMostLetters = 26;

bool is_word_byte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || static_cast<uint8_t>(byte) >= 0x80;
}

/// A letter of the choices that stands alone at `at`, behind marks such as "(" and "**".
char letter_at_start(std::string_view text, int64_t num_choices) {
  const size_t at = text.find_first_not_of(" \t\n(*`\"'[:");
  if (at == std::string_view::npos) return '\0';
  const char letter = text[at];
  const bool is_choice = letter >= 'A' && letter < 'A' + num_choices;
  if (!is_choice || (at + 1 < text.size() && is_word_byte(text[at + 1]))) return '\0';
  // "A cat" begins a sentence; "A) cat", "A. cat", "A: cat" and "A" alone name a choice.
  const std::string_view rest = text.substr(at + 1);
  const bool is_marked = rest.empty() || rest[0] != ' ' || trim(rest).empty() ||
                         trim(rest)[0] == '-' || text[at == 0 ? 0 : at - 1] == '(';
  return is_marked ? letter : '\0';
}

/// The one letter in parentheses that a text has.
char only_letter(std::string_view text, int64_t num_choices) {
  char only = '\0';
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    const char letter = text[i + 1];
    if (text[i] != '(' || text[i + 2] != ')' || letter < 'A' || letter >= 'A' + num_choices) {
      continue;
    }
    if (only != '\0' && only != letter) return '\0';
    only = letter;
  }
  return only;
}

char named_letter(std::string_view text, int64_t num_choices) {
  for (const char* marker : {"answer is", "answer:", "answer:**", "\\boxed{"}) {
    const auto behind = after_marker(text, marker);
    const char letter = behind ? letter_at_start(*behind, num_choices) : '\0';
    if (letter != '\0') return letter;
  }
  const char first = letter_at_start(text, num_choices);
  return first != '\0' ? first : only_letter(text, num_choices);
}

Score score_letter(const ScoredAnswer& answer) {
  const std::string text = answer_text(answer);
  const int64_t num_choices = answer.options.value("num_choices", int64_t{4});
  const char letter = named_letter(text, num_choices);
  Score score;
  score.is_parsed = letter != '\0';
  if (score.is_parsed) score.extracted = letter;
  score.is_right = score.is_parsed && score.extracted == answer.item.data["answer"];
  score.value = score.is_right ? 1 : 0;
  return score;
}

std::string check_letter(const Item& item, const Json& options) {
  const int64_t num_choices = whole_field(options, "", "num_choices", 2, kMostLetters, 4);
  const Json* right = find_field(item.data, "answer");
  if (right != nullptr && right->is_string()) {
    const std::string letter = right->get<std::string>();
    if (letter.size() == 1 && letter[0] >= 'A' && letter[0] < 'A' + num_choices) return {};
  }
  return field_problem(
      "answer", right,
      std::string("a letter from A to ") + static_cast<char>('A' + num_choices - 1));
}

std::string expected_letter(const Item& item) { return item.data["answer"].get<std::string>(); }

VITRINE_REGISTER_SCORER({.name = "multiple_choice_letter",
                         .score = score_letter,
                         .check = check_letter,
                         .expected = expected_letter,
                         .options = {"num_choices"}});

}  // namespace

}  // namespace vitrine::evaluation
