// SPDX-License-Identifier: Apache-2.0
// The block pool's states: which ones sequences and prefixes hold, and what becomes of these where
// positions go.
#include <algorithm>

#include "kv/block_pool.h"

namespace vitrine::kv {

// A pass of many tokens is a prompt's, one of a single token an answer's; where one follows the
// other, a host may come back to.
bool BlockPool::ends_turn(const Sequence& sequence, int64_t length, int64_t count) {
  const int64_t last = sequence.checkpoints.last_length();
  if (length == 0 || length == last) return false;
  const bool changes = sequence.last_count > 0 && (sequence.last_count > 1) != (count > 1);
  return changes || length - last >= kCheckpointDistance;
}

int32_t BlockPool::own_state(uint64_t sequence, int64_t count, bool keeps) {
  Sequence& found = find(sequence);
  states_.drop(found.kept);
  if (keeps && found.state.slot >= 0) found.kept = states_.share(found.state);
  // Drafts are an answer's.
  const int64_t of_turn = keeps ? 1 : count;
  if (found.state.slot >= 0 && ends_turn(found, found.state.length, of_turn)) {
    HeldState gone = found.checkpoints.add(states_.share(found.state));
    states_.drop(gone);
  }
  found.last_count = of_turn;
  if (states_.needs_slot(found.state)) free_state_slot(found);
  states_.own(found.state);
  return found.state.slot;
}

void BlockPool::set_state_length(uint64_t sequence, int64_t length) {
  find(sequence).state.length = length;
}

void BlockPool::lose_state(uint64_t sequence) {
  Sequence& found = find(sequence);
  const HeldState earlier = best_earlier(found, found.length);
  states_.drop(found.state);
  found.state = earlier;
}

void BlockPool::set_forced_end(uint64_t sequence, int64_t end) {
  Sequence& found = find(sequence);
  found.forced_end = std::max(found.forced_end, end);
}

// The longest earlier state of its first `length` positions, counted once more.
HeldState BlockPool::best_earlier(const Sequence& sequence, int64_t length) {
  HeldState best;
  if (sequence.kept.length <= length) best = sequence.kept;
  for (const HeldState& checkpoint : sequence.checkpoints.all()) {
    if (checkpoint.length <= length && checkpoint.length > best.length) best = checkpoint;
  }
  return states_.share(best);
}

HeldState BlockPool::best_state(const Sequence& sequence, int64_t length) {
  if (sequence.state.length <= length) return states_.share(sequence.state);
  return best_earlier(sequence, length);
}

void BlockPool::cut_state(Sequence& sequence, int64_t length) {
  sequence.forced_end = std::min(sequence.forced_end, length);
  if (sequence.state.length > length) {
    const HeldState earlier = best_earlier(sequence, length);
    states_.drop(sequence.state);
    sequence.state = earlier;
  }
  if (sequence.kept.length > length) states_.drop(sequence.kept);
  for (size_t i = sequence.checkpoints.all().size(); i-- > 0;) {
    if (sequence.checkpoints.all()[i].length <= length) break;
    HeldState gone = sequence.checkpoints.remove(i);
    states_.drop(gone);
  }
}

void BlockPool::share_checkpoints(const Sequence& from, Sequence& to) {
  for (const HeldState& checkpoint : from.checkpoints.all()) {
    to.checkpoints.add(states_.share(checkpoint));
  }
  to.last_count = from.last_count;
}

void BlockPool::drop_states(Sequence& sequence) {
  states_.drop(sequence.state);
  states_.drop(sequence.kept);
  while (!sequence.checkpoints.all().empty()) {
    HeldState gone = sequence.checkpoints.remove(0);
    states_.drop(gone);
  }
}

}  // namespace vitrine::kv
