// Several answers to one prompt, and what the model thought of their tokens.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common.h"
#include "vitrine/group.h"
#include "vitrine/tokenizer.h"

namespace cli {

/// One answer as it is made: text behind the decoder and the stop strings.
class AnswerText {
 public:
  AnswerText(const vitrine::Tokenizer& tokenizer, const std::vector<std::string>& stop)
      : tokenizer_(tokenizer), decoder_(tokenizer), stop_(stop) {}
  /// The text that became certain with a token. Where it may not stop (an answer that its
  /// constraint does not accept yet) the token's text is part of no stop string.
  std::string add(int32_t token, bool may_stop);
  std::string finish();
  bool stopped() const { return stop_.stopped(); }
  /// The reason that the caller of generate() knows better: a stop string.
  std::string reason(vitrine::StopReason reason) const;

 private:
  const vitrine::Tokenizer& tokenizer_;
  vitrine::StreamDecoder decoder_;
  vitrine::StopStrings stop_;
};

/// An answer of several to one prompt.
struct Candidate {
  uint32_t branch = 0;
  std::string text, reason;
  vitrine::GenerateResult result;
  double total_logprob = 0;  // nats: the model's own, of all its tokens
};

/// `count` answers with branches 0 to count - 1, best total log-probability first; ties by branch.
/// The prompt is computed once and forked. Stops early, with the answers so far, at a signal.
/// Of an Engine or a Federation.
template <typename Model>
std::vector<Candidate> generate_candidates(Model& engine, std::span<const int32_t> prompt,
                                           vitrine::GenerateOptions options, int count,
                                           const vitrine::Tokenizer& tokenizer,
                                           const std::vector<std::string>& stop);

/// One line a token: its number, its text, its log-probability, and the best ones with theirs.
std::string logprobs_text(const std::vector<vitrine::TokenLogprobs>& logprobs,
                          const vitrine::Tokenizer& tokenizer);
nlohmann::ordered_json logprobs_json(const std::vector<vitrine::TokenLogprobs>& logprobs,
                                     const vitrine::Tokenizer& tokenizer);
std::string candidates_text(const std::vector<Candidate>& candidates);
nlohmann::ordered_json candidates_json(const std::vector<Candidate>& candidates,
                                       const vitrine::Tokenizer& tokenizer);

}  // namespace cli
