// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of given texts, asked of OpenAI's interface: completions that echo.
#pragma once

#include "api_answer.h"

namespace cli {

/// Asks for them. What a server cannot do it finds out once. Not thread-safe.
class ApiScores {
 public:
  ApiScores(ApiClient& client, const ApiServer& server) : client_(client), server_(server) {}

  /// Throws kUnsupported for a server that cannot echo, and kBadFile for nonsense.
  vitrine::ScoredContinuations score(const vitrine::ScoringRequest& request);
  /// Throws kUnsupported besides for one that tells no ids of a text.
  std::vector<vitrine::TextPosition> predict(const std::string& text, int64_t window, int best);

 private:
  using Ids = std::vector<int32_t>;
  /// A prompt of ids or a text, and how much of it stands before what is scored.
  struct Echoed {
    ApiJson prompt;
    size_t first = 0;  // ids, or characters of a text
    size_t count = 0;  // likewise, of all
  };

  std::string completions() const { return client_.place().url + "/completions"; }
  void find_abilities();
  bool try_echo(int max_tokens);
  std::optional<ApiJson> post(const std::string& url, const ApiJson& body);
  Ids encode(const std::string& text, bool adds_special);
  Ids encode_chat(const vitrine::ScoringRequest& request);
  std::string apply_template(const vitrine::ScoringRequest& request);

  vitrine::ScoredContinuations score_ids(const Ids& context, const std::vector<Ids>& continuations);
  vitrine::ScoredContinuations score_text(const std::string& context,
                                          const std::vector<std::string>& continuations);
  ApiJson echo_body(const ApiJson& prompt) const;
  void read_choice(const ApiJson& choice, const Echoed& asked,
                   vitrine::ScoredContinuations& scored) const;
  std::vector<ApiJson> ask(const std::vector<Echoed>& asked);

  ApiClient& client_;
  const ApiServer& server_;
  bool is_known_ = false;     // what follows
  int echo_tokens_ = -1;      // that are generated beside an echo; -1: it echoes nothing
  bool has_ids_ = false;      // it encodes texts, and takes ids for prompts
  bool takes_lists_ = true;   // of prompts
  int prompt_logprobs_ = 20;  // of a position; fewer where it refuses them
};

}  // namespace cli
