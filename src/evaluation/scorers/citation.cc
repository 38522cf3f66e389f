// SPDX-License-Identifier: Apache-2.0
// Whether an answer quotes, word for word, the passage that holds it.
#include <algorithm>

#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostCitedWords = 4000;  // of an answer

/// The longest run of words that two texts share.
struct SharedRun {
  size_t words = 0;
  size_t begin = 0;  // in the second text
};

SharedRun longest_shared_run(const std::vector<std::string>& first,
                             const std::vector<std::string>& second) {
  SharedRun best;
  std::vector<size_t> runs(second.size() + 1, 0);
  for (const std::string& word : first) {
    for (size_t j = second.size(); j > 0; --j) {
      runs[j] = second[j - 1] == word ? runs[j - 1] + 1 : 0;
      if (runs[j] > best.words) best = {runs[j], j - runs[j]};
    }
  }
  return best;
}

/// Whether `words` holds `part` as a run.
bool holds_run(const std::vector<std::string>& words, const std::vector<std::string>& part) {
  return !std::ranges::search(words, part).empty();
}

Score score_citation(const ScoredAnswer& answer) {
  const std::string text = answer_text(answer);
  const Json& data = answer.item.data;
  std::vector<std::string> words = words_of(text);
  words.resize(std::min(words.size(), kMostCitedWords));
  const auto least = static_cast<size_t>(answer.options.value("least_words", int64_t{5}));
  const std::vector<std::string> passages = texts_field(data, "", "passages");
  SharedRun best;
  size_t cited = 0;
  for (size_t i = 0; i < passages.size(); ++i) {
    const SharedRun run = longest_shared_run(words, words_of(passages[i]));
    if (run.words > best.words) {
      best = run;
      cited = i;
    }
  }
  Score score;
  score.is_parsed = !words.empty();
  const bool has_quote = best.words >= least;
  const bool is_passage = has_quote && cited == data["passage"].get<size_t>();
  const std::vector<std::string> rights = texts_field(data, "", "answer");
  const bool has_answer = std::ranges::any_of(
      rights, [&](const std::string& right) { return holds_run(words, words_of(right)); });
  if (has_quote) {
    const std::vector<std::string> quoted = words_of(passages[cited]);
    for (size_t i = best.begin; i < best.begin + best.words; ++i) {
      score.extracted += (score.extracted.empty() ? "" : " ") + quoted[i];
    }
    score.extracted = short_text(score.extracted);
  }
  score.parts = {{"quote", has_quote ? 1 : 0},
                 {"passage", is_passage ? 1 : 0},
                 {"answer", has_answer ? 1 : 0}};
  score.is_right = is_passage && has_answer;
  score.value = (is_passage ? 0.5 : 0) + (has_answer ? 0.5 : 0);
  return score;
}

std::string check_citation(const Item& item, const Json& options) {
  whole_field(options, "", "least_words", 1, 100, 5);
  const std::vector<std::string> passages = texts_field(item.data, "", "passages");
  if (passages.size() < 2) {
    return field_problem("passages", find_field(item.data, "passages"),
                         "a list of at least two texts");
  }
  const int64_t passage =
      whole_field(item.data, "", "passage", 0, static_cast<int64_t>(passages.size()) - 1);
  const std::vector<std::string> holder = words_of(passages[static_cast<size_t>(passage)]);
  for (const std::string& right : texts_field(item.data, "", "answer")) {
    if (!words_of(right).empty() && holds_run(holder, words_of(right))) return {};
  }
  return field_problem("answer", find_field(item.data, "answer"),
                       "a text, or a list with one, that stands in the passage that 'passage' "
                       "names");
}

std::string expected_citation(const Item& item) {
  return texts_field(item.data, "", "answer").front() +
         ", from: " + texts_field(item.data, "", "passages")[item.data["passage"].get<size_t>()];
}

VITRINE_REGISTER_SCORER({.name = "citation",
                         .score = score_citation,
                         .check = check_citation,
                         .expected = expected_citation,
                         .options = {"least_words"},
                         .item_fields = {"passages", "passage"}});

}  // namespace

}  // namespace vitrine::evaluation
