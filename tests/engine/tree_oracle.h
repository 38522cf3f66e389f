// SPDX-License-Identifier: Apache-2.0
// A drafter that knows the answer and guesses trees, and answers that are guessed by it.
#pragma once

#include <random>
#include <vector>

#include "tests/engine/speculated_answer.h"

namespace vitrine::testing {

/// Knows the answer, and hides it in a tree: at each depth the right token is there with a
/// probability, at a random place among wrong ones behind nodes that are right or wrong. Half of
/// the wrong ones stand elsewhere in the answer, so that a constraint may allow them.
class TreeOracle final : public OracleDrafter {
 public:
  TreeOracle(const std::vector<int32_t>& truth, double probability, int32_t vocab)
      : OracleDrafter(truth, probability, vocab),
        truth_(truth),
        right_(probability),
        vocab_(vocab) {}
  DraftTextId start(const DraftText& text) override {
    prompt_ = text.prompt_tokens;
    return OracleDrafter::start(text);
  }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    length_ += std::ssize(tokens);
    OracleDrafter::commit(text, tokens);
  }
  void truncate(DraftTextId text, int64_t length) override {
    length_ = length;
    OracleDrafter::truncate(text, length);
  }
  void propose(std::span<DraftProposal> proposals) override {
    DraftProposal& proposal = proposals[0];
    if (proposal.parents.empty()) return OracleDrafter::propose(proposals);
    ++trees;
    max_depth_ = proposal.max_depth;
    const auto made = static_cast<size_t>(length_ - prompt_);
    std::vector<int32_t> depth;
    int32_t true_node = -1, true_depth = 0;
    while (proposal.count < std::ssize(proposal.tokens)) {
      const auto at = static_cast<size_t>(proposal.count);
      int32_t parent = static_cast<int32_t>(random_() % (at + 1)) - 1;
      int32_t token = static_cast<int32_t>(random_() % static_cast<uint32_t>(vocab_));
      if (random_() % 2 == 0 && !truth_.empty()) token = truth_[random_() % truth_.size()];
      const size_t next = made + static_cast<size_t>(true_depth);
      const bool is_right =
          next < truth_.size() && std::uniform_real_distribution<>()(random_) < right_;
      if (is_right) parent = true_node, token = truth_[next];
      const int32_t own_depth = parent < 0 ? 1 : depth[static_cast<size_t>(parent)] + 1;
      bool is_twin = false;
      for (size_t i = 0; i < at; ++i) {
        is_twin |= proposal.parents[i] == parent && proposal.tokens[i] == token;
      }
      if (is_twin || own_depth > proposal.max_depth) {
        if (is_right) true_depth = INT32_MAX / 2;  // it goes no deeper
        if (++tries_ % 50 == 0) return;
        continue;
      }
      proposal.parents[at] = parent;
      proposal.tokens[at] = token;
      depth.push_back(own_depth);
      if (is_right) true_node = proposal.count, ++true_depth;
      ++proposal.count;
    }
  }

  void told(DraftTextId text, int32_t proposed, int32_t accepted) override {
    // On one path there are not so many.
    if (proposed > max_depth_) ++checked_trees;
    OracleDrafter::told(text, proposed, accepted);
  }

  int64_t trees = 0, checked_trees = 0;

 private:
  const std::vector<int32_t> truth_;
  const double right_;
  const int32_t vocab_;
  std::mt19937 random_{11};
  int64_t prompt_ = 0, length_ = 0;
  int32_t max_depth_ = INT32_MAX;
  int tries_ = 0;
};

/// The answer again, guessed by the oracle. Returns what the guesses came to.
inline SpeculationCounts expect_same_by_oracle(Stepper& stepper, const AskedAnswer& asked,
                                               const ToldAnswer& plain, TreeOracle& oracle,
                                               int32_t drafts, int32_t depth) {
  const ToldAnswer found =
      make_answer(stepper, asked, {.drafter = &oracle, .max_drafts = drafts, .max_depth = depth});
  expect_same_answer(plain, found);
  EXPECT_EQ(found.result.speculation.problem, "");
  EXPECT_EQ(oracle.num_texts(), 0U);
  return found.result.speculation;
}

/// What guesses of an answer came to, in all its runs.
struct GuessedRuns {
  int64_t accepted = 0, passes = 0, trees = 0;  // trees: that a pass checked
};

/// The answer again, guessed as chains (a depth of 0) or trees by a drafter that is right never,
/// often and always. `parts`, `part`: only one run of so many, this one first. Returns why the
/// answer ended.
inline StopReason expect_same_in_any_shape(Stepper& stepper, const AskedAnswer& asked,
                                           GuessedRuns& runs, int parts = 1, int part = 0) {
  SCOPED_TRACE(asked.name);
  const ToldAnswer plain = make_answer(stepper, asked);
  int run = 0;
  for (const double probability : {0.0, 0.5, 0.9, 1.0}) {
    for (const auto& [drafts, depth] : {std::pair(7, 0), std::pair(13, 4)}) {
      if (run++ % parts != part % parts) continue;
      SCOPED_TRACE(std::to_string(drafts) + " drafts, depth " + std::to_string(depth) +
                   ", each right with " + std::to_string(probability));
      TreeOracle oracle(plain.result.tokens, probability, stepper.summary().vocab_size);
      const SpeculationCounts counts =
          expect_same_by_oracle(stepper, asked, plain, oracle, drafts, depth);
      runs.accepted += counts.num_accepted_draft_tokens;
      runs.passes += counts.num_passes;
      runs.trees += oracle.checked_trees;
    }
  }
  return plain.result.reason;
}

}  // namespace vitrine::testing
