// SPDX-License-Identifier: Apache-2.0
// Of a step: drafts that are a tree, and which of them stay.
#include "audit/pass_record.h"
#include "engine/run/kv_choice.h"
#include "engine/run/step_runner.h"

namespace vitrine::engine {

void StepRunner::check_trees(std::span<const StepInput> inputs) const {
  int64_t branches = 0;
  for (const StepInput& input : inputs) {
    if (!DraftTree::is_tree(input)) continue;
    if (!runs_trees()) {
      require_codec_feature(options_, KvFeature::kTrees, "drafts in a tree");
      throw Error(
          ErrorKind::kUnsupported,
          "drafts in a tree need fused kernels and a model that keeps no state of a sequence; "
          "bring a chain of drafts");
    }
    check_draft_tree(input);
    branches += DraftTree(input).num_branches();
  }
  if (branches > trees_.max_branches()) {
    throw Error(ErrorKind::kInvalidArgument,
                "the drafts of a step have " + std::to_string(branches) +
                    " branches beside each sequence's own; expected " +
                    std::to_string(trees_.max_branches()) + " at most");
  }
}

// What stands behind a row of a tree: `chosen`, a token of the batch, where it is one of its
// drafts.
void StepRunner::follow_tree(size_t row, int32_t chosen) {
  const StepInput& input = input_of(rows_[row]);
  if (chosen < 0 || !DraftTree::is_tree(input)) return;
  const auto token = static_cast<size_t>(chosen);
  pool_.put(input.sequence, batch_.positions[token], batch_.token_ids[token]);
  trees_.choose(chosen);
}

// The sequence of a row of a tree has the tokens that stand before what the row chooses, as if the
// drafts among them had been chosen.
void StepRunner::put_path(const StepRow& row) {
  const StepInput& input = input_of(row);
  if (!DraftTree::is_tree(input)) return;
  const int32_t first = parts_[static_cast<size_t>(row.input)].first_token;
  put_path(input, first, row.token - first);
}

// `first`: the input's first token in the batch. `token`: of the input, the last known one or a
// draft.
void StepRunner::put_path(const StepInput& input, int32_t first, int32_t token) {
  const DraftTree tree(input);
  if (token >= tree.size() - input.num_drafts) put_path(input, first, tree.parent(token));
  const auto at = static_cast<size_t>(first + token);
  pool_.put(input.sequence, batch_.positions[at], batch_.token_ids[at]);
}

// The sequences of trees have their known tokens alone, as before put_path().
void StepRunner::forget_paths() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const StepInput& input = inputs_[i];
    if (!DraftTree::is_tree(input)) continue;
    const auto known = static_cast<int32_t>(input.tokens.size()) - input.num_drafts;
    put_path(input, parts_[i].first_token, known - 1);
  }
}

// Of each tree the drafts stay that were chosen, in the pool and in the record.
void StepRunner::settle_trees() {
  if (trees_.empty()) return;
  trees_.adopt();
  for (const StepInput& input : inputs_) {
    if (DraftTree::is_tree(input)) {
      pool_.trim(input.sequence);
    }
  }
  if (records() && record_ != nullptr) {
    record_ =
        audit::write_kept(*sink_, layout_, {trees_.kept_tokens(), batch_.row_tokens}, record_);
  }
  trees_.clear();
}

}  // namespace vitrine::engine
