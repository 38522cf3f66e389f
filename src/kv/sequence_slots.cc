// SPDX-License-Identifier: Apache-2.0
#include "kv/sequence_slots.h"

namespace vitrine::kv {

namespace {

size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

SequenceSlots::SequenceSlots(int64_t slots, int64_t table_entries, int64_t tokens)
    : num_slots_(slots),
      table_bytes_(round_up(static_cast<size_t>(table_entries) * sizeof(int32_t), 64)),
      slot_bytes_(round_up(table_bytes_ + static_cast<size_t>(tokens) * sizeof(int32_t),
                           MappedMemory::page_bytes())),
      memory_(static_cast<size_t>(slots) * slot_bytes_, "block tables and token histories",
              MappedMemory::Use::kSparse) {
  free_.reserve(static_cast<size_t>(slots));
  for (int64_t slot = slots - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
}

int32_t SequenceSlots::take() {
  if (free_.empty()) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void SequenceSlots::give_back(int32_t slot) {
  const size_t page = MappedMemory::page_bytes();
  memory_.forget(static_cast<size_t>(slot) * slot_bytes_ + page, slot_bytes_ - page);
  free_.push_back(slot);
}

}  // namespace vitrine::kv
