// SPDX-License-Identifier: Apache-2.0
#include "answer_output.h"

#include "common.h"
#include "failure_text.h"

namespace cli {

AnswerOutput::AnswerOutput(const OutputForm& form, const vitrine::Tokenizer& tokenizer)
    : form_(form), tokenizer_(tokenizer), lines_([this](std::string_view line) { write(line); }) {}

/// The log is finished before it is told that the output is lost.
void AnswerOutput::write(std::string_view text) {
  if (lost_ || text.empty()) return;
  try {
    write_out(text);
  } catch (const OutputError&) {
    lost_ = std::current_exception();
  }
}

void AnswerOutput::start(const AnswerStart& answer) {
  if (form_.json_lines) lines_.start(answer);
}

/// Writes the tokens whose log-probabilities are there.
void AnswerOutput::write_known(std::span<const vitrine::TokenLogprobs> logprobs) {
  if (form_.json_lines) {
    const bool wants_logprobs = form_.logprobs > 0;
    while (!waiting_.empty() && (!wants_logprobs || written_ < logprobs.size())) {
      const auto& [token, piece, reasoning] = waiting_.front();
      lines_.token(token, piece, wants_logprobs ? &logprobs[written_] : nullptr, tokenizer_,
                   reasoning);
      waiting_.pop_front();
      ++written_;
    }
    return;
  }
  if (written_ >= logprobs.size()) return;
  write(logprobs_text(logprobs.subspan(written_), written_, tokenizer_));
  written_ = logprobs.size();
}

void AnswerOutput::add(const vitrine::TokenEvent& event, const std::string& piece,
                       const std::string& reasoning) {
  text_ += piece;
  if (form_.json_lines) {
    waiting_.push_back({event.token, piece, reasoning});
    write_known(event.logprobs);
  } else if (!form_.json && !form_.may_begin_anew) {
    reasoning_.add(reasoning);
    if (!piece.empty()) reasoning_.end();
    form_.logprobs > 0 ? write_known(event.logprobs) : write(piece);
  }
}

void AnswerOutput::restart(int32_t attempt) {
  text_.clear();
  waiting_.clear();
  written_ = 0;
  if (form_.json_lines) lines_.restart(attempt);
}

void AnswerOutput::finish(const std::string& rest, const std::string& reasoning,
                          const vitrine::GenerateResult& result, bool stands,
                          const vitrine::ChatAnswer& parts) {
  text_ += rest;
  if (form_.json) return;
  if (form_.json_lines || form_.logprobs > 0) write_known(result.logprobs);
  if (form_.json_lines) return lines_.rest(rest, reasoning);
  if (!form_.may_begin_anew) reasoning_.add(reasoning);
  reasoning_.end();
  const bool is_whole_text = form_.may_begin_anew || form_.logprobs > 0;
  if (form_.logprobs > 0) write("\n");
  if (!is_whole_text) write(rest);
  const bool is_shown = stands || !form_.may_begin_anew;
  const bool has_calls = form_.has_tools && !parts.tool_calls.empty();
  const bool has_text = !text_.empty() || !has_calls;
  write((is_whole_text && is_shown ? text_ : "") + (has_text ? "\n" : ""));
  if (!form_.has_tools) return write_calls(parts);
  if (is_shown) write(calls_text(parts));
}

void AnswerOutput::end(AnswerEnd answer) {
  if (!form_.json_lines) return;
  answer.text = text_;
  lines_.end(answer);
}

void AnswerOutput::show(const std::vector<Candidate>& candidates, const AnswerStart& start) {
  if (!candidates.empty()) text_ = candidates.front().text;
  if (form_.json) return;
  if (!form_.json_lines) {
    write(candidates_text(candidates));
    if (form_.logprobs == 0 || candidates.empty()) return;
    return write("\n" + logprobs_text(candidates.front().result.logprobs, 0, tokenizer_));
  }
  for (const Candidate& candidate : candidates) {
    const vitrine::GenerateResult& result = candidate.result;
    lines_.start(start);
    for (size_t i = 0; i < result.tokens.size(); ++i) {
      const bool has_logprobs = form_.logprobs > 0 && i < result.logprobs.size();
      lines_.token(result.tokens[i], candidate.pieces[i],
                   has_logprobs ? &result.logprobs[i] : nullptr, tokenizer_);
    }
    lines_.rest(candidate.rest);
    lines_.end(answer_end(result, candidate.text, candidate.reason, ""));
  }
}

AnswerEnd answer_end(const vitrine::GenerateResult& result, const std::string& text,
                     const std::string& reason, const std::string& failure) {
  AnswerEnd end;
  end.text = text;
  end.reason = reason;
  end.tokens = static_cast<int64_t>(result.tokens.size());
  end.is_complete = result.is_complete;
  end.failure = failure;
  end.prefill_seconds = result.prefill_seconds;
  end.decode_seconds = result.decode_seconds;
  return end;
}

}  // namespace cli
