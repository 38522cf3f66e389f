// SPDX-License-Identifier: Apache-2.0
#include "quality/reader.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "core/run_pieces.h"
#include "sample/scan.h"
#include "vitrine/engine.h"

namespace vitrine::quality {

namespace {

std::string number_text(float value) {
  if (std::isnan(value)) return std::signbit(value) ? "-nan" : "nan";
  return value < 0 ? "-inf" : "inf";
}

RowSum sum_row(std::span<const float> logits) {
  RowSum row;
  row.is_finite = are_finite(logits);
  if (!row.is_finite) return row;
  const float largest = largest_of(logits);
  row.best = static_cast<size_t>(std::ranges::find(logits, largest) - logits.begin());
  row.largest = double{largest};
  row.log_sum = log_sum_beside(logits, largest);
  return row;
}

void refuse_row(const StepOutput& output) {
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
  outputs_ = model_.step(inputs);
  sums_.clear();
  if (gives_logprobs_) return outputs_;
  sums_.resize(outputs_.size());
  // The engine's threads have nothing to do meanwhile, and a row takes as long as a small layer.
  const int threads = options_->threads > 0 ? options_->threads
                                            : static_cast<int>(std::thread::hardware_concurrency());
  core::run_pieces(threads, outputs_.size(), [&] {
    return [&](size_t row) {
      if (!outputs_[row].scores.empty()) sums_[row] = sum_row(outputs_[row].scores);
    };
  });
  for (size_t row = 0; row < outputs_.size(); ++row) {
    if (!sums_[row].is_finite) refuse_row(outputs_[row]);
  }
  return outputs_;
}

const RowSum& Reader::sum_of(const StepOutput& output) const {
  return sums_.at(static_cast<size_t>(&output - outputs_.data()));
}

double Reader::logprob(const StepOutput& output, int32_t token) const {
  const double score{output.scores[static_cast<size_t>(token)]};
  if (gives_logprobs_) return score;
  const RowSum& row = sum_of(output);
  return score - row.largest - row.log_sum;
}

void Reader::logprobs(const StepOutput& output, std::span<double> logprobs) const {
  const double total = log_total(output);
  for (size_t id = 0; id < logprobs.size(); ++id) logprobs[id] = double{output.scores[id]} - total;
}

double Reader::log_total(const StepOutput& output) const {
  if (gives_logprobs_) return 0;
  const RowSum& row = sum_of(output);
  return row.largest + row.log_sum;
}

size_t Reader::best(const StepOutput& output) const {
  if (!gives_logprobs_) return sum_of(output).best;
  return static_cast<size_t>(std::ranges::max_element(output.scores) - output.scores.begin());
}

std::span<const SpecialistShare> Reader::shares(size_t output) const {
  return model_.shares(output);
}

}  // namespace vitrine::quality
