// SPDX-License-Identifier: Apache-2.0
// Private to the library: texts as two models predict them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gates/pairing.h"

namespace vitrine::gates {

/// A token of a text that both predicted.
struct PairedToken {
  double baseline_logprob = 0, candidate_logprob = 0;  // nats
  double kl = 0;                                       // of what the lists tell, nats
  bool is_same_best = false;
  bool has_best = false;  // both told the most probable tokens
  size_t cluster = 0;
  const EvaluatedItem* item = nullptr;
  int64_t number = 0;    // in the item, from 1
  int64_t position = 0;  // in its window, from 1
};

/// Whether both sides read a text as the same tokens.
bool have_same_tokens(const ItemPair& pair);

/// The tokens of all texts that both read alike, clusters side by side. Throws kInvalidArgument
/// (naming item and token) where a list is none of a distribution.
std::vector<PairedToken> paired_tokens(std::span<const ItemPair> pairs);

/// Nothing where there are no tokens.
std::optional<TextComparison> compare_texts(std::span<const PairedToken> tokens);

/// The divergences and their clusters, of tokens that have them.
ClusteredValues divergences_of(std::span<const PairedToken> tokens);

}  // namespace vitrine::gates
