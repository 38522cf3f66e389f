// SPDX-License-Identifier: Apache-2.0
#include "engine/run/draft_trees.h"

#include <algorithm>
#include <string>

namespace vitrine::engine {

namespace {

[[noreturn]] void refuse(const StepInput& input, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument,
              "sequence " + std::to_string(input.sequence) + ", draft_parents: " + what);
}

}  // namespace

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

void check_draft_count(const StepInput& input) {
  if (input.num_drafts == 0) return;
  if (input.num_drafts > 0 && input.num_drafts < std::ssize(input.tokens)) return;
  throw Error(ErrorKind::kInvalidArgument,
              "sequence " + std::to_string(input.sequence) + ", num_drafts " +
                  std::to_string(input.num_drafts) + "; expected 0 to " +
                  std::to_string(std::max<std::ptrdiff_t>(std::ssize(input.tokens) - 1, 0)) +
                  ", with a token before the drafts");
}

void check_draft_tree(const StepInput& input) {
  check_draft_count(input);
  const std::span<const int32_t> parents = input.draft_parents;
  if (std::ssize(parents) != input.num_drafts) {
    refuse(input, std::to_string(parents.size()) + " are given; expected one for each of the " +
                      std::to_string(input.num_drafts) + " drafts");
  }
  if (!input.routes.empty()) refuse(input, "routes are forced; expected a chain of drafts");
  const auto known = static_cast<int32_t>(input.tokens.size()) - input.num_drafts;
  for (int32_t draft = 0; draft < input.num_drafts; ++draft) {
    const int32_t parent = parents[static_cast<size_t>(draft)], token = known + draft;
    if (parent < known - 1 || parent >= token) {
      refuse(input, "draft " + std::to_string(draft) + " stands behind token " +
                        std::to_string(parent) + "; expected " + std::to_string(known - 1) +
                        " to " + std::to_string(token - 1));
    }
    for (int32_t other = 0; other < draft; ++other) {
      const bool is_twin = parents[static_cast<size_t>(other)] == parent &&
                           input.tokens[static_cast<size_t>(known + other)] ==
                               input.tokens[static_cast<size_t>(token)];
      if (!is_twin) continue;
      refuse(input, "drafts " + std::to_string(other) + " and " + std::to_string(draft) +
                        " are one token behind one token; expected different ones");
    }
  }
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

void DraftTrees::add(const StepInput& input, int64_t past, int32_t adapter, StepBatch& batch) {
  const DraftTree tree(input);
  const auto first = static_cast<int32_t>(batch.token_ids.size());
  const int32_t known = tree.size() - input.num_drafts;
  branch_of_.resize(static_cast<size_t>(first), -1);
  trees_.push_back({first + known, first + tree.size(), first + known - 1});
  for (int32_t token = 0; token < tree.size();) {
    const int32_t end = tree.end_of_branch(token);
    const int64_t position = past + tree.depth(token);
    int32_t branch = -1;
    const int32_t* table = pool_.get(input.sequence).blocks.data();
    if (token > 0) {
      branch = branches_->add(input.sequence, past, position + end - token);
      table = branches_->table(branch);
      for (int32_t seen = tree.parent(token); seen >= 0; seen = tree.parent(seen)) {
        batch.kv_copies.push_back({first + seen, table});
      }
    }
    batch.spans.push_back({first + token, end - token, position, table});
    batch.span_adapters.push_back(adapter);
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

void DraftTrees::choose(int32_t token) {
  const auto tree = std::ranges::find_if(trees_, [&](const Tree& one) { return token < one.end; });
  tree->leaf = token;
  kept_[static_cast<size_t>(token)] = 1;
}

void DraftTrees::adopt() {
  for (const Tree& tree : trees_) {
    const int32_t branch = branch_of_[static_cast<size_t>(tree.leaf)];
    if (branch >= 0) branches_->adopt(branch);
  }
}

}  // namespace vitrine::engine
