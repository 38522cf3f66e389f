// SPDX-License-Identifier: Apache-2.0
// Masks of automaton states.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "regex_pool.h"
#include "token_table.h"

namespace vitrine::constrain {

/// Masks of automaton states, which any constraint of one grammar may use.
class TerminalMasks {
 public:
  TerminalMasks(RegexPool& pool, const TokenTable::Impl& table) : pool_(pool), table_(table) {}
  size_t num_masks() const { return masks_.size(); }
  /// From a state within a terminal that ends exactly where nothing can follow (a JSON string,
  /// whose quote ends it).
  const TerminalMask& at(NodeId state);
  /// The state whose mask serves for this one: bounds of repetitions and lengths that no token can
  /// meet from here on change nothing, so that one mask is for many counts.
  NodeId stand_in(NodeId state);

 private:
  NodeId without_far_length(NodeId state);
  TerminalMask make(NodeId state);
  TerminalMask make_universal(NodeId content);
  struct Slice {
    uint32_t set = 0, length = 0;
    uint32_t count = 0;   // tokens
    uint32_t needed = 0;  // as TerminalMask::needed
  };
  Slice best_slice(NodeId state);
  Slice try_slice(NodeId state, uint32_t set);
  static constexpr size_t kMaxMasks = 2048;
  RegexPool& pool_;
  const TokenTable::Impl& table_;
  std::unordered_map<NodeId, std::shared_ptr<const TerminalMask>> masks_;
  std::unordered_map<NodeId, NodeId> stand_ins_;
};

}  // namespace vitrine::constrain
