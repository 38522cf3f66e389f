// SPDX-License-Identifier: Apache-2.0
// Drafts that are a tree: which of them stand one behind another, where each one's keys and values
// go, and which of them stay.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/run/executor.h"
#include "engine/run/step_rows.h"
#include "kv/branch_tables.h"

namespace vitrine::engine {

/// The shape of an input whose drafts are a tree. Token i continues the branch of token i - 1 where
/// it stands behind that; else it begins another branch.
class DraftTree {
 public:
  explicit DraftTree(const StepInput& input)
      : parents_(input.draft_parents),
        known_(static_cast<int32_t>(input.tokens.size()) - input.num_drafts) {}
  static bool is_tree(const StepInput& input) { return !input.draft_parents.empty(); }

  int32_t size() const { return known_ + static_cast<int32_t>(parents_.size()); }
  /// The token before it; -1: the first one.
  int32_t parent(int32_t token) const {
    return token < known_ ? token - 1 : parents_[static_cast<size_t>(token - known_)];
  }
  /// How many tokens of the input it stands behind.
  int32_t depth(int32_t token) const;
  bool begins_branch(int32_t token) const { return token > 0 && parent(token) != token - 1; }
  /// Returns where the branch that goes through `token` ends.
  int32_t end_of_branch(int32_t token) const;
  /// Positions that the longest branch brings.
  int32_t height() const;
  /// Blocks that its branches take beside the sequence's own.
  int64_t branch_blocks(const kv::BlockPool& pool, int64_t past) const;
  int64_t num_branches() const;

 private:
  std::span<const int32_t> parents_;
  int32_t known_;
};

/// Throws kInvalidArgument unless a known token stands before the drafts.
void check_draft_count(const StepInput& input);

/// Throws what check_draft_count() throws, and kInvalidArgument for parents that make no tree.
void check_draft_tree(const StepInput& input);

/// The trees of one step. Allocates nothing in it. Not thread-safe.
class DraftTrees {
 public:
  explicit DraftTrees(kv::BlockPool& pool) : pool_(pool) {}
  void reserve(size_t tokens, size_t branches);
  /// Gives back what branches hold that were not chosen.
  void clear();
  /// Adds an input's tokens to a batch, as spans of its branches. The sequence has blocks for the
  /// first of them.
  void add(const StepInput& input, int64_t past, int32_t adapter, StepBatch& batch);
  /// Orders the copies of keys and values, once all inputs are there.
  void end(StepBatch& batch);
  /// The draft's token was chosen. `token`: of the batch.
  void choose(int32_t token);
  /// After the choices: the sequences take over the branches that were chosen.
  void adopt();
  bool empty() const { return trees_.empty(); }
  /// Returns how many branches all trees of a step may have.
  int64_t max_branches() const { return branches_ ? branches_->capacity() : 0; }
  /// Says of each token of the batch whether it stays.
  std::span<const uint8_t> kept_tokens() const { return kept_; }

 private:
  struct Tree {
    int32_t first_draft = 0, end = 0;  // tokens of the batch
    int32_t leaf = 0;                  // the last one that was chosen
  };

  kv::BlockPool& pool_;
  std::optional<kv::BranchTables> branches_;
  std::vector<Tree> trees_;
  std::vector<int32_t> branch_of_;  // [tokens] -1: the sequence's own blocks
  std::vector<uint8_t> kept_;       // [tokens]
};

}  // namespace vitrine::engine
