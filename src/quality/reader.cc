// SPDX-License-Identifier: Apache-2.0
#include "quality/reader.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "vitrine/engine.h"

namespace vitrine::quality {

namespace {

std::string number_text(float value) {
  if (std::isnan(value)) return std::signbit(value) ? "-nan" : "nan";
  return value < 0 ? "-inf" : "inf";
}

void check_finite(const StepOutput& output) {
  for (size_t id = 0; id < output.scores.size(); ++id) {
    if (std::isfinite(output.scores[id])) continue;
    throw Error(ErrorKind::kBadFile,
                "position " + std::to_string(output.position) + ": the logit of token " +
                    std::to_string(id) + " is " + number_text(output.scores[id]) +
                    "; expected finite numbers: the weights or the kernels are broken");
  }
}

}  // namespace

Reader::Reader(Stepper& model)
    : model_(model),
      gives_logprobs_(model.traits().gives_logprobs),
      options_(&model.options()),
      summary_(&model.summary()) {
  if (options_->keep_logits) return;
  throw Error(ErrorKind::kInvalidArgument,
              "'" + summary_->path +
                  "' was loaded without engine option 'keep_logits'; expected "
                  "the options that scoring_options() returns");
}

size_t Reader::step_tokens() const {
  return static_cast<size_t>(std::min(options_->max_step_tokens, options_->max_logit_rows));
}

void Reader::check_ids(std::span<const int32_t> ids) const {
  const auto is_none = [&](int32_t id) { return id < 0 || id >= summary_->vocab_size; };
  const auto found = std::ranges::find_if(ids, is_none);
  if (found == ids.end()) return;
  throw Error(ErrorKind::kInvalidArgument,
              "id " + std::to_string(*found) + " at place " + std::to_string(found - ids.begin()) +
                  " of a text; expected 0 to " + std::to_string(summary_->vocab_size - 1));
}

void Reader::check_positions(int64_t count) const {
  if (count <= max_context()) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::to_string(count) + " positions, and a context of '" + summary_->path +
                  "' holds " + std::to_string(max_context()) +
                  " (engine option 'max_context'); expected at most that");
}

void Reader::begin() {
  end();
  sequence_ = model_.create_sequence();
}

void Reader::end() {
  const SequenceId ended = std::exchange(sequence_, 0);
  if (ended != 0) model_.release(ended);
}

std::span<const StepOutput> Reader::step(std::span<const int32_t> tokens, int32_t next,
                                         StepInput::Rows rows) {
  StepInput input;
  input.sequence = sequence_;
  input.tokens = tokens;
  input.next_token = next;
  input.rows = rows;
  return step({&input, 1});
}

std::span<const StepOutput> Reader::step(std::span<const StepInput> inputs) {
  const auto outputs = model_.step(inputs);
  if (!gives_logprobs_) std::ranges::for_each(outputs, check_finite);
  return outputs;
}

double Reader::logprob(const StepOutput& output, int32_t token) const {
  if (!gives_logprobs_) return logprob_of(output.scores, token);
  return double{output.scores[static_cast<size_t>(token)]};  // they are log-probabilities
}

void Reader::logprobs(const StepOutput& output, std::span<double> logprobs) const {
  if (!gives_logprobs_) return log_softmax(output.scores, logprobs);
  std::ranges::copy(output.scores, logprobs.begin());
}

std::span<const SpecialistShare> Reader::shares(size_t output) const {
  return model_.shares(output);
}

}  // namespace vitrine::quality
