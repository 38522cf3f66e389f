// SPDX-License-Identifier: Apache-2.0
// The answers of a `generate`: made, shown as they come, and told as JSON at the end.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "answer_output.h"
#include "candidates.h"
#include "generate_request.h"

namespace cli {

struct Answers {
  vitrine::GenerateResult result;     ///< the best one's; the constraint's counts are all answers'
  std::string reason;                 ///< why it ended
  vitrine::ChatAnswer parts;          ///< of one whose format has them
  std::vector<Candidate> candidates;  ///< best first, where several were asked for
  bool may_be_cut = false;            ///< a signal may have ended it
  int64_t prompt_done = 0;            ///< tokens of the prompt that were computed, of one answer

  /// Tokens behind the first one, which the prompt's pass makes.
  int64_t num_steps() const { return std::max<int64_t>(0, std::ssize(result.tokens) - 1); }
  bool ended_in_prompt() const { return candidates.empty() && prompt_done < result.prompt_tokens; }
  double tokens_per_second() const;
};

/// Makes what was asked for, and shows it.
Answers make_answers(vitrine::Stepper& model, const GenerateArguments& arguments,
                     const GenerateRequest& request, AnswerOutput& output);

/// Returns what --json prints.
nlohmann::ordered_json answers_json(const GenerateArguments& arguments,
                                    const GenerateRequest& request, const Answers& answers,
                                    const std::string& text, double load_seconds,
                                    bool model_is_invariant);

}  // namespace cli
