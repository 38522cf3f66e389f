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

/// What somebody holds: the state of a sequence's first `length` positions. Without a slot it is
/// the empty one, of none.
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
  /// Behind all others. Returns the one that had to go, without a slot where none had.
  HeldState add(const HeldState& state);
  /// Takes the entry out.
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
  /// `copy(from, to)` copies a slot's state in every layer; from -1: makes it the empty one.
  StatePool(int64_t slots, std::function<void(int32_t from, int32_t to)> copy);

  int64_t num_slots() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int32_t references(int32_t slot) const { return references_[static_cast<size_t>(slot)]; }

  /// Counts it once more.
  HeldState share(const HeldState& state);
  /// Leaves the empty one.
  void drop(HeldState& state);
  /// Whether own() takes a slot.
  bool needs_slot(const HeldState& state) const {
    return state.slot < 0 || references(state.slot) > 1;
  }
  /// Afterwards nobody else holds the slot: its state is copied where somebody does. There must be
  /// a free slot where it needs one.
  void own(HeldState& state);

 private:
  std::function<void(int32_t, int32_t)> copy_;
  std::vector<int32_t> references_;  // by slot
  std::vector<int32_t> free_;
};

}  // namespace vitrine::kv
