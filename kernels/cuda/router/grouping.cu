// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.h"
#include "kernels/cuda/router/router.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int32_t kMaxExperts = 1024;
constexpr int32_t kMaxTileRows = 256;
constexpr int kMaxWarps = 32;
constexpr int64_t kRoutesPerWarp = 128;  // fewer routes are not worth another warp

/// A warp's part of the routes, 32 at a time.
struct Part {
  int64_t begin, end;
};
VITRINE_DEVICE Part part_of_warp(int64_t total) {
  const int64_t chunk =
      divide_up<int64_t>(divide_up<int64_t>(total, block_threads() / kWarp), kWarp) * kWarp;
  const int64_t begin = chunk * warp_index();
  return {begin, begin + chunk};
}

/// Bits of the lanes below this one.
VITRINE_DEVICE uint32_t lanes_below() { return (1u << lane_index()) - 1; }

// How many routes each warp's part has for each expert: counts [warps, experts] in shared memory.
VITRINE_DEVICE void count_part(const int32_t* ids, int64_t total, int32_t* counts) {
  const Part part = part_of_warp(total);
  for (int64_t first = part.begin; first < part.end; first += kWarp) {
    const int64_t route = first + lane_index();
    const int32_t expert = route < total ? ids[route] : -1;
    const uint32_t same = match(expert);
    if (expert >= 0 && (same & lanes_below()) == 0) counts[expert] += population_count(same);
    sync_warp();  // another lane may lead the next ones of this expert
  }
}

// Gives each route of the warp's part its row: next[expert] is the first that is free.
VITRINE_DEVICE void place_part(const Grouping& grouping, int64_t total, int32_t* next) {
  const Part part = part_of_warp(total);
  for (int64_t first = part.begin; first < part.end; first += kWarp) {
    const int64_t route = first + lane_index();
    const int32_t expert = route < total ? grouping.ids[route] : -1;
    const uint32_t same = match(expert);
    const uint32_t before = same & lanes_below();
    if (expert >= 0) {
      const int32_t row = next[expert] + population_count(before);
      grouping.row_routes[row] = static_cast<int32_t>(route);
      grouping.slot_rows[route] = row;
    }
    sync_warp();  // all have read `next`
    if (expert >= 0 && before == 0) next[expert] += population_count(same);
    sync_warp();
  }
}

// Turns the experts' counts into offsets, padded to whole tiles; one warp. offsets: [experts + 1].
VITRINE_DEVICE void add_up_offsets(const int32_t* counts, int32_t experts, int32_t tile_rows,
                                   int32_t* offsets) {
  int32_t carry = 0;
  for (int32_t first = 0; first < experts; first += kWarp) {
    const int32_t expert = first + lane_index();
    const int32_t own = expert < experts ? divide_up(counts[expert], tile_rows) * tile_rows : 0;
    int32_t sum = own;
    for (int delta = 1; delta < kWarp; delta *= 2) {
      const int32_t other = shuffle_up(sum, delta);
      if (lane_index() >= delta) sum += other;
    }
    if (expert < experts) offsets[expert] = carry + sum - own;
    carry += shuffle(sum, kWarp - 1);
  }
  if (lane_index() == 0) offsets[experts] = carry;
}

// One block: two passes over the routes, each warp its own consecutive part, so that the order is
// that of the routes however many warps there are. Bytes: 8 a route to read, 8 to write, 4 a padded
// row.
VITRINE_KERNEL(kMaxWarps* kWarp)
void group_kernel(Grouping grouping, int64_t total, int64_t tiles) {
  const int32_t experts = grouping.num_experts;
  const int warps = block_threads() / kWarp;
  auto* warp_counts = reinterpret_cast<int32_t*>(dynamic_shared<unsigned char>());
  int32_t* counts = warp_counts + static_cast<int64_t>(warps) * experts;  // [experts]
  int32_t* offsets = counts + experts;                                    // [experts + 1]
  int32_t* own_counts = warp_counts + static_cast<int64_t>(warp_index()) * experts;
  for (int32_t i = thread_index(); i < warps * experts; i += block_threads()) warp_counts[i] = 0;
  for (int64_t i = thread_index(); i < tiles; i += block_threads()) grouping.tile_experts[i] = -1;
  for (int64_t i = thread_index(); i < tiles * grouping.tile_rows; i += block_threads()) {
    grouping.row_routes[i] = -1;
  }
  sync_block();
  count_part(grouping.ids, total, own_counts);
  sync_block();
  for (int32_t expert = thread_index(); expert < experts; expert += block_threads()) {
    int32_t sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += warp_counts[warp * experts + expert];
    counts[expert] = sum;
    grouping.counts[expert] = sum;
  }
  sync_block();
  if (warp_index() == 0) add_up_offsets(counts, experts, grouping.tile_rows, offsets);
  sync_block();
  for (int32_t expert = thread_index(); expert < experts; expert += block_threads()) {
    const int32_t begin = offsets[expert], end = offsets[expert + 1];
    grouping.offsets[expert] = begin;
    for (int32_t tile = begin / grouping.tile_rows; tile < end / grouping.tile_rows; ++tile) {
      grouping.tile_experts[tile] = expert;
    }
    int32_t next = begin;
    for (int warp = 0; warp < warps; ++warp) {
      int32_t* of_warp = warp_counts + warp * experts + expert;
      const int32_t count = *of_warp;
      *of_warp = next;
      next += count;
    }
  }
  if (thread_index() == 0) {
    grouping.offsets[experts] = offsets[experts];
    *grouping.num_tiles = offsets[experts] / grouping.tile_rows;
  }
  sync_block();
  place_part(grouping, total, own_counts);
}

}  // namespace

Status group_by_expert(const Grouping& grouping, int32_t tokens, Stream stream) {
  if (tokens < 1) return refuse("group_by_expert: tokens, expected at least 1");
  const int32_t experts = grouping.num_experts;
  if (experts < 1 || experts > kMaxExperts) {
    return refuse("group_by_expert: num_experts, expected 1 to 1,024");
  }
  if (grouping.top_k < 1) return refuse("group_by_expert: top_k, expected at least 1");
  if (grouping.tile_rows < 1 || grouping.tile_rows > kMaxTileRows) {
    return refuse("group_by_expert: tile_rows, expected 1 to 256");
  }
  const int64_t total = static_cast<int64_t>(tokens) * grouping.top_k;
  const int64_t wanted = divide_up<int64_t>(total, kRoutesPerWarp);
  const int warps = wanted < kMaxWarps ? static_cast<int>(wanted) : kMaxWarps;
  const size_t shared = static_cast<size_t>((warps + 2) * experts + 1) * sizeof(int32_t);
  return launch(group_kernel, {1}, warps * kWarp, shared, stream, grouping, total,
                most_tiles(tokens, grouping.top_k, experts, grouping.tile_rows));
}

}  // namespace vitrine::kernels::cuda
