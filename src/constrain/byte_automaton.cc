// SPDX-License-Identifier: Apache-2.0
#include "byte_automaton.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace vitrine::constrain {

/// By refinement: states stay together while they tell the same and their bytes lead to states that
/// are together (Moore 1956).
ByteAutomaton ByteAutomaton::smallest() const {
  std::vector<uint16_t> part(size(), 0);
  size_t num_parts = 0;
  for (size_t before = 1; num_parts != before;) {
    before = num_parts;
    using Key = std::tuple<uint16_t, uint64_t, std::array<uint16_t, 256>>;
    std::map<Key, uint16_t> found;
    std::vector<uint16_t> finer(size());
    for (size_t state = 0; state < size(); ++state) {
      std::array<uint16_t, 256> row = rows[state];
      for (uint16_t& next : row) next = next == kNoState ? kNoState : part[next];
      finer[state] =
          found.try_emplace({part[state], holds[state], row}, static_cast<uint16_t>(found.size()))
              .first->second;
    }
    part = std::move(finer);
    num_parts = found.size();
  }
  ByteAutomaton out;
  std::vector<uint16_t> number(num_parts, kNoState);
  std::vector<size_t> some = {0};  // a state of each part, in the order of the new numbers
  number[part[0]] = 0;
  for (size_t at = 0; at < some.size(); ++at) {
    out.rows.push_back(rows[some[at]]);
    out.holds.push_back(holds[some[at]]);
    for (uint16_t& next : out.rows.back()) {
      if (next == kNoState) continue;
      uint16_t& known = number[part[next]];
      if (known == kNoState) {
        known = static_cast<uint16_t>(some.size());
        some.push_back(next);
      }
      next = known;
    }
  }
  return out;
}

}  // namespace vitrine::constrain
