// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_fit.h"

#include <string>

#include "engine/run/draft_trees.h"
#include "engine/run/step_rows.h"

namespace vitrine::engine {

StepFit measure_step(std::span<const StepInput> inputs, const kv::BlockPool& pool,
                     const EngineOptions& options) {
  StepFit fit;
  fit.max_tokens = options.max_step_tokens;
  fit.max_rows = options.max_logit_rows;
  kv::BlockPool::Tally tally(pool);
  int64_t branch_blocks = 0;
  for (const StepInput& input : inputs) {
    check_draft_count(input);
    const auto tokens = static_cast<int64_t>(input.tokens.size());
    int64_t count = tokens,
            height = tokens;  // positions of its own blocks, and of the longest branch
    if (DraftTree::is_tree(input)) {
      check_draft_tree(input);
      const DraftTree tree(input);
      count = tree.end_of_branch(0);
      height = tree.height();
      branch_blocks += tree.branch_blocks(pool, pool.get(input.sequence).length);
    }
    if (!tally.add(input.sequence, count)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "sequence " + std::to_string(input.sequence) + " stands twice in one step");
    }
    fit.tokens += tokens;
    fit.rerun_tokens += pool.get(input.sequence).length - pool.computed_length(input.sequence);
    fit.rows += static_cast<int64_t>(StepRows::count(input));
    const bool is_full = pool.get(input.sequence).length + height > options.max_context;
    if (is_full && fit.full_sequence == 0) fit.full_sequence = input.sequence;
  }
  fit.blocks = tally.blocks() + (pool.has_full_layers() ? branch_blocks : 0);
  fit.free_blocks = pool.num_free();
  if (!pool.has_windows()) return fit;
  const int64_t of_windows = pool.num_free_window() - tally.window_blocks() - branch_blocks;
  if (!pool.has_full_layers() || of_windows < fit.free_blocks - fit.blocks) {
    fit.blocks = tally.window_blocks() + branch_blocks;
    fit.free_blocks = pool.num_free_window();
  }
  return fit;
}

void require_fit(const StepFit& fit) {
  if (fit.tokens == 0) {
    throw Error(ErrorKind::kInvalidArgument, "a step needs at least one token");
  }
  if (fit.tokens > fit.max_tokens) {
    throw Error(ErrorKind::kInvalidArgument, "a step of " + std::to_string(fit.tokens) +
                                                 " tokens is over max_step_tokens, " +
                                                 std::to_string(fit.max_tokens) + "; split it");
  }
  if (fit.rows > fit.max_rows) {
    throw Error(ErrorKind::kInvalidArgument, "a step with " + std::to_string(fit.rows) +
                                                 " rows of logits is over max_logit_rows, " +
                                                 std::to_string(fit.max_rows) + "; split it");
  }
  if (fit.blocks > fit.free_blocks) {
    throw Error(ErrorKind::kOutOfMemory,
                "the step needs " + std::to_string(fit.blocks) + " KV blocks and " +
                    std::to_string(fit.free_blocks) +
                    " are free; release a sequence or load the engine with more kv_bytes");
  }
}

}  // namespace vitrine::engine
