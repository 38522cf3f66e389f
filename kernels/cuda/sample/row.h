// SPDX-License-Identifier: Apache-2.0
// A row of logits on its way to a choice: what is left of it, and sums over that.
#pragma once

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/head/best.h"
#include "kernels/cuda/linear/words.h"
#include "kernels/cuda/sample/sample.h"

namespace vitrine::kernels::cuda {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / kWarp;
inline constexpr int kBins = 256;
/// A row with no more tokens left than this is kept in shared memory.
inline constexpr int kShortRow = 2048;

/// What a probability of 1 of the best is summed as.
inline constexpr float kMassOfOne = 0x1p40f;

/// A step that was taken: what it does to one logit.
struct Taken {
  enum class Kind : int32_t { kDivide, kMinimum, kPrefix, kSuffix, kNear, kMask } kind;
  float a;            // kDivide: the divisor; kMinimum: the distance; kNear: where from the best
  float offset;       // kDivide: subtracted first; kMinimum, kNear: the best logit
  Best last;          // the last one, in descending order, that is kept; kSuffix: the first one
  uint32_t nearness;  // kNear: its key
  const uint32_t* mask;
};

/// Keys of nearness: the largest is nearest to `center` below the best logit.
VITRINE_DEVICE uint32_t near_key(float value, float best, float center) {
  return ~float_bits(absolute(center - (value - best)));
}
VITRINE_DEVICE uint64_t join_keys(uint32_t high, uint32_t low) {
  return static_cast<uint64_t>(high) << 32 | low;
}

VITRINE_DEVICE bool is_set(const uint32_t* mask, uint32_t id) {
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}

struct SampleShared {
  uint64_t bins[kBins];
  uint64_t warp_sums[kSampleWarps];
  double warp_doubles[kSampleWarps];
  Best warp_best[kSampleWarps];
  uint64_t found[2];
  Taken taken[kMaxSampleSteps];
  float values[kShortRow];
  uint32_t ids[kShortRow];
};

/// One logit that is looked at: its id, its value as it is by now, and whether it is left.
struct Entry {
  uint32_t id;
  float value;
  bool is_left;
};

/// A row under way; every thread has the same.
struct Row {
  SampleShared& shared;
  float* logits;
  int64_t count;  // entries to look at
  bool is_short;  // they are in shared memory
  int taken;
  float best;  // the largest logit, as it is by now

  VITRINE_DEVICE_METHOD Entry entry(int64_t i) const {
    Entry entry{is_short ? shared.ids[i] : static_cast<uint32_t>(i),
                is_short ? shared.values[i] : logits[i], true};
    for (int t = 0; t < taken; ++t) {
      const Taken& step = shared.taken[t];
      if (step.kind == Taken::Kind::kDivide) {
        entry.value = (entry.value - step.offset) / step.a;
      } else if (step.kind == Taken::Kind::kMinimum) {
        entry.is_left = entry.is_left && entry.value - step.offset >= step.a;
      } else if (step.kind == Taken::Kind::kMask) {
        entry.is_left = entry.is_left && is_set(step.mask, entry.id);
      } else {
        entry.is_left = entry.is_left && is_kept(step, entry);
      }
    }
    entry.is_left = entry.is_left && entry.value > bits_float(0xff800000u);
    return entry;
  }

  VITRINE_DEVICE_METHOD static bool is_kept(const Taken& step, const Entry& entry) {
    uint64_t key = order_key(entry.value), last = step.last.key;
    if (step.kind == Taken::Kind::kNear) {
      key = join_keys(near_key(entry.value, step.offset, step.a), static_cast<uint32_t>(key));
      last = join_keys(step.nearness, step.last.key);
    }
    if (key == last && entry.id == step.last.id) return true;
    const bool is_better = key > last || (key == last && entry.id < step.last.id);
    return is_better == (step.kind != Taken::Kind::kSuffix);
  }

  /// w, but for the sum: e^(value - best) * 2^40 as an integer; 0 where it is not left.
  VITRINE_DEVICE_METHOD uint64_t mass(const Entry& entry) const {
    return entry.is_left ? static_cast<uint64_t>(exp_float(entry.value - best) * kMassOfOne) : 0;
  }

  /// All threads: adds a step to those taken.
  VITRINE_DEVICE_METHOD void take(const Taken& step) {
    if (thread_index() == 0) shared.taken[taken] = step;
    sync_block();
    ++taken;
  }
};

/// A warp's consecutive part of the row's entries, in steps of 32.
struct Part {
  int64_t begin, end;
};
VITRINE_DEVICE Part part_of_warp(const Row& row) {
  const int64_t chunk =
      divide_up<int64_t>(divide_up<int64_t>(row.count, kSampleWarps), kWarp) * kWarp;
  return {chunk * warp_index(), chunk * (warp_index() + 1)};
}

/// The sums of the warps' parts before this warp's, and all of them.
VITRINE_DEVICE uint64_t sum_before(SampleShared& shared, uint64_t own, uint64_t* total) {
  for (int width = kWarp / 2; width > 0; width /= 2) own += shuffle_xor(own, width);
  sync_block();
  if (lane_index() == 0) shared.warp_sums[warp_index()] = own;
  sync_block();
  uint64_t before = 0, sum = 0;
  for (int warp = 0; warp < kSampleWarps; ++warp) {
    if (warp < warp_index()) before += shared.warp_sums[warp];
    sum += shared.warp_sums[warp];
  }
  *total = sum;
  return before;
}

/// The sum over the block's threads, in all of them.
VITRINE_DEVICE uint64_t add_up_block(SampleShared& shared, uint64_t value) {
  uint64_t total = 0;
  sum_before(shared, value, &total);
  return total;
}

/// The sum of all threads' doubles, which are added in one order.
VITRINE_DEVICE double add_up_block(SampleShared& shared, double value) {
  for (int width = kWarp / 2; width > 0; width /= 2) value += shuffle_xor(value, width);
  sync_block();
  if (lane_index() == 0) shared.warp_doubles[warp_index()] = value;
  sync_block();
  double sum = 0;
  for (int warp = 0; warp < kSampleWarps; ++warp) sum += shared.warp_doubles[warp];
  return sum;
}

/// The best of all threads' entries, in all of them.
VITRINE_DEVICE Best best_of_block(SampleShared& shared, Best own) {
  own = best_of_warp(own);
  sync_block();
  if (lane_index() == 0) shared.warp_best[warp_index()] = own;
  sync_block();
  return best_of_warp(shared.warp_best[lane_index()]);
}

/// The first entry in ascending id at which the sum of measure(entry) exceeds `target`; kNoId where
/// it never does. `measured` becomes its measure.
template <typename Measure>
VITRINE_DEVICE uint32_t find_in_order(const Row& row, uint64_t target, Measure measure,
                                      uint64_t* measured) {
  SampleShared& shared = row.shared;
  const Part part = part_of_warp(row);
  const auto measure_at = [&](int64_t i) {
    return i < row.count ? measure(row.entry(i)) : uint64_t{0};
  };
  uint64_t own = 0;
  for (int64_t first = part.begin; first < part.end; first += kWarp) {
    own += measure_at(first + lane_index());
  }
  uint64_t total = 0;
  uint64_t before = sum_before(shared, own, &total);
  if (thread_index() == 0) {
    shared.found[0] = kNoId;
    shared.found[1] = 0;
  }
  sync_block();
  bool is_found = target < before;  // by a warp before this one
  for (int64_t first = part.begin; first < part.end && !is_found; first += kWarp) {
    const int64_t i = first + lane_index();
    const uint64_t here = measure_at(i);
    uint64_t sum = here;
    for (int delta = 1; delta < kWarp; delta *= 2) {
      const uint64_t other = shuffle_up(sum, delta);
      if (lane_index() >= delta) sum += other;
    }
    const uint32_t exceeds = ballot(before + sum > target);
    if (exceeds != 0) {
      is_found = true;
      const bool is_first = (exceeds & ((1u << lane_index()) - 1)) == 0 && before + sum > target;
      if (is_first) {
        shared.found[0] = row.entry(i).id;
        shared.found[1] = here;
      }
    }
    before += shuffle(sum, kWarp - 1);
  }
  sync_block();
  *measured = shared.found[1];
  return static_cast<uint32_t>(shared.found[0]);
}

/// Where few entries pass, moves them into shared memory, in ascending id, as they were at first;
/// the others are out.
template <typename Passes>
VITRINE_DEVICE void shorten(Row& row, Passes passes) {
  if (row.is_short) return;
  SampleShared& shared = row.shared;
  const Part part = part_of_warp(row);
  uint64_t own = 0;
  VITRINE_UNROLL_BY(8)
  for (int64_t i = part.begin + lane_index(); i < part.end; i += kWarp) {
    own += i < row.count && passes(row.entry(i)) ? 1 : 0;
  }
  uint64_t total = 0;
  uint64_t at = sum_before(shared, own, &total);
  if (total > kShortRow) return;
  for (int64_t first = part.begin; first < part.end; first += kWarp) {
    const int64_t i = first + lane_index();
    const bool is_left = i < row.count && passes(row.entry(i));
    const uint32_t left = ballot(is_left);
    if (is_left) {
      const auto to =
          at + static_cast<uint64_t>(population_count(left & ((1u << lane_index()) - 1)));
      shared.values[to] = row.logits[i];
      shared.ids[to] = static_cast<uint32_t>(i);
    }
    at += static_cast<uint64_t>(population_count(left));
  }
  sync_block();
  row.is_short = true;
  row.count = static_cast<int64_t>(total);
}
VITRINE_DEVICE void shorten(Row& row) {
  shorten(row, [](const Entry& entry) { return entry.is_left; });
}

}  // namespace vitrine::kernels::cuda
