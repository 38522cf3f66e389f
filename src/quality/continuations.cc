// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "quality/reader.h"

namespace vitrine {

namespace {

/// Scores continuations behind a sequence that holds their context.
class ContinuationReader {
 public:
  ContinuationReader(Stepper& model, quality::Reader& reader,
                     std::span<const std::vector<int32_t>> continuations,
                     const std::function<void()>& before_step)
      : model_(model),
        reader_(reader),
        continuations_(continuations),
        before_step_(before_step),
        most_inputs_(static_cast<size_t>(std::max(1, model.options().max_sequences - 1))) {
    for (const auto& ids : continuations) scores_.logprobs.emplace_back().reserve(ids.size());
    scores_.is_greedy.assign(continuations.size(), 1);
  }
  ~ContinuationReader() { release(); }
  ContinuationReader(const ContinuationReader&) = delete;
  ContinuationReader& operator=(const ContinuationReader&) = delete;

  /// The context's last output says how probable each first id is.
  void take_first(const StepOutput& output) {
    for (size_t i = 0; i < continuations_.size(); ++i) take(i, output);
  }

  /// Reads what stands behind the first ids, as many continuations in a step as it has room for.
  ContinuationScores read_rest() {
    const size_t room = reader_.step_tokens();
    size_t used = 0;
    for (size_t i = 0; i < continuations_.size(); ++i) {
      // The last id is not fed.
      for (size_t at = 0; at + 1 < continuations_[i].size();) {
        if (used == room || inputs_.size() == most_inputs_) step(), used = 0;
        const size_t count = std::min(room - used, continuations_[i].size() - 1 - at);
        add(i, at, count);
        used += count;
        at += count;
        if (at + 1 < continuations_[i].size()) step(/*keeps_last=*/true), used = 0;
      }
    }
    step();
    return std::move(scores_);
  }

 private:
  void take(size_t which, const StepOutput& output) {
    std::vector<double>& logprobs = scores_.logprobs[which];
    const int32_t id = continuations_[which][logprobs.size()];
    logprobs.push_back(reader_.logprob(output, id));
    if (static_cast<size_t>(id) != reader_.best(output)) scores_.is_greedy[which] = 0;
  }

  void add(size_t which, size_t at, size_t count) {
    if (at == 0) forks_.push_back(model_.fork(reader_.sequence()));
    StepInput input;
    input.sequence = forks_.back();
    input.tokens = std::span(continuations_[which]).subspan(at, count);
    input.next_token = continuations_[which][at + count];
    input.rows = StepInput::Rows::kAll;
    inputs_.push_back(input);
    owners_.push_back(which);
  }

  void step(bool keeps_last = false) {
    if (!inputs_.empty()) {
      if (before_step_) before_step_();
      const auto outputs = reader_.step(inputs_);
      size_t next = 0;
      for (size_t i = 0; i < inputs_.size(); ++i) {
        for (size_t t = 0; t < inputs_[i].tokens.size(); ++t) take(owners_[i], outputs[next++]);
      }
    }
    inputs_.clear();
    owners_.clear();
    const SequenceId last = keeps_last && !forks_.empty() ? forks_.back() : 0;
    if (last != 0) forks_.pop_back();
    release();
    if (last != 0) forks_.push_back(last);
  }

  void release() {
    for (const SequenceId fork : forks_) engine::release_at_end(model_, fork);
    forks_.clear();
  }

  Stepper& model_;
  quality::Reader& reader_;
  const std::span<const std::vector<int32_t>> continuations_;
  const std::function<void()>& before_step_;
  const size_t most_inputs_;
  std::vector<SequenceId> forks_;
  std::vector<StepInput> inputs_;
  std::vector<size_t> owners_;  // [inputs_]
  ContinuationScores scores_;
};

void check(const quality::Reader& reader, std::span<const int32_t> context,
           std::span<const std::vector<int32_t>> continuations) {
  const auto refuse_empty = [](const std::string& what) {
    throw Error(ErrorKind::kInvalidArgument, what + " has no ids; expected at least one");
  };
  if (context.empty()) refuse_empty("a context");
  reader.check_ids(context);
  for (size_t i = 0; i < continuations.size(); ++i) {
    if (continuations[i].empty()) refuse_empty("continuation " + std::to_string(i));
    reader.check_ids(continuations[i]);
    // The last id is not fed.
    reader.check_positions(std::ssize(context) + std::ssize(continuations[i]) - 1);
  }
}

}  // namespace

ContinuationScores score_continuations(Stepper& model, std::span<const int32_t> context,
                                       std::span<const std::vector<int32_t>> continuations,
                                       const std::function<void()>& before_step) {
  quality::Reader reader(model);
  check(reader, context, continuations);
  ContinuationReader scores(model, reader, continuations, before_step);
  reader.begin();
  const auto most = static_cast<size_t>(model.options().max_step_tokens);
  for (size_t at = 0; at < context.size();) {
    const size_t end = std::min(at + most, context.size());
    if (before_step) before_step();
    const bool is_last = end == context.size();
    const auto outputs = reader.step(context.subspan(at, end - at), is_last ? -1 : context[end],
                                     is_last ? StepInput::Rows::kLast : StepInput::Rows::kNone);
    if (is_last) scores.take_first(outputs.front());
    at = end;
  }
  return scores.read_rest();
}

}  // namespace vitrine
