// SPDX-License-Identifier: Apache-2.0
#include "kv/state_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "vitrine/core.h"

namespace vitrine::kv {

HeldState StateCheckpoints::add(const HeldState& state) {
  HeldState gone;
  if (count_ == states_.size()) {
    // The newest one stays: the next turn begins there.
    size_t nearest = 0;
    int64_t distance = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i + 1 < count_; ++i) {
      const int64_t around = states_[i + 1].length - (i > 0 ? states_[i - 1].length : 0);
      if (around < distance) {
        nearest = i;
        distance = around;
      }
    }
    gone = remove(nearest);
  }
  states_[count_++] = state;
  return gone;
}

HeldState StateCheckpoints::remove(size_t index) {
  const HeldState gone = states_[index];
  std::copy(states_.begin() + static_cast<ptrdiff_t>(index) + 1,
            states_.begin() + static_cast<ptrdiff_t>(count_),
            states_.begin() + static_cast<ptrdiff_t>(index));
  states_[--count_] = {};
  return gone;
}

StatePool::StatePool(int64_t slots, std::function<void(int32_t, int32_t)> copy)
    : copy_(std::move(copy)), references_(static_cast<size_t>(slots), 0) {
  free_.reserve(static_cast<size_t>(slots));
  for (int64_t slot = slots - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
}

HeldState StatePool::share(const HeldState& state) {
  if (state.slot >= 0) ++references_[static_cast<size_t>(state.slot)];
  return state;
}

void StatePool::drop(HeldState& state) {
  if (state.slot >= 0 && --references_[static_cast<size_t>(state.slot)] == 0) {
    free_.push_back(state.slot);
  }
  state = {};
}

void StatePool::own(HeldState& state) {
  if (!needs_slot(state)) return;
  if (free_.empty()) throw Error(ErrorKind::kInternal, "no slot for a sequence's state is free");
  const HeldState own{free_.back(), state.length};
  free_.pop_back();
  references_[static_cast<size_t>(own.slot)] = 1;
  try {
    copy_(state.slot, own.slot);
  } catch (...) {
    HeldState back = own;
    drop(back);
    throw;
  }
  drop(state);
  state = own;
}

}  // namespace vitrine::kv
