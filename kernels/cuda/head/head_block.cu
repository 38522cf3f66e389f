// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/head/head_block.h"

#include "kernels/cuda/head/best.h"
#include "kernels/cuda/head/statistics.h"
#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPerLane = 4;
static_assert(kHeadBlockEntries == kThreads * kPerLane);

struct Shared {
  float logits[kHeadBlockEntries];
  float distance[kHeadBlockEntries];
  float exponential[kHeadBlockEntries];
  Best best[kWarps][kBestEntries];
  uint64_t hash[kWarps];
  float max[kWarps];
  int32_t numbers[kWarps];  // entries that are not NaN
};

// A warp's part of the two sums of the block's words, which are 0 past its end.
VITRINE_DEVICE uint64_t hash_part(const float* logits, int64_t count) {
  uint32_t low = 0, high = 0;
  for (uint32_t i = static_cast<uint32_t>(thread_index()); i < count; i += kThreads) {
    const uint32_t word = float_bits(logits[i]);
    low += hash_word(word, low_hash_key(i));
    high += hash_word(word, high_hash_key(i));
  }
  return static_cast<uint64_t>(reduce_add(high)) << 32 | reduce_add(low);
}

// A warp's ten best of its lanes' four entries each, into `best`.
VITRINE_DEVICE void list_best(const float (&values)[kPerLane], int64_t first, int64_t count,
                              Best* best) {
  uint32_t keys[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    keys[j] = first + j < count ? order_key(values[j]) : kNoKey;
  }
  for (int place = 0; place < kBestEntries; ++place) {
    Best own = no_best();
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (keys[j] > own.key) own = {keys[j], static_cast<uint32_t>(first + j)};
    }
    const Best chosen = best_of_warp(own);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (chosen.id == static_cast<uint32_t>(first + j)) keys[j] = kNoKey;
    }
    if (lane_index() == 0) best[place] = chosen;
  }
}

// One warp: the ten best of all warps' lists, and the block's other numbers.
VITRINE_DEVICE void finish_block(const Shared& shared, int64_t begin, bool statistics,
                                 HeadBlock* block) {
  constexpr int kLists = kWarps * kBestEntries;
  constexpr int kOwn = (kLists + kWarp - 1) / kWarp;
  Best own[kOwn];
  const Best* lists = &shared.best[0][0];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int i = lane_index() + j * kWarp;
    own[j] = i < kLists ? lists[i] : no_best();
  }
  int32_t numbers = 0;
  for (int warp = 0; warp < kWarps; ++warp) numbers += shared.numbers[warp];
  const int32_t listed = numbers < kBestEntries ? numbers : kBestEntries;
  for (int place = 0; place < listed; ++place) {
    Best mine = no_best();
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (own[j].key > mine.key || (own[j].key == mine.key && own[j].id < mine.id)) mine = own[j];
    }
    const Best chosen = best_of_warp(mine);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (own[j].id == chosen.id) own[j] = no_best();
    }
    if (lane_index() == 0) {
      block->top_logits[place] = shared.logits[chosen.id];  // the bits, also of a -0
      block->top_ids[place] = static_cast<int32_t>(begin + chosen.id);
    }
  }
  if (lane_index() == 0) {
    block->count = listed;
    uint32_t low = 1, high = 0;  // so that a block of zeros has a hash
    for (int warp = 0; warp < kWarps; ++warp) {
      low += static_cast<uint32_t>(shared.hash[warp]);
      high += static_cast<uint32_t>(shared.hash[warp] >> 32);
    }
    block->hash = statistics ? static_cast<uint64_t>(high) << 32 | low : 0;
  }
}

// Half a warp each: the sums of e and of e * d, in 16 lanes.
VITRINE_DEVICE void add_up(const Shared& shared, int64_t count, HeadBlock* block) {
  const bool weighs = lane_index() >= kLanes;
  float lane = 0.0f;
  for (int64_t i = lane_index() % kLanes; i < count; i += kLanes) {
    const float e = shared.exponential[i];
    lane = weighs ? fma_rn(e, shared.distance[i], lane) : lane + e;
  }
  lane = add_lanes(lane);
  if (lane_index() == 0) block->sum_exp = lane;
  if (lane_index() == kLanes) block->sum_exp_logit = lane;
}

// One block of threads a block of logits. Bytes: 4 an entry to read (4 to write with a multiplier),
// 108 written. Nothing but the logits is read, so audit costs arithmetic alone.
VITRINE_KERNEL(kThreads)
void head_block_kernel(Head head, bool statistics, bool whole) {
  Shared& shared = *dynamic_shared<Shared>();
  const int64_t row = block_y();
  const int64_t begin = static_cast<int64_t>(block_x()) * kHeadBlockEntries;
  const int64_t left = head.vocab - begin;
  const int64_t count = left < kHeadBlockEntries ? left : kHeadBlockEntries;
  float* logits = head.logits + row * head.vocab + begin;
  HeadBlock* block = head.blocks + row * grid_x() + block_x();
  const int64_t i = thread_index() * kPerLane;
  float values[kPerLane];
  load_floats(logits, i, count, whole, values);
  if (head.multiplier != 1.0f) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) values[j] = values[j] * head.multiplier;
    store_floats(logits, i, count, whole, values);
  }
  const float lowest = bits_float(0xff800000u);
  float max = lowest;
  uint32_t numbers = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    shared.logits[i + j] = values[j];
    if (i + j >= count) continue;
    numbers += values[j] == values[j] ? 1 : 0;
    max = values[j] > max ? values[j] : max;
  }
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const float other = shuffle_xor(max, width);
    max = other > max ? other : max;  // of two zeros either: no result shows which
  }
  numbers = reduce_add(numbers);
  list_best(values, i, count, shared.best[warp_index()]);
  sync_block();
  const uint64_t hash = statistics ? hash_part(shared.logits, count) : 0;
  if (lane_index() == 0) {
    shared.max[warp_index()] = max;
    shared.numbers[warp_index()] = static_cast<int32_t>(numbers);
    shared.hash[warp_index()] = hash;
  }
  sync_block();
  max = lowest;
  int32_t all_numbers = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    max = shared.max[warp] > max ? shared.max[warp] : max;
    all_numbers += shared.numbers[warp];
  }
  const bool has_nan = all_numbers < count;
  const bool sums = statistics && !has_nan && max != lowest;
  if (sums) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float distance = values[j] - max;
      shared.distance[i + j] = distance < kExpStatisticsLow ? 0.0f : distance;  // no 0 * inf
      shared.exponential[i + j] = exp_statistics(distance);
    }
  }
  sync_block();
  if (warp_index() == 0) finish_block(shared, begin, statistics, block);
  if (warp_index() == 1) {
    const float nan = bits_float(0x7fc00000u);
    if (lane_index() == 0) {
      block->max = has_nan ? nan : max;
      if (!sums) block->sum_exp = block->sum_exp_logit = has_nan ? nan : 0.0f;
    }
    if (sums) add_up(shared, count, block);
  }
}

}  // namespace

Status launch_head_blocks(const Head& head, int32_t rows, Stream stream) {
  const Dim3 grid{static_cast<uint32_t>(head_blocks(head.vocab)), static_cast<uint32_t>(rows)};
  return launch(head_block_kernel, grid, kThreads, sizeof(Shared), stream, head,
                head.record.words != nullptr, is_whole(head.vocab, head.logits));
}

}  // namespace vitrine::kernels::cuda
