// SPDX-License-Identifier: Apache-2.0
// The answer matches a pattern (PCRE2), and the pattern's first group is the right text, where one
// is told.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/json_text.h"
#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

// The bounds of one match: an answer cannot make a pattern run for long.
constexpr uint32_t kMostMatchSteps = 1'000'000;
constexpr uint32_t kMostHeapKibibytes = 64 * 1024;

using PatternPointer = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;

/// Null, and why, for a pattern that does not compile.
PatternPointer compile_pattern(const std::string& pattern, std::string& problem) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  PatternPointer compiled(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr),
      &pcre2_code_free);
  if (compiled == nullptr) {
    PCRE2_UCHAR message[160];
    pcre2_get_error_message(code, message, sizeof(message));
    problem =
        std::string(reinterpret_cast<const char*>(message)) + " at byte " + std::to_string(offset);
  }
  return compiled;
}

/// What the pattern's group matches, of the whole match where there is no such group; nothing where
/// there is no match.
std::optional<std::string> match_group(const pcre2_code* pattern, const std::string& text) {
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(pattern, nullptr), &pcre2_match_data_free);
  if (context == nullptr || data == nullptr) {
    throw Error(ErrorKind::kOutOfMemory, "regular expression: no memory");
  }
  pcre2_set_match_limit(context.get(), kMostMatchSteps);
  pcre2_set_heap_limit(context.get(), kMostHeapKibibytes);
  const int count = pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                0, data.get(), context.get());
  if (count <= 0) return std::nullopt;
  const PCRE2_SIZE* places = pcre2_get_ovector_pointer(data.get());
  const size_t group = count > 1 && places[2] != PCRE2_UNSET ? 1 : 0;
  return text.substr(places[2 * group], places[2 * group + 1] - places[2 * group]);
}

std::string pattern_of(const Item& item, const Json& options) {
  return text_field(item.data, "", "pattern", text_field(options, "", "pattern", ""));
}

Score score_regex(const ScoredAnswer& answer) {
  std::string problem;
  const PatternPointer pattern = compile_pattern(pattern_of(answer.item, answer.options), problem);
  const std::optional<std::string> found = match_group(pattern.get(), answer_text(answer));
  Score score;
  score.is_parsed = found.has_value();
  if (!found) return score;
  score.extracted = short_text(*found);
  const Json* right = find_field(answer.item.data, "answer");
  score.is_right = right == nullptr ||
                   fold_case(trim(*found)) == fold_case(trim(right->get_ref<const std::string&>()));
  score.value = score.is_right ? 1 : 0;
  return score;
}

std::string check_regex(const Item& item, const Json& options) {
  text_field(item.data, "", "answer", "");
  const std::string pattern = pattern_of(item, options);
  if (pattern.empty()) {
    return field_problem("pattern", nullptr, "a regular expression, of the item or the task");
  }
  std::string problem;
  if (compile_pattern(pattern, problem) != nullptr) return {};
  return "'pattern' is " + quote_text(pattern) + " (" + problem +
         "); expected a regular expression of PCRE2";
}

std::string expected_regex(const Item& item) {
  const std::string pattern = text_field(item.data, "", "pattern", "the task's pattern");
  return text_field(item.data, "", "answer", "a text that matches " + pattern);
}

VITRINE_REGISTER_SCORER({.name = "regex",
                         .score = score_regex,
                         .check = check_regex,
                         .expected = expected_regex,
                         .options = {"pattern"},
                         .item_fields = {"pattern"}});

}  // namespace

}  // namespace vitrine::evaluation
