// SPDX-License-Identifier: Apache-2.0
#include "kv/sequence_slots.h"

namespace vitrine::kv {

namespace {

size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

size_t bytes_of_table(int64_t entries) {
  return round_up(static_cast<size_t>(entries) * sizeof(int32_t), 64);
}

size_t bytes_of_slot(int64_t entries, int64_t tokens) {
  return round_up(bytes_of_table(entries) + static_cast<size_t>(tokens) * sizeof(int32_t),
                  MappedMemory::page_bytes());
}

}  // namespace

SequenceSlots::SequenceSlots(int64_t slots, int64_t table_entries, int64_t tokens)
    : num_slots_(slots),
      table_bytes_(bytes_of_table(table_entries)),
      slot_bytes_(bytes_of_slot(table_entries, tokens)),
      memory_(static_cast<size_t>(slots) * slot_bytes_, "block tables and token histories",
              MappedMemory::Use::kSparse) {
  free_.reserve(static_cast<size_t>(slots));
  for (int64_t slot = slots - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
}

uint64_t SequenceSlots::bytes_of(int64_t slots, int64_t table_entries, int64_t tokens) {
  return static_cast<uint64_t>(slots) * bytes_of_slot(table_entries, tokens);
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
