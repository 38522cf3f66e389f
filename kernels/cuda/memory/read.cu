// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/memory/read.h"

#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // 16-byte loads under way in a thread
constexpr int kWordsPerLoad = 4;

struct Shared {
  uint32_t sums[kThreads / kWarp];
};

VITRINE_DEVICE uint32_t fold(const Words4& words) { return words.x ^ words.y ^ words.z ^ words.w; }

// Bytes: 4 a word. Each block reads runs of 16 KiB, a grid's width apart.
VITRINE_KERNEL(kThreads)
void read_kernel(const uint32_t* data, int64_t loads, uint32_t* sums) {
  constexpr int64_t kRun = kThreads * kUnroll;
  Shared& shared = *dynamic_shared<Shared>();
  uint32_t sum = 0;
  for (int64_t first = block_x() * kRun; first < loads; first += grid_x() * kRun) {
    Words4 words[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t load = first + u * kThreads + thread_index();
      words[u] = load < loads ? load16_once(data + load * kWordsPerLoad) : Words4{0, 0, 0, 0};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum ^= fold(words[u]);
  }
  for (int width = kWarp / 2; width > 0; width /= 2) sum ^= shuffle_xor(sum, width);
  if (lane_index() == 0) shared.sums[warp_index()] = sum;
  sync_block();
  if (thread_index() != 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) sum ^= shared.sums[warp];
  sums[block_x()] = sum;
}

}  // namespace

Status read_words(const void* data, int64_t words, uint32_t* sums, Stream stream) {
  if (words < kWordsPerLoad || words % kWordsPerLoad != 0) {
    return refuse("read_words: words, expected a multiple of 4");
  }
  return launch(read_kernel, {kReadBlocks}, kThreads, sizeof(Shared), stream,
                static_cast<const uint32_t*>(data), words / kWordsPerLoad, sums);
}

}  // namespace vitrine::kernels::cuda
