// SPDX-License-Identifier: Apache-2.0
// A tree of drafts in a step, and the rows that it is to have.
#pragma once

#include <random>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {

/// Known tokens, then drafts behind random ones before them.
struct TreeTokens {
  TreeTokens(int past, int32_t num_drafts, int32_t vocab, std::mt19937& random)
      : known(1 + past % 3), drafts(num_drafts) {
    for (int32_t i = 0; i < known + drafts; ++i) {
      tokens.push_back((7 * i + past) % vocab);
      if (i < known) continue;
      const int32_t first = known - 1;
      parents.push_back(first + static_cast<int32_t>(random() % static_cast<uint32_t>(i - first)));
    }
  }
  StepInput input(SequenceId sequence) const {
    StepInput input{.sequence = sequence, .tokens = tokens};
    input.num_drafts = drafts;
    input.draft_parents = parents;
    return input;
  }
  /// The tokens up to a node, as a chain.
  std::vector<int32_t> chain(int32_t node) const {
    std::vector<int32_t> chain;
    for (int32_t at = node; at >= 0;
         at = at < known ? at - 1 : parents[static_cast<size_t>(at - known)]) {
      chain.insert(chain.begin(), tokens[static_cast<size_t>(at)]);
    }
    return chain;
  }

  int32_t known, drafts;
  std::vector<int32_t> tokens, parents;
};

inline std::vector<std::vector<float>> logits_of(std::span<const StepOutput> outputs) {
  std::vector<std::vector<float>> rows;
  for (const StepOutput& output : outputs) {
    rows.emplace_back(output.scores.begin(), output.scores.end());
  }
  return rows;
}

/// Expects `rows`, those of a step behind `base`, to be each the last one of its node's chain.
inline void expect_rows_of_chains(Engine& engine, SequenceId base, const TreeTokens& tree,
                                  const std::vector<std::vector<float>>& rows) {
  ASSERT_EQ(std::ssize(rows), tree.drafts + 1);
  for (int32_t node = tree.known - 1; node < tree.known + tree.drafts; ++node) {
    const std::vector<int32_t> chain = tree.chain(node);
    const SequenceId own = engine.fork(base);
    const auto expected = engine.step({{StepInput{.sequence = own, .tokens = chain}}});
    EXPECT_EQ(logits_of(expected)[0], rows[static_cast<size_t>(node - tree.known + 1)])
        << "node " << node;
    engine.release(own);
  }
}

}  // namespace vitrine::testing
