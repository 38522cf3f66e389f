// Tiles of a grouped product, made on the device.
#include "kernels/cuda/linear/linear.h"

#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// One block; 128 experts a round. Bytes: next to none; about 2 us, most of them the launch.
VITRINE_KERNEL(kThreads)
void list_group_tiles_kernel(const int32_t* begin, int32_t experts, int32_t tokens_per_tile,
                             GroupTile* tiles, int32_t* tile_count) {
  auto* warp_tiles = reinterpret_cast<int32_t*>(dynamic_shared<uint8_t>());
  int32_t done = 0;
  for (int32_t round = 0; round < experts; round += kThreads) {
    const int32_t expert = round + thread_index();
    const int32_t first = expert < experts ? begin[expert] : 0;
    const int32_t count = expert < experts ? begin[expert + 1] - first : 0;
    const int32_t own = divide_up(count, tokens_per_tile);
    int32_t inclusive = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const int32_t before = shuffle_up(inclusive, step);
      if (lane_index() >= step) inclusive += before;
    }
    if (lane_index() == kWarp - 1) warp_tiles[warp_index()] = inclusive;
    sync_block();
    int32_t place = done + inclusive - own;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp_index()) place += warp_tiles[w];
      done += warp_tiles[w];
    }
    for (int32_t i = 0; i < own; ++i) {
      const int32_t left = count - i * tokens_per_tile;
      tiles[place + i] = {expert, first + i * tokens_per_tile,
                          left < tokens_per_tile ? left : tokens_per_tile};
    }
    sync_block();
  }
  if (thread_index() == 0) *tile_count = done;
}

}  // namespace

Status list_group_tiles(const int32_t* begin, int32_t experts, int tokens_per_tile,
                        GroupTile* tiles, int32_t* tile_count, Stream stream) {
  if (experts <= 0 || tokens_per_tile <= 0) {
    return refuse("list_group_tiles: experts and tokens_per_tile, expected at least 1");
  }
  return launch(list_group_tiles_kernel, {1}, kThreads, 4 * kWarps, stream, begin, experts,
                tokens_per_tile, tiles, tile_count);
}

}  // namespace vitrine::kernels::cuda
