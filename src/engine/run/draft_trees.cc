// SPDX-License-Identifier: Apache-2.0
#include "engine/run/draft_trees.h"

#include <algorithm>

namespace vitrine::engine {

int32_t DraftTree::depth(int32_t token) const {
  int32_t depth = 0;
  while ((token = parent(token)) >= 0) ++depth;
  return depth;
}

int32_t DraftTree::end_of_branch(int32_t token) const {
  int32_t end = token + 1;
  while (end < size() && !begins_branch(end)) ++end;
  return end;
}

int32_t DraftTree::height() const {
  int32_t height = 0;
  for (int32_t token = 0; token < size(); ++token) height = std::max(height, depth(token) + 1);
  return height;
}

int64_t DraftTree::branch_blocks(const kv::BlockPool& pool, int64_t past) const {
  int64_t blocks = 0;
  for (int32_t token = 0; token < size(); ++token) {
    if (!begins_branch(token)) continue;
    const int64_t end = past + depth(token) + end_of_branch(token) - token;
    blocks += kv::BranchTables::blocks_needed(pool, past, end);
  }
  return blocks;
}

int64_t DraftTree::num_branches() const {
  int64_t branches = 0;
  for (int32_t token = 0; token < size(); ++token) branches += begins_branch(token) ? 1 : 0;
  return branches;
}

void DraftTrees::reserve(size_t tokens, size_t branches) {
  branches_.emplace(pool_, static_cast<int64_t>(branches));
  trees_.reserve(tokens);
  branch_of_.reserve(tokens);
  kept_.reserve(tokens);
}

void DraftTrees::clear() {
  if (branches_) branches_->clear();
  trees_.clear();
  branch_of_.clear();
  kept_.clear();
}

void DraftTrees::add(const StepInput& input, int64_t past, StepBatch& batch) {
  const DraftTree tree(input);
  pool_.prepare(input.sequence, tree.end_of_branch(0));
  const kv::SequenceBlocks& own = pool_.get(input.sequence);
  const auto first = static_cast<int32_t>(batch.token_ids.size());
  const int32_t known = tree.size() - input.num_drafts;
  branch_of_.resize(static_cast<size_t>(first), -1);
  trees_.push_back({first + known, first + tree.size(), first + known - 1});
  for (int32_t token = 0; token < tree.size();) {
    const int32_t end = tree.end_of_branch(token);
    const int64_t position = past + tree.depth(token);
    int32_t branch = -1;
    const int32_t* table = own.blocks.data();
    if (token > 0) {
      branch = branches_->add(input.sequence, past, position + end - token);
      table = branches_->table(branch);
      for (int32_t seen = tree.parent(token); seen >= 0; seen = tree.parent(seen)) {
        batch.kv_copies.push_back({first + seen, table});
      }
    }
    batch.spans.push_back({first + token, end - token, position, table});
    batch.span_adapters.push_back(own.adapter);
    for (int32_t i = token; i < end; ++i) {
      batch.token_ids.push_back(input.tokens[static_cast<size_t>(i)]);
      batch.positions.push_back(static_cast<int32_t>(position) + i - token);
      batch.block_tables.push_back(table);
      branch_of_.push_back(branch);
    }
    token = end;
  }
}

void DraftTrees::end(StepBatch& batch) {
  if (empty()) return;
  std::ranges::sort(batch.kv_copies, {}, &ops::KvCopy::token);
  kept_.assign(batch.token_ids.size(), 1);
  for (const Tree& tree : trees_) {
    std::fill(kept_.begin() + tree.first_draft, kept_.begin() + tree.end, uint8_t{0});
  }
}

void DraftTrees::put(SequenceId sequence, int32_t token) {
  const auto at = static_cast<size_t>(token);
  pool_.put(sequence, step_.batch.positions[at], step_.batch.token_ids[at]);
}

void DraftTrees::put_path(const StepRow& row) {
  const StepInput& input = step_.input_of(row);
  if (!DraftTree::is_tree(input)) return;
  const int32_t first = step_.parts[static_cast<size_t>(row.input)].first_token;
  put_path(input, first, row.token - first);
}

void DraftTrees::put_path(const StepInput& input, int32_t first, int32_t token) {
  const DraftTree tree(input);
  if (token >= tree.size() - input.num_drafts) put_path(input, first, tree.parent(token));
  put(input.sequence, first + token);
}

void DraftTrees::forget_paths() {
  for (size_t i = 0; i < step_.inputs.size(); ++i) {
    const StepInput& input = step_.inputs[i];
    if (!DraftTree::is_tree(input)) continue;
    const auto known = static_cast<int32_t>(input.tokens.size()) - input.num_drafts;
    put_path(input, step_.parts[i].first_token, known - 1);
  }
}

void DraftTrees::choose(const StepRow& row, int32_t chosen) {
  const StepInput& input = step_.input_of(row);
  if (chosen < 0 || !DraftTree::is_tree(input)) return;
  put(input.sequence, chosen);
  const auto tree = std::ranges::find_if(trees_, [&](const Tree& one) { return chosen < one.end; });
  tree->leaf = chosen;
  kept_[static_cast<size_t>(chosen)] = 1;
}

void DraftTrees::adopt() {
  if (empty()) return;
  for (const Tree& tree : trees_) {
    const int32_t branch = branch_of_[static_cast<size_t>(tree.leaf)];
    if (branch >= 0) branches_->adopt(branch);
  }
  for (const StepInput& input : step_.inputs) {
    if (DraftTree::is_tree(input)) pool_.trim(input.sequence);
  }
}

}  // namespace vitrine::engine
