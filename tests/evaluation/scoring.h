// SPDX-License-Identifier: Apache-2.0
// Scores answers as the runner does, for tests of scorers.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "evaluation/item.h"

namespace vitrine::evaluation {

/// An item and the task's options, both as JSON texts.
class Scoring {
 public:
  Scoring(const std::string& scorer, const std::string& data, const std::string& options = "{}")
      : scorer_(find_scorer(scorer)), options_(Json::parse(options)) {
    item_.id = "item";
    item_.data = Json::parse(data);
  }
  std::string problem() const {
    try {
      return scorer_->check(item_, options_);
    } catch (const Error& error) {
      return error.what();
    }
  }
  Score score(const EvaluationTarget::Answer& answer, bool runs_code = false) const {
    EXPECT_EQ(problem(), "");
    return scorer_->score({item_, options_, answer, runs_code});
  }
  Score score(const std::string& text, bool runs_code = false) const {
    EvaluationTarget::Answer answer;
    answer.text = text;
    return score(answer, runs_code);
  }
  std::string expected() const { return scorer_->expected(item_); }

 private:
  const Scorer* scorer_;
  Item item_;
  Json options_;
};

/// Texts that no scorer may fail on.
inline std::vector<std::string> hostile_answers() {
  return {"",
          " \n\t",
          std::string("\0\x01\xFF\xFE", 4),
          std::string(100'000, '['),
          std::string(100'000, '{'),
          std::string(100'000, '('),
          std::string(200'000, '9'),
          std::string(100'000, '"'),
          "```",
          "```\n",
          "\xF0\x9F\x98",
          "{\"a\":",
          "<a><b></a>",
          "<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>",
          "1 + = 2 / 0 = - -",
          "1e999999 0x 1,,2,3 1.2.3.4",
          "<tool_call>{\"name\": 5}</tool_call>"};
}

}  // namespace vitrine::evaluation
