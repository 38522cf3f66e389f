// SPDX-License-Identifier: Apache-2.0
// A load for a server in this process: requests at their times, and what came of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vitrine/serve.h"

namespace cli {

/// A request, and when it comes.
struct LoadedRequest {
  vitrine::ServeRequest request;
  double at = 0;  ///< seconds from the load's beginning
};

/// What came of a request.
struct LoadOutcome {
  std::vector<int32_t> tokens;
  std::vector<double> times;     ///< [tokens] seconds from its submission
  std::vector<double> logprobs;  ///< [tokens] where they were asked for
  vitrine::ServeCounts counts;
  std::string problem;  ///< why it failed; empty: it did not
  double first_token() const { return times.empty() ? counts.total_seconds : times.front(); }
};

/// Submits them at their times, reads all events on one further thread, and waits.
std::vector<LoadOutcome> run_load(vitrine::Server& server,
                                  const std::vector<LoadedRequest>& requests);
/// Each outcome's seconds to its first token.
std::vector<double> first_tokens(const std::vector<LoadOutcome>& outcomes);
/// The seconds between neighbouring tokens of all outcomes.
std::vector<double> gaps_of(const std::vector<LoadOutcome>& outcomes);
/// Throws kInternal with the first problem, if there is one.
void require_answers(const std::vector<LoadOutcome>& outcomes);

/// A request for `count` tokens behind a prompt of ids: the first `shared` are those of the text of
/// number `beginning`, the others its own. Greedy, and no end-of-text token ends it.
vitrine::ServeRequest token_request(int64_t vocab_size, int64_t beginning, int64_t shared,
                                    int64_t number, int64_t own, int count);

/// Reads a trace, a JSON object a line: "time" (seconds), "prompt" (text), "prompt_ids" or
/// "prompt_tokens" (so many ids that nobody else has), "max_tokens", "tenant", "priority". Throws
/// kBadFile with the line and the field.
std::vector<LoadedRequest> read_trace(const std::string& path, int64_t vocab_size);

}  // namespace cli
