// SPDX-License-Identifier: Apache-2.0
// A hash map from a pair of ids to a value, open addressing: the inner loop of BPE is its lookup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vitrine::tokenizer {

/// Keys are pairs of ids below 2^31. Not to be changed while others read.
template <typename Value>
class PairMap {
 public:
  /// Room for `count` keys at a load of at most one half.
  explicit PairMap(size_t count = 0) {
    size_t capacity = 16;
    while (capacity < 2 * count) capacity *= 2;
    slots_.resize(capacity);
  }

  const Value* find(uint32_t first, uint32_t second) const {
    const Slot& slot = slots_[index_of(pack(first, second))];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

  /// The value of a key, made if it is not there.
  Value& operator()(uint32_t first, uint32_t second) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[index_of(pack(first, second))];
    if (slot.key == kEmpty) {
      slot.key = pack(first, second);
      ++size_;
    }
    return slot.value;
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  static uint64_t pack(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

  size_t index_of(uint64_t key) const {
    uint64_t hash = key * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    size_t index = hash & (slots_.size() - 1);
    while (slots_[index].key != kEmpty && slots_[index].key != key) {
      index = (index + 1) & (slots_.size() - 1);
    }
    return index;
  }

  void grow() {
    PairMap bigger(slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.key != kEmpty) bigger.slots_[bigger.index_of(slot.key)] = slot;
    }
    slots_.swap(bigger.slots_);
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace vitrine::tokenizer
