// SPDX-License-Identifier: Apache-2.0
#include "engine/run/recomputer.h"

#include <algorithm>
#include <string>

namespace vitrine::engine {

Recomputer::Recomputer(LoadedModel& model, RunningStep& step) : model_(model), step_(step) {
  journal_.reserve(model.executor->journal_rows());
}

void Recomputer::begin_pass() {
  if (model_.pool.has_states()) journal_.clear();
}

void Recomputer::take_state(const StepInput& input, int64_t past, BatchSpan& span) {
  kv::BlockPool& pool = model_.pool;
  if (!pool.has_states()) return;
  const auto count = static_cast<int64_t>(input.tokens.size());
  const bool has_drafts = input.num_drafts > 0;
  const bool is_forced = !input.routes.empty() || pool.forced_end(input.sequence) > 0;
  span.state = pool.own_state(input.sequence, count, /*keeps=*/has_drafts || is_forced);
  if (has_drafts) span.journal = journal_.add(input.sequence, past, count);
  pool.set_state_length(input.sequence, past + count);
}

void Recomputer::settle(std::span<const StepInput> inputs) {
  for (const StepInput& input : inputs) model_.pool.settle(input.sequence, input.num_drafts > 0);
}

void Recomputer::replay(SequenceId sequence) {
  kv::BlockPool& pool = model_.pool;
  const StateJournal::Entry* entry = journal_.find(sequence);
  if (entry == nullptr || pool.state_length(sequence) != entry->begin) return;
  const int64_t missing = pool.get(sequence).length - entry->begin;
  if (missing <= 0 || missing > entry->count) return;
  model_.executor->replay_state(pool.own_state(sequence, 1, /*keeps=*/false), entry->row, missing);
  pool.set_state_length(sequence, entry->begin + missing);
}

// A token's result does not hang on the pass that it comes in, so the keys and values of all layers
// are written again with the same bits.
void Recomputer::catch_up(SequenceId sequence) {
  kv::BlockPool& pool = model_.pool;
  pool.take_place(sequence);
  const kv::SequenceBlocks& blocks = pool.get(sequence);
  int64_t begin = pool.computed_length(sequence);
  if (begin == blocks.length) return;
  if (begin < pool.forced_end(sequence)) {
    const char* const lost = pool.has_states()    ? "its state"
                             : pool.has_windows() ? "its windows"
                                                  : "its keys and values";
    throw Error(ErrorKind::kUnsupported,
                "sequence " + std::to_string(sequence) + " has lost " + lost +
                    ", and some of its tokens took routes that were forced, which are not kept; "
                    "give a new sequence these tokens and routes");
  }
  const PausedTaps paused(model_.taps);
  try {
    while (begin < blocks.length) {
      const int64_t count =
          std::min<int64_t>(model_.options.max_step_tokens, blocks.length - begin);
      run_again(sequence, begin, count);
      begin += count;
      pool.set_computed_length(sequence, begin);
    }
  } catch (...) {
    if (pool.has_states()) pool.lose_state(sequence);
    step_.batch.clear();
    throw;
  }
}

void Recomputer::run_again(SequenceId sequence, int64_t begin, int64_t count) {
  kv::BlockPool& pool = model_.pool;
  const kv::SequenceBlocks& blocks = pool.get(sequence);
  StepBatch& batch = step_.batch;
  batch.clear();
  batch.audit_mode = AuditMode::kNone;
  batch.read_logits = batch.read_hidden_states = false;
  BatchSpan span{0, static_cast<int32_t>(count), begin, blocks.blocks.data()};
  if (pool.has_states()) span.state = pool.own_state(sequence, count, /*keeps=*/false);
  pool.prepare_again(sequence, count);
  batch.spans.push_back(span);
  batch.span_adapters.push_back(blocks.adapter);
  for (int64_t i = begin; i < begin + count; ++i) {
    batch.token_ids.push_back(blocks.history[static_cast<size_t>(i)]);
    batch.positions.push_back(static_cast<int32_t>(i));
    batch.block_tables.push_back(blocks.blocks.data());
  }
  step_.pass = {};
  step_.pass.words = step_.own_words();
  model_.executor->run_to_choice(batch, step_.pass);
  model_.executor->run_from_choice(batch, step_.pass);
}

}  // namespace vitrine::engine
