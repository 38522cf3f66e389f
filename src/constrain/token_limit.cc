// SPDX-License-Identifier: Apache-2.0
#include "token_limit.h"

namespace vitrine::constrain {

std::vector<uint32_t> without_ends(const TokenTable::Impl& table, std::span<const uint32_t> mask) {
  std::vector<uint32_t> out(mask.begin(), mask.end());
  for (const int32_t id : table.end_ids) out[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
  return out;
}

void keep_fitting(const TokenTable::Impl& table, TerminalMasks& terminals, FinishTexts& texts,
                  RegexPool& pool, NodeId state, std::span<uint32_t> mask, uint32_t left) {
  if (table.has_all_bytes && terminals.at(state).needed <= left) return;
  texts.trim();
  std::vector<uint32_t> check = without_ends(table, mask);
  std::vector<NodeId> places(table.max_depth + 1, state);
  keep_fitting(
      table, mask, check,
      [&](size_t depth, uint8_t byte) {
        places[depth + 1] = pool.step(places[depth], byte);
        return places[depth + 1] != kEmptyNode;
      },
      [&](size_t depth) { return texts.of_state(places[depth]).tokens <= left; });
}

}  // namespace vitrine::constrain
