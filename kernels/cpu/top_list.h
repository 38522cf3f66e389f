// A short list of the best entries, kept in order. Internal linkage: each file has its own copy.
#pragma once

#include <cstdint>

namespace vitrine::kernels {

/// Puts (value, id) where it belongs among `count` entries in descending order, at most `capacity`
/// of them. Entries come in ascending id, so an equal value stands behind the ones already there.
/// Neither the list nor `value` holds a NaN. Returns the new count.
static inline int32_t insert_top(float value, int32_t id, int32_t capacity, int32_t count,
                                 float* values, int32_t* ids) {
  if (count == capacity) {
    if (!(value > values[count - 1])) return count;
    --count;
  }
  int32_t slot = count;
  while (slot > 0 && value > values[slot - 1]) {
    values[slot] = values[slot - 1];
    ids[slot] = ids[slot - 1];
    --slot;
  }
  values[slot] = value;
  ids[slot] = id;
  return count + 1;
}

}  // namespace vitrine::kernels
