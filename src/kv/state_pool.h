// SPDX-License-Identifier: Apache-2.0
// States of sequences that are no keys and values: which slots are free, and who shares them. The
// memory itself belongs to the engine; this room only numbers it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace vitrine::kv {

/// A state that somebody holds: that of a sequence's first `length` positions. Without a slot it is
/// the empty state, of no positions.
struct HeldState {
  int32_t slot = -1;
  int64_t length = 0;
};

/// Earlier states of a sequence that are kept, the shortest first. Those in the middle go where
/// there are too many, the one first whose neighbours are nearest to each other.
class StateCheckpoints {
 public:
  static constexpr int kMost = 2;

  int64_t last_length() const { return count_ > 0 ? states_[count_ - 1].length : 0; }
  std::span<HeldState> all() { return std::span(states_).first(count_); }
  std::span<const HeldState> all() const { return std::span(states_).first(count_); }
  /// Adds a state behind all others. Returns the one that had to go, or a state without a slot
  /// where none had to.
  HeldState add(const HeldState& state);
  /// Takes the entry out and returns it.
  HeldState remove(size_t index);

 private:
  std::array<HeldState, kMost> states_;
  size_t count_ = 0;
};

/// Positions between checkpoints of a long prompt or answer.
inline constexpr int64_t kCheckpointDistance = 2048;

/// Slots with reference counts. A state that is gone can be made again from the tokens, so whoever
/// holds one without running it may lose it. Not thread-safe.
class StatePool {
 public:
  /// `copy(from, to)` copies a slot's state in every layer; with `from` -1 it makes `to` the empty
  /// state.
  StatePool(int64_t slots, std::function<void(int32_t from, int32_t to)> copy);

  int64_t num_slots() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int32_t references(int32_t slot) const { return references_[static_cast<size_t>(slot)]; }

  /// Counts one more holder of the state's slot, and returns the state.
  HeldState share(const HeldState& state);
  /// Counts one holder less, and leaves the empty state.
  void drop(HeldState& state);
  /// Returns whether own() takes a slot.
  bool needs_slot(const HeldState& state) const {
    return state.slot < 0 || references(state.slot) > 1;
  }
  /// Makes the caller the only holder of the state's slot: where others hold it, the state is
  /// copied into a free one. There must be a free slot where it needs one.
  void own(HeldState& state);

 private:
  std::function<void(int32_t, int32_t)> copy_;
  std::vector<int32_t> references_;  // by slot
  std::vector<int32_t> free_;
};

}  // namespace vitrine::kv
