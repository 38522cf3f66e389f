// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>
#include <string>

#include "quality/reader.h"

namespace vitrine {

namespace {

void require_positive(const char* what, int64_t value, int64_t largest) {
  if (value >= 1 && value <= largest) return;
  throw Error(ErrorKind::kInvalidArgument, std::string(what) + " is " + std::to_string(value) +
                                               "; expected 1 to " + std::to_string(largest));
}

void check_token_scores(const quality::Reader& reader, std::span<const int32_t> ids,
                        const TokenScoreOptions& options) {
  if (ids.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "there are no ids to score; expected at least one");
  }
  require_positive("the first id to score", static_cast<int64_t>(options.first), std::ssize(ids));
  if (options.greedy < 0) {
    throw Error(ErrorKind::kInvalidArgument, std::to_string(options.greedy) +
                                                 " most probable ids are asked for; expected 0 or "
                                                 "more");
  }
  reader.check_ids(ids);
  // The last of them is not fed.
  reader.check_positions(std::ssize(ids) + std::max(0, options.greedy - 1));
}

void call(const std::function<void()>& function) {
  if (function) function();
}

}  // namespace

EngineOptions scoring_options(int64_t window, EngineOptions options, int rows) {
  require_positive("a window", window, INT_MAX);
  require_positive("the number of rows in a step", rows, 16384);
  options.max_context = static_cast<int>(window);
  options.max_step_tokens = std::min(options.max_context, rows);
  options.max_logit_rows = options.max_step_tokens;
  options.audit_mode = AuditMode::kNone;
  options.keep_logits = true;
  return options;
}

TokenScores score_tokens(Stepper& model, std::span<const int32_t> ids,
                         const TokenScoreOptions& options) {
  quality::Reader reader(model);
  check_token_scores(reader, ids, options);
  TokenScores scores;
  reader.begin();
  int32_t best = -1;
  for (size_t at = 0; at < ids.size();) {
    size_t end = std::min(at + reader.step_tokens(), ids.size());
    const bool is_context = at + 1 < options.first;  // what its tokens predict is not scored
    if (is_context) end = std::min(end, options.first - 1);
    call(options.before_step);
    const int32_t next = end < ids.size() ? ids[end] : -1;
    const auto outputs = reader.step(ids.subspan(at, end - at), next,
                                     is_context ? StepInput::Rows::kNone : StepInput::Rows::kAll);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (at + i + 1 < ids.size()) {
        scores.logprobs.push_back(reader.logprob(outputs[i], ids[at + i + 1]));
      } else {
        scores.last_logits.assign(outputs[i].scores.begin(), outputs[i].scores.end());
        best = outputs[i].token;
      }
    }
    at = end;
  }
  for (int count = 0; count < options.greedy; ++count) {
    if (count > 0) {
      call(options.before_step);
      best = reader.step({&best, 1}, -1, StepInput::Rows::kLast).front().token;
    }
    scores.greedy.push_back(best);
  }
  return scores;
}

}  // namespace vitrine
