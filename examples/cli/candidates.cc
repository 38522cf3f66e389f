// SPDX-License-Identifier: Apache-2.0
#include "candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "failure_text.h"
#include "prompt_bar.h"

namespace cli {

namespace {

using vitrine::TokenLogprobs;

class OwnedSequence {
 public:
  OwnedSequence(vitrine::Stepper& engine, vitrine::SequenceId id) : engine_(engine), id_(id) {}
  ~OwnedSequence() { engine_.release(id_); }
  OwnedSequence(const OwnedSequence&) = delete;
  OwnedSequence& operator=(const OwnedSequence&) = delete;
  vitrine::SequenceId id() const { return id_; }

 private:
  vitrine::Stepper& engine_;
  vitrine::SequenceId id_;
};

/// As JSON writes it, so that a line stays a line.
std::string quoted(const vitrine::Tokenizer& tokenizer, int32_t token) {
  const std::string text = token < tokenizer.vocab_size() ? tokenizer.token_text(token) : "";
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::ordered_json pair_json(int32_t token, double logprob,
                                 const vitrine::Tokenizer& tokenizer) {
  return {{"token", token},
          {"text", token < tokenizer.vocab_size() ? tokenizer.token_text(token) : ""},
          {"logprob", logprob}};
}

}  // namespace

std::string AnswerText::add(const vitrine::TokenEvent& event) {
  const std::string text = certain_text(event);
  return parser_ ? content_of(parser_->add(text)) : text;
}

/// Special tokens are left out, but for those that mean something in the answer's format.
std::string AnswerText::decode(int32_t token) {
  const bool is_left_out =
      parser_ && tokenizer_.is_special(token) && !parser_->is_mark(tokenizer_.token_text(token));
  return is_left_out ? "" : decoder_.add(token);
}

std::string AnswerText::content_of(const std::vector<vitrine::ChatDelta>& deltas) {
  std::string content;
  for (const vitrine::ChatDelta& delta : deltas) {
    if (delta.part == vitrine::ChatPart::kContent) content += delta.text;
    if (delta.part == vitrine::ChatPart::kReasoning) reasoning_ += delta.text;
  }
  return content;
}

std::string AnswerText::certain_text(const vitrine::TokenEvent& event) {
  if (event.token >= tokenizer_.vocab_size()) return "";
  const std::string piece = decode(event.token);
  if (follower_ != nullptr && follower_->accept(event.token)) {
    begins_.push_back(bytes_.size());
    bytes_ += tokenizer_.token_bytes(event.token);
  } else {
    follower_ = nullptr;  // an attempt without the constraint
  }
  const size_t decoded = std::exchange(num_decoded_, num_decoded_ + piece.size());
  if (follower_ == nullptr) return stop_.add(piece, [&](size_t) { return event.is_complete; });
  // A decoder that leaves out the first space does so for good.
  const size_t left_out =
      !piece.empty() && decoded == 0 && bytes_.starts_with(' ') && piece[0] != ' ';
  num_decoded_ += left_out;
  return stop_.add(piece,
                   [&](size_t offset) { return is_answer_before(decoded + left_out + offset); });
}

/// The tokens before the one that the byte is in, and what of that comes before the byte.
bool AnswerText::is_answer_before(size_t byte) const {
  const auto behind = std::upper_bound(begins_.begin(), begins_.end(), byte);
  if (behind == begins_.begin()) return false;
  const size_t begin = *std::prev(behind);
  const std::unique_ptr<vitrine::Constraint> there = follower_->fork();
  there->rollback(static_cast<int32_t>(begins_.end() - behind) + 1);
  const std::string part = bytes_.substr(begin, byte - begin);
  std::string spelled;
  for (const int32_t id : tokenizer_.encode(part, false)) {
    spelled += tokenizer_.token_bytes(id);
    if (!part.starts_with(spelled) || !there->accept(id)) return false;
  }
  return spelled == part && there->is_complete();
}

std::string AnswerText::finish() {
  const std::string text = stop_.add(decoder_.finish()) + stop_.finish();
  if (!parser_) return text;
  const std::string content = content_of(parser_->add(text));
  return content + content_of(parser_->finish());
}

std::string AnswerText::reason(vitrine::StopReason reason) const {
  return stopped() ? "stop string" : std::string(vitrine::stop_reason_name(reason));
}

std::vector<Candidate> generate_candidates(vitrine::Stepper& engine,
                                           std::span<const int32_t> prompt,
                                           vitrine::GenerateOptions options, int count,
                                           const vitrine::Tokenizer& tokenizer,
                                           const std::vector<std::string>& stop) {
  const OwnedSequence base(engine, engine.create_sequence());
  const auto begin = std::chrono::steady_clock::now();
  // All but the last token, which each branch computes for its logits.
  const auto shared = prompt.first(prompt.size() - 1);
  if (!shared.empty()) {
    PromptBar bar(std::ssize(shared));
    vitrine::GenerateOptions of_prompt;
    of_prompt.sequence = base.id();
    of_prompt.max_new_tokens = 0;
    of_prompt.on_progress = bar.teller();
    vitrine::generate(engine, shared, of_prompt);
  }
  const std::chrono::duration<double> shared_time = std::chrono::steady_clock::now() - begin;
  std::vector<Candidate> candidates;
  const vitrine::Constraint* constraint = options.constraint;
  for (int branch = 0; branch < count && interrupt_signal() == 0; ++branch) {
    const auto own = constraint != nullptr ? constraint->fork() : nullptr;
    options.constraint = own.get();
    const OwnedSequence fork(engine, engine.fork(base.id()));
    options.sequence = fork.id();
    Candidate candidate;
    candidate.branch = options.branch = static_cast<uint32_t>(branch);
    std::optional<AnswerText> answer(std::in_place, tokenizer, stop, constraint);
    int32_t attempt = 0;
    candidate.result =
        vitrine::generate(engine, prompt.last(1), options, [&](const vitrine::TokenEvent& event) {
          if (event.attempt != attempt) {
            attempt = event.attempt;
            candidate.text.clear();
            candidate.pieces.clear();
            answer.emplace(tokenizer, stop, constraint);
          }
          candidate.pieces.push_back(answer->add(event));
          candidate.text += candidate.pieces.back();
          return !answer->stopped() && interrupt_signal() == 0;
        });
    // What the user asked for, not what is left of it behind the part that was shared.
    candidate.result.prompt_tokens = static_cast<int64_t>(prompt.size());
    candidate.result.prefill_seconds += shared_time.count();
    candidate.rest = answer->finish();
    candidate.text += candidate.rest;
    if (answer->is_cut_whole()) candidate.result.is_complete = true;
    candidate.reason = answer->reason(candidate.result.reason);
    for (const TokenLogprobs& token : candidate.result.logprobs) {
      candidate.total_logprob += token.logprob;
    }
    candidates.push_back(std::move(candidate));
  }
  // What a constraint or a validator does not accept comes behind all that stands.
  std::ranges::stable_sort(candidates, std::ranges::greater(), [](const Candidate& candidate) {
    const bool stands =
        candidate.result.is_complete && candidate.result.reason != vitrine::StopReason::kRejected;
    return std::pair(stands, candidate.total_logprob);
  });
  return candidates;
}

std::string logprobs_text(std::span<const TokenLogprobs> logprobs, size_t first,
                          const vitrine::Tokenizer& tokenizer) {
  std::string text;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    text += fmt::format("{}\t{}\t{:.4f}", first + i, quoted(tokenizer, logprobs[i].token),
                        logprobs[i].logprob);
    for (const auto& [token, logprob] : logprobs[i].best) {
      text += fmt::format("\t{} {:.4f}", quoted(tokenizer, token), logprob);
    }
    text += "\n";
  }
  return text;
}

nlohmann::ordered_json logprobs_json(const std::vector<TokenLogprobs>& logprobs,
                                     const vitrine::Tokenizer& tokenizer) {
  auto json = nlohmann::ordered_json::array();
  for (const TokenLogprobs& token : logprobs) {
    auto best = nlohmann::ordered_json::array();
    for (const auto& [id, logprob] : token.best) best.push_back(pair_json(id, logprob, tokenizer));
    auto entry = pair_json(token.token, token.logprob, tokenizer);
    entry["best"] = best;
    json.push_back(entry);
  }
  return json;
}

std::string candidates_text(const std::vector<Candidate>& candidates) {
  std::string text;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    text += fmt::format(
        "{}candidate {} of {}: branch {}, log-probability {:.4f}, {} tokens, {}\n{}\n",
        i == 0 ? "" : "\n", i + 1, candidates.size(), candidate.branch, candidate.total_logprob,
        candidate.result.tokens.size(), candidate.reason, candidate.text);
  }
  return text;
}

nlohmann::ordered_json candidates_json(const std::vector<Candidate>& candidates,
                                       const vitrine::Tokenizer& tokenizer) {
  auto json = nlohmann::ordered_json::array();
  for (const Candidate& candidate : candidates) {
    nlohmann::ordered_json entry = {{"branch", candidate.branch},
                                    {"logprob", candidate.total_logprob},
                                    {"text", candidate.text},
                                    {"tokens", candidate.result.tokens},
                                    {"reason", candidate.reason}};
    const auto& logprobs = candidate.result.logprobs;
    if (!logprobs.empty() && !logprobs.front().best.empty()) {
      entry["logprobs"] = logprobs_json(logprobs, tokenizer);
    }
    for (const vitrine::ConstraintFailure& failure : candidate.result.failures) {
      entry["failures"].push_back(failure_json(failure));
    }
    json.push_back(entry);
  }
  return json;
}

}  // namespace cli
