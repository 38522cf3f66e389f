// SPDX-License-Identifier: Apache-2.0
#include "batch_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>

#include "candidates.h"
#include "closing_note.h"

namespace cli {

namespace {

/// One answer of several that are being made.
class BatchAnswer {
 public:
  BatchAnswer(vitrine::Stepper& model, const GenerateArguments& arguments,
              const GenerateRequest& request, size_t index)
      : arguments_(arguments),
        request_(request),
        prompt_(request.prompts[index]),
        index_(index),
        beginning_(request.constraint ? request.constraint->fork() : nullptr),
        constraint_(request.constraint ? request.constraint->fork() : nullptr) {
    begin_text();
    vitrine::GenerateOptions options = request.generation;
    options.constraint = constraint_.get();
    generation_.emplace(model, prompt_.ids, options,
                        [this](const vitrine::TokenEvent& event) { return take(event); });
  }
  BatchAnswer(const BatchAnswer&) = delete;  // the callback points here
  BatchAnswer& operator=(const BatchAnswer&) = delete;

  vitrine::Generation& generation() { return *generation_; }
  /// Takes its part of a step. Where its own input failed, the answer ends with that.
  void accept(std::span<const vitrine::StepOutput> outputs) {
    try {
      generation_->accept(outputs);
    } catch (const vitrine::Error& error) {
      if (result().reason != vitrine::StopReason::kFailed) throw;
      failure_ = error.what();
    }
  }
  size_t index() const { return index_; }
  const vitrine::GenerateResult& result() const { return generation_->result(); }
  /// Why it is not what its constraint asks for; empty where it is.
  const std::string& failure() const { return failure_; }

  /// The line of an answer that has ended.
  nlohmann::ordered_json line() {
    text_ += answer_->finish();
    vitrine::GenerateResult result = this->result();
    if (answer_->is_cut_whole()) result.is_complete = true;
    if (failure_.empty()) failure_ = unfinished(result);
    nlohmann::ordered_json json = {{"index", index_}};
    if (!prompt_.id.is_null()) json["id"] = prompt_.id;
    json["text"] = text_;
    if (answer_->parts() != nullptr) add_parts(*answer_->parts(), json);
    json["tokens"] = result.tokens;
    json["reason"] = answer_->reason(result.reason);
    json["prompt_tokens"] = result.prompt_tokens;
    json["seed"] = seed_json(arguments_.sampling.sampler.seed);
    if (request_.grammar) json["is_complete"] = result.is_complete;
    if (!failure_.empty()) json["failure"] = failure_;
    if (arguments_.logprobs > 0) {
      json["logprobs"] = logprobs_json(result.logprobs, request_.tokenizer);
    }
    return json;
  }

 private:
  void begin_text() {
    text_.clear();
    answer_.emplace(request_.tokenizer, arguments_.sampling.stop, beginning_.get(), prompt_.format);
  }

  bool take(const vitrine::TokenEvent& event) {
    if (std::exchange(attempt_, event.attempt) != event.attempt) begin_text();
    text_ += answer_->add(event);
    return !answer_->stopped();
  }

  const GenerateArguments& arguments_;
  const GenerateRequest& request_;
  const PreparedPrompt& prompt_;
  const size_t index_;
  const std::unique_ptr<vitrine::Constraint> beginning_, constraint_;
  std::optional<AnswerText> answer_;
  std::string text_, failure_;
  int32_t attempt_ = 0;
  std::optional<vitrine::Generation> generation_;
};

/// Keeps so many answers going, and writes those that have ended in the prompts' order.
class AnswerBatch {
 public:
  AnswerBatch(vitrine::Stepper& model, const GenerateArguments& arguments,
              const GenerateRequest& request)
      : model_(model), arguments_(arguments), request_(request) {
    const vitrine::EngineOptions& options = model.options();
    most_ = std::min<int64_t>(
        {arguments.prompt_file.parallel, options.max_step_tokens, options.max_logit_rows});
  }

  BatchResult run() {
    const auto begin = std::chrono::steady_clock::now();
    while (interrupt_signal() == 0 && !result_.lost_output) {
      start_waiting();
      if (running_.empty()) break;
      step();
      take_ended();
    }
    result_.is_cancelled = interrupt_signal() != 0;
    if (result_.is_cancelled) {
      for (const auto& answer : running_) answer->generation().cancel();
      take_ended();
    }
    result_.seconds = seconds_since(begin);
    return std::move(result_);
  }

 private:
  void start_waiting() {
    while (std::ssize(running_) < most_ && next_ < request_.prompts.size()) {
      running_.push_back(std::make_unique<BatchAnswer>(model_, arguments_, request_, next_++));
    }
    take_ended();  // one that a constraint spells whole needs no step
    if (running_.empty() && next_ < request_.prompts.size()) start_waiting();
  }

  /// One step of all that run. Each gets room for a token and a row, what is left goes to those
  /// that began first.
  void step() {
    std::vector<vitrine::Generation*> open;
    for (const auto& answer : running_) open.push_back(&answer->generation());
    vitrine::Generation::draft(open);
    int64_t tokens = model_.options().max_step_tokens, rows = model_.options().max_logit_rows;
    auto others = std::ssize(open);
    std::vector<vitrine::StepInput> inputs;
    for (vitrine::Generation* one : open) {
      --others;
      inputs.push_back(one->next_input(tokens - others, rows - others));
      const vitrine::StepInput& input = inputs.back();
      tokens -= std::ssize(input.tokens);
      rows -= vitrine::Stepper::row_count(input);
    }
    std::span<const vitrine::StepOutput> outputs;
    try {
      outputs = model_.step(inputs);
    } catch (const vitrine::Error& error) {
      // After a signal; nothing of the step has happened.
      if (error.kind() == vitrine::ErrorKind::kCancelled && interrupt_signal() != 0) return;
      if (error.kind() != vitrine::ErrorKind::kOutOfMemory || running_.size() == 1) throw;
      return make_room();
    }
    result_.most_at_once = std::max(result_.most_at_once, std::ssize(open));
    for (const auto& answer : running_) {
      const auto count = static_cast<size_t>(std::ranges::count(
          outputs, answer->generation().sequence(), &vitrine::StepOutput::sequence));
      answer->accept(outputs.first(count));
      outputs = outputs.subspan(count);
    }
  }

  /// The pool of keys and values is full: the answer that began last begins again later, with the
  /// same tokens.
  void make_room() {
    next_ = running_.back()->index();
    running_.pop_back();
    most_ = std::ssize(running_);
  }

  void take_ended() {
    std::erase_if(running_, [this](const std::unique_ptr<BatchAnswer>& answer) {
      if (!answer->generation().finished()) return false;
      const nlohmann::ordered_json line = answer->line();
      const vitrine::GenerateResult& result = answer->result();
      result_.tokens += std::ssize(result.tokens);
      result_.prompt_tokens += result.prompt_tokens;
      result_.unfinished += answer->failure().empty() ? 0 : 1;
      result_.counts.constraint += result.constraint;
      result_.counts.speculation += result.speculation;
      ended_[answer->index()] =
          line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
      return true;
    });
    for (auto first = ended_.begin(); first != ended_.end(); first = ended_.erase(first)) {
      // After a signal there are gaps: answers that nobody began.
      if (first->first != written_ && interrupt_signal() == 0) break;
      write(first->second);
      written_ = first->first + 1;
      ++result_.answers;
    }
  }

  /// A log is finished before it is told that the output is lost.
  void write(const std::string& line) {
    if (result_.lost_output) return;
    try {
      write_out(line);
    } catch (const OutputError&) {
      result_.lost_output = std::current_exception();
    }
  }

  vitrine::Stepper& model_;
  const GenerateArguments& arguments_;
  const GenerateRequest& request_;
  int64_t most_ = 1;  // answers at once
  size_t next_ = 0, written_ = 0;
  std::vector<std::unique_ptr<BatchAnswer>> running_;
  std::map<size_t, std::string> ended_;  // lines that wait for those before them
  BatchResult result_;
};

}  // namespace

BatchResult answer_all(vitrine::Stepper& model, const GenerateArguments& arguments,
                       const GenerateRequest& request) {
  return AnswerBatch(model, arguments, request).run();
}

std::string batch_remark(const BatchResult& result) {
  return fmt::format("{} answer{}, {} after prompts of {}, up to {} at once", result.answers,
                     result.answers == 1 ? "" : "s",
                     token_speed(result.tokens, result.tokens, result.seconds),
                     result.prompt_tokens, result.most_at_once);
}

}  // namespace cli
