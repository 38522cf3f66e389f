// SPDX-License-Identifier: Apache-2.0
// How `generate` shows an answer as it is made: text, log-probabilities, JSON lines, or one JSON
// object behind it.
#pragma once

#include <deque>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "answer_parts.h"
#include "candidates.h"
#include "event_lines.h"

namespace cli {

struct OutputForm {
  bool json = false, json_lines = false;
  int logprobs = 0;             ///< 0: none are shown
  bool may_begin_anew = false;  ///< a text is not shown before it is known to stand
  bool has_tools = false;       ///< calls are part of what is shown
};

/// Returns what the end of an answer tells; `failure`: why it is not what its constraint asks for.
AnswerEnd answer_end(const vitrine::GenerateResult& result, const std::string& text,
                     const std::string& reason, const std::string& failure);

class AnswerOutput {
 public:
  AnswerOutput(const OutputForm& form, const vitrine::Tokenizer& tokenizer);

  /// Tells where an answer begins, in JSON lines.
  void start(const AnswerStart& answer);
  /// A token, and the text and the reasoning that became certain with it.
  void add(const vitrine::TokenEvent& event, const std::string& piece,
           const std::string& reasoning);
  /// The answer begins anew.
  void restart(int32_t attempt);
  /// `rest`: the text that became certain at the end; `stands`: it is what it has to be; `parts`:
  /// what the answer has beside its text.
  void finish(const std::string& rest, const std::string& reasoning,
              const vitrine::GenerateResult& result, bool stands, const vitrine::ChatAnswer& parts);
  /// Tells how the answer ended, in JSON lines.
  void end(AnswerEnd answer);
  /// Several answers, best first. `text`: the first one's.
  void show(const std::vector<Candidate>& candidates, const AnswerStart& start);

  const std::string& text() const { return text_; }
  /// Nobody reads any more, or the disk is full: nothing is written from then on, and the run ends.
  bool is_lost() const { return lost_ != nullptr; }
  void rethrow_if_lost() const {
    if (lost_) std::rethrow_exception(lost_);
  }

 private:
  void write(std::string_view text);
  void write_known(std::span<const vitrine::TokenLogprobs> logprobs);

  const OutputForm form_;
  const vitrine::Tokenizer& tokenizer_;
  EventLines lines_;
  std::string text_;
  struct Waiting {
    int32_t token;
    std::string piece, reasoning;
  };
  std::deque<Waiting> waiting_;  // tokens that were not written yet
  ReasoningText reasoning_;
  size_t written_ = 0;  // tokens, or rows of log-probabilities
  std::exception_ptr lost_;
};

}  // namespace cli
