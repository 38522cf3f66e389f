// SPDX-License-Identifier: Apache-2.0
// What a sequence that gave up its blocks finds again in prefixes that were retained of it.
#include <algorithm>

#include "kv/block_pool.h"

namespace vitrine::kv {

BlockPool::Restored BlockPool::restored_of(uint64_t sequence, const Sequence& found) const {
  Restored longest;
  const bool takes_part = !has_states() && !has_windows();
  for (const auto& [id, prefix] : prefixes_) {
    if (prefix.source != sequence || prefix.length > found.length) continue;
    const bool is_whole = prefix.length == found.length;
    if (!is_whole && !takes_part) continue;
    if (has_states() && prefix.state.length != found.length) continue;
    if (has_windows() && resumed_length(id, prefix.length) != found.length) continue;
    // A last block that is not full would be written by those who compute on.
    const int64_t length =
        is_whole ? prefix.length : prefix.length / sizes_.block_size * sizes_.block_size;
    if (length <= longest.length) continue;
    const auto own = found.history.first(static_cast<size_t>(prefix.length));
    if (prefix.adapter != found.adapter || !std::ranges::equal(prefix.history, own)) continue;
    longest = {&prefix, length};
  }
  return longest;
}

void BlockPool::restore(Sequence& sequence, const Restored& restored) {
  const int64_t held = has_full_layers() ? blocks_for(restored.length) : 0;
  const auto blocks = std::span(restored.prefix->blocks).first(static_cast<size_t>(held));
  set_blocks(sequence, held);
  std::ranges::copy(blocks, sequence.blocks.begin());
  for (const int32_t block : blocks) full_.share(block);
  sequence.lost_from = restored.length < sequence.length ? restored.length : -1;
  if (sequence.lost_from >= 0) return;
  sequence.state = states_.share(restored.prefix->state);
  attach_window(sequence, *restored.prefix);
}

}  // namespace vitrine::kv
