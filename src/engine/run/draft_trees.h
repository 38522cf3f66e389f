// SPDX-License-Identifier: Apache-2.0
// Drafts that are a tree: which of them stand one behind another, where each one's keys and values
// go, and which of them stay.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/run/running_step.h"
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
  /// Returns the token before it, -1 for the first one.
  int32_t parent(int32_t token) const {
    return token < known_ ? token - 1 : parents_[static_cast<size_t>(token - known_)];
  }
  /// Returns how many tokens of the input it stands behind.
  int32_t depth(int32_t token) const;
  bool begins_branch(int32_t token) const { return token > 0 && parent(token) != token - 1; }
  /// Returns where the branch that goes through `token` ends.
  int32_t end_of_branch(int32_t token) const;
  /// Returns the number of positions that the longest branch brings.
  int32_t height() const;
  /// Returns the number of blocks that its branches take beside the sequence's own.
  int64_t branch_blocks(const kv::BlockPool& pool, int64_t past) const;
  int64_t num_branches() const;

 private:
  std::span<const int32_t> parents_;
  int32_t known_;
};

/// The trees of a step. A step without any calls it in vain. Allocates nothing in a step. Not
/// thread-safe.
class DraftTrees {
 public:
  /// `step` is the one under way, whose sequences are in `pool`. Both must stay.
  DraftTrees(kv::BlockPool& pool, const RunningStep& step) : pool_(pool), step_(step) {}
  void reserve(size_t tokens, size_t branches);
  /// Returns how many branches all trees of a step may have; 0 where drafts can be no tree.
  int64_t max_branches() const { return branches_ ? branches_->capacity() : 0; }

  /// Gives back what branches hold that were not chosen.
  void clear();
  /// Adds an input's tokens to the step's batch, as spans of its branches, and gives the sequence
  /// blocks for the first of them. `past`: its positions before the step.
  void add(const StepInput& input, int64_t past, StepBatch& batch);
  /// Orders the copies of keys and values, once all inputs are there.
  void end(StepBatch& batch);
  bool empty() const { return trees_.empty(); }

  /// Writes the tokens that stand before what a row chooses into the sequence's history, as if the
  /// drafts among them had been chosen.
  void put_path(const StepRow& row);
  /// Leaves all sequences with their known tokens alone, as before put_path().
  void forget_paths();
  /// Takes note that a row chose a draft of its tree; `chosen` is the draft's token of the batch,
  /// -1 where it chose none.
  void choose(const StepRow& row, int32_t chosen);
  /// Leaves the sequences with the branches that were chosen.
  void adopt();
  /// Says of each token of the batch whether it stays.
  std::span<const uint8_t> kept_tokens() const { return kept_; }

 private:
  struct Tree {
    int32_t first_draft = 0, end = 0;  // tokens of the batch
    int32_t leaf = 0;                  // the last one that was chosen
  };
  // Writes a token of the batch into its sequence's history.
  void put(SequenceId sequence, int32_t token);
  // `first` is the input's first token in the batch, `token` the input's last known one or a draft.
  void put_path(const StepInput& input, int32_t first, int32_t token);

  kv::BlockPool& pool_;
  const RunningStep& step_;
  std::optional<kv::BranchTables> branches_;
  std::vector<Tree> trees_;
  std::vector<int32_t> branch_of_;  // [tokens] -1: the sequence's own blocks
  std::vector<uint8_t> kept_;       // [tokens]
};

}  // namespace vitrine::engine
