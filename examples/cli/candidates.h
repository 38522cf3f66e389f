// SPDX-License-Identifier: Apache-2.0
// Several answers to one prompt, and what the model thought of their tokens.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "answer_parts.h"
#include "common.h"
#include "vitrine/federation_engine.h"
#include "vitrine/tokenizer.h"

namespace cli {

/// One answer as it is made: text behind the decoder and the stop strings, and of that the content
/// where the answer's format has other parts.
class AnswerText {
 public:
  /// `beginning`: what constrains the answer, standing at its beginning; null: nothing does. A stop
  /// string then acts only where the text before it is an answer.
  AnswerText(const vitrine::Tokenizer& tokenizer, const std::vector<std::string>& stop,
             const vitrine::Constraint* beginning, const AnswerFormat& format = {})
      : tokenizer_(tokenizer),
        decoder_(tokenizer, /*skip_special_tokens=*/format.is_plain()),
        stop_(stop),
        follower_(beginning != nullptr && !stop.empty() ? beginning->fork() : nullptr) {
    if (format.is_plain()) return;
    parser_.emplace(format.name, vitrine::ChatOutputOptions{.prompt = format.prompt,
                                                            .tools_json = format.tools_json});
  }
  /// The text that became certain with a token.
  std::string add(const vitrine::TokenEvent& event);
  std::string finish();
  /// The reasoning that became certain since the last time.
  std::string take_reasoning() { return std::exchange(reasoning_, {}); }
  /// All parts so far; null where the text has none.
  const vitrine::ChatAnswer* parts() const { return parser_ ? &parser_->answer() : nullptr; }
  bool stopped() const { return stop_.stopped(); }
  /// True for a constrained answer that a stop string cut: it is a whole answer all the same.
  bool is_cut_whole() const { return stopped() && follower_ != nullptr; }
  /// The reason that the caller of generate() knows better: a stop string.
  std::string reason(vitrine::StopReason reason) const;

 private:
  std::string decode(int32_t token);
  std::string certain_text(const vitrine::TokenEvent& event);
  std::string content_of(const std::vector<vitrine::ChatDelta>& deltas);
  bool is_answer_before(size_t byte) const;

  const vitrine::Tokenizer& tokenizer_;
  vitrine::StreamDecoder decoder_;
  vitrine::StopStrings stop_;
  std::unique_ptr<vitrine::Constraint> follower_;  // null, too, once the answer leaves it
  std::string bytes_;                              // of all tokens, where there is a follower
  std::vector<size_t> begins_;                     // of the tokens in it
  size_t num_decoded_ = 0;
  std::optional<vitrine::ChatOutputParser> parser_;
  std::string reasoning_;
};

/// An answer of several to one prompt.
struct Candidate {
  uint32_t branch = 0;
  std::string text, reason;
  vitrine::GenerateResult result;
  double total_logprob = 0;         // nats: the model's own, of all its tokens
  std::vector<std::string> pieces;  // the text that became certain with each token
  std::string rest;                 // and at the end
};

/// `count` answers with branches 0 to count - 1, best total log-probability first; ties by branch.
/// The prompt is computed once and forked. Stops early, with the answers so far, at a signal.
std::vector<Candidate> generate_candidates(vitrine::Stepper& engine,
                                           std::span<const int32_t> prompt,
                                           vitrine::GenerateOptions options, int count,
                                           const vitrine::Tokenizer& tokenizer,
                                           const std::vector<std::string>& stop);

/// One line a token: its number, from `first` on, its text, its log-probability, and the best ones
/// with theirs.
std::string logprobs_text(std::span<const vitrine::TokenLogprobs> logprobs, size_t first,
                          const vitrine::Tokenizer& tokenizer);
nlohmann::ordered_json logprobs_json(const std::vector<vitrine::TokenLogprobs>& logprobs,
                                     const vitrine::Tokenizer& tokenizer);
std::string candidates_text(const std::vector<Candidate>& candidates);
nlohmann::ordered_json candidates_json(const std::vector<Candidate>& candidates,
                                       const vitrine::Tokenizer& tokenizer);

}  // namespace cli
