// SPDX-License-Identifier: Apache-2.0
// The block pool finds who gives up windows and earlier states where a sequence that runs finds
// none free. What is given up can be computed again.
#include <algorithm>

#include "kv/block_pool.h"

namespace vitrine::kv {

namespace {

// What is won where somebody gives up what it holds.
enum Gain : int {
  kNothing,  // who runs holds all of it, too
  kShare,    // one fewer holds it, and it stays taken
  kRoom,     // some of it is free at once
};

}  // namespace

/// Finds the prefix that was used least recently among those whose gain is largest; null where
/// giving up wins nothing.
template <typename Gain>
PrefixBlocks* BlockPool::stalest_prefix(Gain gain_of) {
  PrefixBlocks* stalest = nullptr;
  int most = kNothing;
  for (auto& [name, prefix] : prefixes_) {
    const int gain = gain_of(prefix);
    if (gain == kNothing || gain < most) continue;
    if (gain == most && stalest->last_use < prefix.last_use) continue;
    most = gain;
    stalest = &prefix;
  }
  return stalest;
}

/// The sequence that ran least recently of those that can give; the one that runs comes last.
template <typename Condition>
BlockPool::Sequence* BlockPool::stalest_sequence(const Sequence& runs, Condition may_give) {
  Sequence* stalest = nullptr;
  const auto is_before = [&runs](const Sequence& a, const Sequence& b) {
    if (&a == &runs || &b == &runs) return &b == &runs;
    return a.last_use < b.last_use;
  };
  for (auto& [name, sequence] : sequences_) {
    if (!may_give(sequence)) continue;
    if (stalest == nullptr || is_before(sequence, *stalest)) stalest = &sequence;
  }
  return stalest;
}

// Prefixes give up their windows until a block is free, as far as that helps.
void BlockPool::free_prefix_window() {
  const auto gain_of = [this](const PrefixBlocks& prefix) {
    int gain = kNothing;
    for (const int32_t block : prefix.window_blocks) {
      if (block < 0 || windowed_.needs(block) > 0) continue;
      gain = std::max<int>(gain, windowed_.references(block) == 1 ? kRoom : kShare);
    }
    return gain;
  };
  while (windowed_.num_free() == 0) {
    PrefixBlocks* const prefix = stalest_prefix(gain_of);
    if (prefix == nullptr) return;
    drop_window(*prefix);
  }
}

int32_t BlockPool::take_window_block(Sequence& runs) {
  free_prefix_window();
  while (windowed_.num_free() == 0) {
    Sequence* const sequence =
        stalest_sequence(runs, [](const Sequence& of) { return !of.checkpoints.all().empty(); });
    if (sequence == nullptr) break;
    const HeldState gone = sequence->checkpoints.remove(0);
    drop_unheld(*sequence, first_seen(gone.length), blocks_for(gone.length));
  }
  const int32_t block = windowed_.take();
  if (clear_block_) clear_block_(/*windowed=*/true, block);
  return block;
}

/// Whether another sequence stands in this state: whoever else gives it up frees no slot.
bool BlockPool::is_current_state(const Sequence& runs, int32_t slot) const {
  return std::ranges::any_of(sequences_, [&](const auto& entry) {
    return &entry.second != &runs && entry.second.state.slot == slot;
  });
}

// Prefixes give up their states until a slot is free, as far as that helps.
void BlockPool::free_prefix_state() {
  const auto gain_of = [this](const PrefixBlocks& prefix) -> int {
    const int32_t slot = prefix.state.slot;
    if (slot < 0) return kNothing;
    if (states_.references(slot) == 1) return kRoom;
    const bool is_current = std::ranges::any_of(
        sequences_, [slot](const auto& entry) { return entry.second.state.slot == slot; });
    return is_current ? kNothing : kShare;
  };
  while (states_.num_free() == 0) {
    PrefixBlocks* const prefix = stalest_prefix(gain_of);
    if (prefix == nullptr) {
      throw Error(ErrorKind::kOutOfMemory, "no slot is free for the state of a prefix");
    }
    states_.drop(prefix->state);
  }
}

// There is a slot in the end, since every sequence that lives can have one.
void BlockPool::free_state_slot(Sequence& runs) {
  const auto has_enough = [&] { return states_.num_free() > 0 || !states_.needs_slot(runs.state); };
  const auto gain_of = [&](const PrefixBlocks& prefix) -> int {
    const int32_t slot = prefix.state.slot;
    if (slot < 0) return kNothing;
    const int32_t others = states_.references(slot) - 1;
    if (others == 0 || (others == 1 && slot == runs.state.slot)) return kRoom;
    return is_current_state(runs, slot) ? kNothing : kShare;
  };
  while (!has_enough()) {
    PrefixBlocks* const prefix = stalest_prefix(gain_of);
    if (prefix == nullptr) break;
    states_.drop(prefix->state);
  }
  while (!has_enough()) {
    Sequence* const sequence = stalest_sequence(runs, [](const Sequence& of) {
      return !of.checkpoints.all().empty() || of.kept.slot >= 0;
    });
    if (sequence == nullptr) break;
    if (sequence->checkpoints.all().empty()) {
      states_.drop(sequence->kept);
    } else {
      HeldState gone = sequence->checkpoints.remove(0);
      states_.drop(gone);
    }
  }
}

}  // namespace vitrine::kv
