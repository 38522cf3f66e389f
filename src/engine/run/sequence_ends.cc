// SPDX-License-Identifier: Apache-2.0
// Of a step: sequences of whose positions some have to be computed again, since a state or windows
// were cut off (truncate, keep) or gave way to another sequence's, or all was given up (preempt).
#include <algorithm>
#include <string>

#include "engine/run/step_runner.h"

namespace vitrine::engine {

void StepRunner::truncate(SequenceId sequence, int64_t length) {
  pool_.truncate(sequence, length);
  replay_journal(sequence);
}

void StepRunner::keep(SequenceId sequence, int64_t count) {
  pool_.keep(sequence, count);
  replay_journal(sequence);
}

// Of a step that is over.
void StepRunner::settle(std::span<const StepInput> inputs) {
  for (const StepInput& input : inputs) pool_.settle(input.sequence, input.num_drafts > 0);
}

void StepRunner::replay_journal(SequenceId sequence) {
  const StateJournal::Entry* entry = journal_.find(sequence);
  if (entry == nullptr || pool_.state_length(sequence) != entry->begin) return;
  const int64_t missing = pool_.get(sequence).length - entry->begin;
  if (missing <= 0 || missing > entry->count) return;
  executor_->replay_state(pool_.own_state(sequence, 1, /*keeps=*/false), entry->row, missing);
  pool_.set_state_length(sequence, entry->begin + missing);
}

void StepRunner::preempt(SequenceId sequence) {
  pool_.give_up(sequence);
  journal_.forget(sequence);
  leads_.clear();
}

// A token's result does not hang on the pass that it comes in, so the keys and values of all layers
// are written again with the same bits.
void StepRunner::catch_up(SequenceId sequence) {
  const kv::SequenceBlocks& blocks = pool_.get(sequence);
  int64_t begin = pool_.computed_length(sequence);
  if (begin == blocks.length) return;
  if (begin < pool_.forced_end(sequence)) {
    const char* const lost = pool_.has_states()    ? "its state"
                             : pool_.has_windows() ? "its windows"
                                                   : "its keys and values";
    throw Error(ErrorKind::kUnsupported,
                "sequence " + std::to_string(sequence) + " has lost " + lost +
                    ", and some of its tokens took routes that were forced, which are not kept; "
                    "give a new sequence these tokens and routes");
  }
  if (taps_) taps_->is_paused = true;
  try {
    while (begin < blocks.length) {
      const int64_t count = std::min<int64_t>(options_.max_step_tokens, blocks.length - begin);
      run_again(sequence, begin, count);
      begin += count;
      pool_.set_computed_length(sequence, begin);
    }
  } catch (...) {
    if (pool_.has_states()) pool_.lose_state(sequence);
    batch_.clear();
    if (taps_) taps_->is_paused = false;
    throw;
  }
  if (taps_) taps_->is_paused = false;
}

// A pass that nobody records and that gives no rows.
void StepRunner::run_again(SequenceId sequence, int64_t begin, int64_t count) {
  const kv::SequenceBlocks& blocks = pool_.get(sequence);
  batch_.clear();
  batch_.audit_mode = AuditMode::kNone;
  batch_.read_logits = batch_.read_hidden_states = false;
  BatchSpan span{0, static_cast<int32_t>(count), begin, blocks.blocks.data()};
  if (pool_.has_states()) span.state = pool_.own_state(sequence, count, /*keeps=*/false);
  pool_.prepare_again(sequence, count);
  batch_.spans.push_back(span);
  batch_.span_adapters.push_back(blocks.adapter);
  for (int64_t i = begin; i < begin + count; ++i) {
    batch_.token_ids.push_back(blocks.history[static_cast<size_t>(i)]);
    batch_.positions.push_back(static_cast<int32_t>(i));
    batch_.block_tables.push_back(blocks.blocks.data());
  }
  pass_ = {};
  pass_.words = reinterpret_cast<std::byte*>(own_words_.data());
  executor_->run_to_choice(batch_, pass_);
  executor_->run_from_choice(batch_, pass_);
}

}  // namespace vitrine::engine
