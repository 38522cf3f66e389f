// SPDX-License-Identifier: Apache-2.0
// A step finds out who chooses the token of each row, and records that.
#include <cstring>

#include "engine/engine_options.h"
#include "engine/model_checks.h"
#include "engine/run/audit_layout.h"
#include "engine/run/lone_failures.h"
#include "engine/run/step_runner.h"

namespace vitrine::engine {

// Who chooses each row's token.
void StepRunner::prepare_rows(std::span<const StepInput> inputs) {
  inputs_ = inputs;
  meanwhile_error_ = nullptr;  // of a pass that failed before it was told
  row_sampler_.begin(rows_.size());
  bool needs_host = false;
  for (size_t row = 0; row < rows_.size(); ++row) {
    batch_.row_tokens.push_back(rows_[row].token);
    batch_.row_targets.push_back(rows_[row].target());
    if (is_device_sampled(rows_[row])) {
      batch_.row_steps.resize(row);  // of rows before this one that have none
      batch_.row_steps.push_back(&sampler_steps_[row]);
    } else if (is_host_sampled(row)) {
      needs_host = true;
    }
  }
  if (!batch_.row_steps.empty()) batch_.row_steps.resize(rows_.size());
  if (needs_host) let_host_choose();
}

// In the middle of the pass where the terms of what it chooses are recorded, else behind it.
void StepRunner::let_host_choose() {
  batch_.read_logits = true;
  if (!options_.attribution || batch_.audit_mode == AuditMode::kNone) return;
  if (!runs_fused(options_)) refuse_late_choice();
  batch_.choice_point = ChoicePoint::kBehindHead;
}

// Every row's token, in the record too.
void StepRunner::choose() {
  outputs_.clear();
  AcceptedRows accepted;
  for (size_t row = 0; row < rows_.size(); ++row) {
    watch_.check();
    StepOutput output = output_of(row);
    if (accepted.has(rows_[row], input_of(rows_[row]))) {
      std::memcpy(&output.token, pass_.words + row * sizeof(int32_t), sizeof(int32_t));
      if (rows_[row].is_chosen()) {
        blame(blamed_, output.sequence, [&] { choose_row(row, output); });
      }
      if (records() && layout_.row_words > 0) record_row(row, output);
      if (has_steps(row) || is_host_sampled(row)) output.constraint = row_sampler_.constraint(row);
      follow_tree(row, accepted.choose(rows_[row], input_of(rows_[row]), output.token));
    } else if (records() && record_ != nullptr) {
      rows_.drop_row(row, record_ + sizeof(AuditPassHeader));
    }
    outputs_.push_back(output);
  }
}

// The output has the head's or the device's choice, and gets the one that stands.
void StepRunner::choose_row(size_t row, StepOutput& output) {
  const StepInput& input = input_of(rows_[row]);
  const auto broken_at = [&] {
    return broken_layer(layout_, static_cast<size_t>(rows_[row].token), rows_.size(),
                        records() ? pass_.words : nullptr);
  };
  if (has_steps(row) && output.token >= 0) {
    row_sampler_.take_facts(row, pass_.choice_facts + row * kChoiceFacts);
  } else if (is_host_sampled(row)) {
    if (batch_.choice_point != ChoicePoint::kBehindHead) {
      try {
        output.token = sample(row, output.logits.data());
      } catch (const Error& error) {
        throw Error(error.kind(), error.what() + broken_at());
      }
      const float logit = output.logits[static_cast<size_t>(output.token)];
      write_choice(layout_, rows_.size(), row, output.token, logit, records(), pass_.words);
    }
  } else if (output.token < 0) {
    refuse_choice(output.token == kNothingLeft, input.sequence, output.position,
                  broken_at() + " (" + checkpoint_.path() + ")");
  }
}

void StepRunner::record_row(size_t row, const StepOutput& output) {
  const size_t words = rows_.size() + row * static_cast<size_t>(layout_.row_words);
  std::byte* const of_row = pass_.words + words * sizeof(int32_t);
  const StepInput& input = input_of(rows_[row]);
  row_sampler_.record(layout_, rows_[row].is_chosen() ? &input : nullptr, row,
                      has_steps(row) ? nullptr : output.logits.data(), of_row);
  if (rows_[row].kind == StepRow::Kind::kForced) {
    row_sampler_.record_forced(layout_, input, rows_[row].next, of_row);
  }
}

bool StepRunner::is_host_sampled(size_t row) const {
  return rows_[row].is_chosen() && RowSampler::is_needed(input_of(rows_[row])) && !has_steps(row);
}

// The naive recorder has read the head's choice before another one could be made.
bool StepRunner::is_device_sampled(const StepRow& row) const {
  const StepInput& input = input_of(row);
  return row.is_chosen() && samples_on_device_ && batch_.audit_mode != AuditMode::kNaive &&
         RowSampler::is_needed(input) && RowSampler::has_device_form(input);
}

// Once the sequences have their new tokens, which stages look back at.
void StepRunner::describe_choices() {
  for (size_t row = 0; row < batch_.row_steps.size(); ++row) {
    if (batch_.row_steps[row] == nullptr) continue;
    put_path(rows_[row]);
    const StepInput& input = input_of(rows_[row]);
    blame(blamed_, input.sequence,
          [&] { row_sampler_.describe(input, row, context_of(rows_[row]), sampler_steps_[row]); });
  }
  if (!batch_.row_steps.empty()) forget_paths();
  // What the executor leaves to the host: a row can be described, and then sampled.
  if (!executor_->keep_choosable(batch_.row_steps)) let_host_choose();
}

SampleContext StepRunner::context_of(const StepRow& row) const {
  const StepInput& input = input_of(row);
  const std::span<const int32_t> history = pool_.get(input.sequence).history;
  return {input.seed, row.position + 1, input.branch,
          history.first(static_cast<size_t>(row.position) + 1)};
}

int32_t StepRunner::sample(size_t row, const float* logits) {
  const StepInput& input = input_of(rows_[row]);
  const int32_t token = row_sampler_.sample(input, row, logits, context_of(rows_[row]));
  if (input.guide != nullptr) input.guide->chosen(rows_[row].position + 1, token);
  return token;
}

// The masks of inputs that bring a guide, as far as they hang on no choice of this step.
void StepRunner::run_meanwhile() noexcept {
  try {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].guide == nullptr) continue;
      const std::span<const StepRow> rows = rows_.of_input(i);
      const auto chosen = std::ranges::find_if(rows, &StepRow::is_chosen);
      if (chosen == rows.end()) continue;
      const size_t row = rows_.first_of(i) + static_cast<size_t>(chosen - rows.begin());
      blame(meanwhile_blamed_, inputs_[i].sequence,
            [&] { row_sampler_.find_mask(inputs_[i], row, chosen->position + 1); });
    }
  } catch (...) {  // the pass is under way
    meanwhile_error_ = std::current_exception();
  }
}

void StepRunner::choose_behind_head() {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  AcceptedRows accepted;
  for (size_t row = 0; row < rows_.size(); ++row) {
    watch_.check();
    const StepInput& input = input_of(rows_[row]);
    const bool is_sampled = accepted.has(rows_[row], input) && is_host_sampled(row);
    batch_.chosen.push_back(-1);
    if (is_sampled) {
      blame(blamed_, input.sequence,
            [&] { batch_.chosen.back() = sample(row, pass_.logits + row * vocab); });
    }
    if (is_sampled) follow_tree(row, accepted.choose(rows_[row], input, batch_.chosen.back()));
  }
}

}  // namespace vitrine::engine
