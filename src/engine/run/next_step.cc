// SPDX-License-Identifier: Apache-2.0
#include "engine/run/next_step.h"

#include "engine/run/row_sampler.h"

namespace vitrine::engine {

void NextStep::reserve(size_t rows) {
  batch_.reserve(rows, rows, rows);
  batch_.row_steps.reserve(rows);
  steps_.resize(rows);
}

bool NextStep::is_led_on(const StepInput& input) {
  const bool chooses = input.rows != StepInput::Rows::kNone && input.next_token < 0;
  return input.goes_on && chooses && input.num_drafts == 0 && input.allowed_tokens.empty() &&
         input.guide == nullptr &&
         (input.sampler == nullptr || !DeviceForm::looks_back(*input.sampler));
}

bool NextStep::add(const StepInput& input, int32_t choice, int32_t adapter,
                   const kv::BlockPool& pool) {
  if (!is_led_on(input)) return false;
  const kv::SequenceBlocks& blocks = pool.get(input.sequence);
  if (blocks.length >= max_context_) return false;
  const auto token = static_cast<int32_t>(batch_.token_ids.size());
  BatchSpan span{token, 1, blocks.length, blocks.blocks.data()};
  if (std::ssize(blocks.blocks) * pool.block_size() == blocks.length) {
    span.next_block = pool.next_free(new_blocks_++);
    if (span.next_block < 0) return false;
  }
  batch_.spans.push_back(span);
  batch_.span_adapters.push_back(adapter);
  batch_.token_ids.push_back(-1 - choice);
  batch_.positions.push_back(static_cast<int32_t>(blocks.length));
  batch_.block_tables.push_back(span.block_table);
  batch_.row_tokens.push_back(token);
  batch_.row_targets.push_back(-1);
  if (RowSampler::is_needed(input)) {
    DeviceSamplerSteps& steps = steps_[static_cast<size_t>(token)];
    const SampleContext context{input.seed, blocks.length + 1, input.branch, blocks.history};
    DeviceForm::describe(*input.sampler, context, vocab_size_, steps);
    batch_.row_steps.resize(static_cast<size_t>(token));
    batch_.row_steps.push_back(&steps);
  }
  return true;
}

const StepBatch* NextStep::make(std::span<const StepInput> inputs, const StepRows& rows,
                                const StepBatch& batch, const kv::BlockPool& pool,
                                const Executor& executor) {
  // What the host chooses is not known before it has read the logits.
  if (batch.read_logits || batch.read_hidden_states || !batch.forced_routes.empty()) return nullptr;
  const DeviceJointStep* const joint = batch.joint;
  if (joint != nullptr && joint->next == nullptr) return nullptr;
  batch_.clear();
  batch_.joint = joint != nullptr ? joint->next : nullptr;
  batch_.audit_mode = batch.audit_mode;
  new_blocks_ = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto last_row = static_cast<int32_t>(rows.first_of(i + 1)) - 1;
    const int32_t choice = joint != nullptr ? joint->choosers[i] : last_row;
    if (!add(inputs[i], choice, batch.span_adapters[i], pool)) return nullptr;
  }
  if (!batch_.row_steps.empty()) batch_.row_steps.resize(batch_.row_tokens.size());
  return executor.keep_choosable(batch_.row_steps) ? &batch_ : nullptr;
}

}  // namespace vitrine::engine
