// SPDX-License-Identifier: Apache-2.0
// A finite automaton over bytes, written out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vitrine::constrain {

/// State 0 is the first.
struct ByteAutomaton {
  static constexpr uint16_t kNoState = 0xFFFF;

  std::vector<std::array<uint16_t, 256>> rows;  // by state: where each byte leads
  std::vector<uint64_t> holds;  // by state: a bit for each condition that holds there

  size_t size() const { return rows.size(); }
  /// The automaton with the fewest states that tells the same, numbered by how they are met.
  ByteAutomaton smallest() const;
};

}  // namespace vitrine::constrain
