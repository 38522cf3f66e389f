// SPDX-License-Identifier: Apache-2.0
// A short list of the best entries, kept in order. Internal linkage: each file has its own copy.
#pragma once

#include <cstdint>

#include "cpu_kernels.h"

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

/// The kTopTokens best of a block of logits so far, and what another entry has to reach.
struct BestEntries {
  HeadBlockStats* stats;
  const float* logits;
  int64_t first_id;
  float threshold;
};

/// Takes the entries at i + j, for every bit j of `reaching`: those that reach the threshold.
static inline __attribute__((always_inline)) void take_reaching(BestEntries& best,
                                                                uint32_t reaching, int64_t i) {
  if (reaching == 0) [[likely]]
    return;
  HeadBlockStats* stats = best.stats;
  for (; reaching != 0; reaching &= reaching - 1) {
    const int64_t at = i + __builtin_ctz(reaching);
    stats->count = insert_top(best.logits[at], static_cast<int32_t>(best.first_id + at), kTopTokens,
                              stats->count, stats->top_logits, stats->top_ids);
  }
  if (stats->count == kTopTokens) best.threshold = stats->top_logits[kTopTokens - 1];
}

inline constexpr int kMaxCandidates = 32;
inline constexpr int kMaxChunk = 64;  // entries between two questions whether they are too many

/// The entries of a block that may be among its best, in ascending id; each is put where it belongs
/// by how many are before it.
struct Candidates {
  int count = 0;
  // Those of one chunk come before anyone asks whether they are too many, and one vector is written
  // past the last.
  alignas(64) float values[kMaxCandidates + kMaxChunk + 16];
  int32_t ids[kMaxCandidates + kMaxChunk + 16];
  float placed_values[kMaxCandidates];
  int32_t placed_ids[kMaxCandidates];

  /// `above`, `reach`: a bit for each candidate that is larger than candidate i, not smaller.
  void put(int i, uint32_t above, uint32_t reach) {
    const int place = __builtin_popcount(above | (reach & ((1u << i) - 1)));
    placed_values[place] = values[i];
    placed_ids[place] = ids[i];
  }

  /// The first kTopTokens; there are as many.
  void give(HeadBlockStats* stats) const {
    stats->count = kTopTokens;
    for (int i = 0; i < kTopTokens; ++i) stats->top_logits[i] = placed_values[i];
    for (int i = 0; i < kTopTokens; ++i) stats->top_ids[i] = placed_ids[i];
  }
};

}  // namespace vitrine::kernels
