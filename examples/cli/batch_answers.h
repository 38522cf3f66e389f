// SPDX-License-Identifier: Apache-2.0
// The answers to many prompts, several at once in each step: `generate --prompts`.
#pragma once

#include <exception>

#include "generate_request.h"

namespace cli {

/// What the answers came to.
struct BatchResult {
  int64_t answers = 0;        ///< that were written
  int64_t tokens = 0;         ///< of all answers
  int64_t prompt_tokens = 0;  ///< of their prompts
  int64_t most_at_once = 0;   ///< answers in one step
  int64_t unfinished = 0;     ///< that are not what their constraint asks for
  double seconds = 0;
  bool is_cancelled = false;       ///< by a signal
  vitrine::GenerateResult counts;  ///< its counts are all answers' together
  std::exception_ptr lost_output;  ///< set: nobody reads any more, and the rest was not made
};

/// Answers all prompts of the request, each as it would be answered alone, and writes a line of
/// JSON for each in their order:
///
///   {"index":0,"id":"a","text":"…","tokens":[…],"reason":"end of text","prompt_tokens":5,"seed":7}
///
/// "reasoning", "tool_calls", "logprobs" and, under a constraint, "is_complete" and "failure" as in
/// the other forms of output; no time is in it, so that two runs write the same.
BatchResult answer_all(vitrine::Stepper& model, const GenerateArguments& arguments,
                       const GenerateRequest& request);

/// The closing line's beginning: "3 answers, 60 tokens at 120 tokens/s after prompts of 31 …".
std::string batch_remark(const BatchResult& result);

}  // namespace cli
