// SPDX-License-Identifier: Apache-2.0
#include "engine/run/row_chooser.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/run/audit_layout.h"
#include "engine/run/lone_failures.h"

namespace vitrine::engine {

RowChooser::RowChooser(const LoadedModel& model, RunningStep& step, DraftTrees& trees,
                       StepRecorder& recorder)
    : model_(model),
      step_(step),
      trees_(trees),
      recorder_(recorder),
      row_sampler_(static_cast<size_t>(model.config.vocab_size),
                   static_cast<size_t>(model.options.max_logit_rows)),
      samples_on_device_(model.samples_on_device()) {
  sampler_steps_.resize(samples_on_device_ ? static_cast<size_t>(model.options.max_logit_rows) : 0);
  step_.batch.row_steps.reserve(sampler_steps_.size());
}

void RowChooser::prepare(const DeviceJointStep* joint) {
  StepBatch& batch = step_.batch;
  batch.meanwhile = this;
  batch.read_logits = model_.options.keep_logits;
  batch.read_hidden_states = model_.options.keep_hidden_state;
  meanwhile_error_ = nullptr;  // of a pass that failed before it was told
  row_sampler_.begin(step_.rows.size());
  bool needs_host = false;
  for (size_t row = 0; row < step_.rows.size(); ++row) {
    batch.row_tokens.push_back(step_.rows[row].token);
    batch.row_targets.push_back(step_.rows[row].target());
    if (is_device_sampled(step_.rows[row])) {
      batch.row_steps.resize(row);  // of rows before this one that have none
      batch.row_steps.push_back(&sampler_steps_[row]);
    } else if (is_host_sampled(row)) {
      needs_host = true;
    }
  }
  if (!batch.row_steps.empty()) batch.row_steps.resize(step_.rows.size());
  if (needs_host) let_host_choose();
  if (joint == nullptr) return;
  batch.joint = joint->count() > 0 ? joint : nullptr;
  batch.read_logits = joint->reads_logits;
  batch.read_hidden_states = joint->reads_hidden_states;
}

// In the middle of the pass where the terms of what it chooses are recorded, else behind it.
void RowChooser::let_host_choose() {
  step_.batch.read_logits = true;
  if (!model_.options.attribution || step_.batch.audit_mode == AuditMode::kNone) return;
  if (!runs_fused(model_.options)) {
    throw Error(ErrorKind::kUnsupported,
                "attribution on the reference path needs a choice that is made on the device: the "
                "greedy sampler without a constraint, or sample_on_device, the default order of "
                "stages and no mirostat; use temperature 0, or --kernels fused on the "
                "CPU or CUDA");
  }
  step_.batch.choice_point = ChoicePoint::kBehindHead;
}

void RowChooser::describe() {
  StepBatch& batch = step_.batch;
  for (size_t row = 0; row < batch.row_steps.size(); ++row) {
    if (batch.row_steps[row] == nullptr) continue;
    trees_.put_path(step_.rows[row]);
    const StepInput& input = step_.input_of(row);
    blame(step_.blamed, input.sequence, [&] {
      row_sampler_.describe(input, row, context_of(step_.rows[row]), sampler_steps_[row]);
    });
  }
  if (!batch.row_steps.empty()) trees_.forget_paths();
  // What the executor leaves to the host: a row can be described, and then sampled.
  if (!model_.executor->keep_choosable(batch.row_steps)) let_host_choose();
}

bool RowChooser::is_host_sampled(size_t row) const {
  return step_.rows[row].is_chosen() && RowSampler::is_needed(step_.input_of(row)) &&
         !step_.has_steps(row);
}

// The naive recorder has read the head's choice before another one could be made.
bool RowChooser::is_device_sampled(const StepRow& row) const {
  const StepInput& input = step_.input_of(row);
  return row.is_chosen() && samples_on_device_ && step_.batch.audit_mode != AuditMode::kNaive &&
         RowSampler::is_needed(input) && RowSampler::has_device_form(input);
}

// The masks of inputs that bring a guide, as far as they hang on no choice of this step.
void RowChooser::run_meanwhile() noexcept {
  try {
    for (size_t i = 0; i < step_.inputs.size(); ++i) {
      const StepInput& input = step_.inputs[i];
      if (input.guide == nullptr) continue;
      const std::span<const StepRow> rows = step_.rows.of_input(i);
      const auto chosen = std::ranges::find_if(rows, &StepRow::is_chosen);
      if (chosen == rows.end()) continue;
      const size_t row = step_.rows.first_of(i) + static_cast<size_t>(chosen - rows.begin());
      blame(meanwhile_blamed_, input.sequence,
            [&] { row_sampler_.find_mask(input, row, chosen->position + 1); });
    }
  } catch (...) {  // the pass is under way
    meanwhile_error_ = std::current_exception();
  }
}

SampleContext RowChooser::context_of(const StepRow& row) const {
  const StepInput& input = step_.input_of(row);
  const std::span<const int32_t> history = model_.pool.get(input.sequence).history;
  return {input.seed, row.position + 1, input.branch,
          history.first(static_cast<size_t>(row.position) + 1)};
}

int32_t RowChooser::sample(size_t row, const float* logits) {
  const StepInput& input = step_.input_of(row);
  const int32_t token = row_sampler_.sample(input, row, logits, context_of(step_.rows[row]));
  if (input.guide != nullptr) input.guide->chosen(step_.rows[row].position + 1, token);
  return token;
}

void RowChooser::choose_behind_head() {
  const auto vocab = static_cast<size_t>(model_.config.vocab_size);
  AcceptedRows accepted;
  for (size_t row = 0; row < step_.rows.size(); ++row) {
    step_.watch.check();
    const StepInput& input = step_.input_of(row);
    const bool is_sampled = accepted.has(step_.rows[row], input) && is_host_sampled(row);
    int32_t& chosen = step_.batch.chosen.emplace_back(-1);
    if (!is_sampled) continue;
    blame(step_.blamed, input.sequence,
          [&] { chosen = sample(row, step_.pass.logits + row * vocab); });
    trees_.choose(step_.rows[row], accepted.choose(step_.rows[row], input, chosen));
  }
}

void RowChooser::finish(std::vector<StepOutput>& outputs) {
  if (meanwhile_error_) {
    step_.blamed = meanwhile_blamed_;
    std::rethrow_exception(std::exchange(meanwhile_error_, nullptr));
  }
  if (step_.batch.joint == nullptr && step_.batch.runs_head) {
    choose(outputs);
  } else {
    leave_open(outputs);
  }
}

void RowChooser::leave_open(std::vector<StepOutput>& outputs) const {
  outputs.clear();
  for (size_t row = 0; row < step_.rows.size(); ++row) outputs.push_back(output_of(row));
}

StepOutput RowChooser::output_of(size_t row) const {
  const auto vocab = static_cast<size_t>(model_.config.vocab_size);
  const auto hidden = static_cast<size_t>(model_.config.hidden_size);
  const PassOutput& pass = step_.pass;
  StepOutput output;
  output.sequence = step_.input_of(row).sequence;
  output.position = step_.rows[row].position;
  if (pass.logits != nullptr) output.scores = {pass.logits + row * vocab, vocab};
  if (pass.hidden_states != nullptr) {
    output.hidden_state = {pass.hidden_states + row * hidden, hidden};
  }
  return output;
}

void RowChooser::choose(std::vector<StepOutput>& outputs) {
  outputs.clear();
  AcceptedRows accepted;
  for (size_t row = 0; row < step_.rows.size(); ++row) {
    step_.watch.check();
    const StepRow& of = step_.rows[row];
    const StepInput& input = step_.input_of(of);
    StepOutput output = output_of(row);
    if (accepted.has(of, input)) {
      std::memcpy(&output.token, step_.pass.words + row * sizeof(int32_t), sizeof(int32_t));
      if (of.is_chosen()) {
        blame(step_.blamed, output.sequence, [&] { choose_row(row, output); });
      }
      if (recorder_.records() && model_.layout.row_words > 0) record_row(row, output);
      if (step_.has_steps(row) || is_host_sampled(row)) {
        output.constraint = row_sampler_.constraint(row);
      }
      trees_.choose(of, accepted.choose(of, input, output.token));
    } else {
      recorder_.drop_row(step_.rows, row);
    }
    outputs.push_back(output);
  }
}

// The output has the head's or the device's choice, and gets the one that stands.
void RowChooser::choose_row(size_t row, StepOutput& output) {
  const AuditLayout& layout = model_.layout;
  const size_t rows = step_.rows.size();
  std::byte* const words = step_.pass.words;
  const auto broken_at = [&] {
    return broken_layer(layout, static_cast<size_t>(step_.rows[row].token), rows,
                        recorder_.records() ? words : nullptr);
  };
  if (step_.has_steps(row) && output.token >= 0) {
    row_sampler_.take_facts(row, step_.pass.choice_facts + row * kChoiceFacts);
  } else if (is_host_sampled(row)) {
    if (step_.batch.choice_point == ChoicePoint::kBehindHead) return;
    try {
      output.token = sample(row, output.scores.data());
    } catch (const Error& error) {
      throw Error(error.kind(), error.what() + broken_at());
    }
    const float logit = output.scores[static_cast<size_t>(output.token)];
    write_choice(layout, rows, row, output.token, logit, recorder_.records(), words);
  } else if (output.token < 0) {
    refuse_choice(output.token == kNothingLeft, output.sequence, output.position,
                  broken_at() + " (" + model_.checkpoint.path() + ")");
  }
}

void RowChooser::record_row(size_t row, const StepOutput& output) {
  const AuditLayout& layout = model_.layout;
  const size_t words = step_.rows.size() + row * static_cast<size_t>(layout.row_words);
  std::byte* const of_row = step_.pass.words + words * sizeof(int32_t);
  const StepInput& input = step_.input_of(row);
  row_sampler_.record(layout, step_.rows[row].is_chosen() ? &input : nullptr, row,
                      step_.has_steps(row) ? nullptr : output.scores.data(), of_row);
  if (step_.rows[row].kind == StepRow::Kind::kForced) {
    row_sampler_.record_forced(layout, input, step_.rows[row].next, of_row);
  }
}

void refuse_choice(bool nothing_left, SequenceId sequence, int64_t position,
                   const std::string& where) {
  if (nothing_left) {
    throw Error(ErrorKind::kInvalidArgument,
                "sampler at position " + std::to_string(position + 1) +
                    ": nothing that has a probability is left to choose from; expected a "
                    "constraint, a ban or a bias that leaves one token or more");
  }
  throw Error(ErrorKind::kBadFile, "the logits of sequence " + std::to_string(sequence) +
                                       " at position " + std::to_string(position) +
                                       " are not numbers; the model or its weights are broken" +
                                       where);
}

}  // namespace vitrine::engine
