// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kv/rope_kv.h"

#include "kernels/cuda/floats.h"
#include "kernels/cuda/integer_scale.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr int kMaxHeadDim = 256;

struct Shared {
  float heads[kWarpsPerBlock][kMaxHeadDim];
};

enum class Part : uint8_t { kQuery, kKey, kValue };

VITRINE_DEVICE float clamp(float x, float clip) {
  if (clip <= 0.0f) return x;
  x = x < -clip ? -clip : x;
  return clip < x ? clip : x;
}

// The head that `x` holds, number `head` of its part, in place: norm, then clamp, then rotation for
// queries and keys. A warp.
VITRINE_DEVICE void prepare_head(const RopeKv& step, Part part, int32_t head, int64_t token,
                                 float* x) {
  const int32_t n = step.cache.head_dim;
  const float* weight = part == Part::kQuery ? step.query_norm
                        : part == Part::kKey ? step.key_norm
                                             : nullptr;
  float inverse = 1.0f;
  if (weight != nullptr && step.norm_whole_row) {
    // Each warp of the row adds it up again: cheaper than a launch of its own.
    const int32_t heads = part == Part::kQuery ? step.heads : step.cache.kv_heads;
    const int64_t width = static_cast<int64_t>(heads) * n;
    const float* row = step.qkv + token * step.qkv_stride +
                       (part == Part::kQuery ? 0 : static_cast<int64_t>(step.heads) * n);
    const float mean = sum_of_squares_far(row, width) / static_cast<float>(width);
    inverse = 1.0f / square_root(mean + step.eps);
    weight += static_cast<int64_t>(head) * n;
  } else if (weight != nullptr) {
    const float mean = sum_of_squares(x, n) / static_cast<float>(n);
    inverse = 1.0f / square_root(mean + step.eps);
  }
  sync_warp();  // all have read what is rewritten now
  for (int32_t d = lane_index(); d < n; d += kWarp) {
    float value = x[d];
    if (weight != nullptr) value = (value * inverse) * weight[d];
    x[d] = clamp(value, step.clip);
  }
  sync_warp();
  if (part == Part::kValue) return;
  const int32_t half = step.rotary_dim / 2;
  const int64_t angle = static_cast<int64_t>(step.positions[token]) * half;
  for (int32_t d = lane_index(); d < half; d += kWarp) {
    const float cos = step.cos[angle + d], sin = step.sin[angle + d];
    const float a = x[d], b = x[d + half];
    x[d] = a * cos - b * sin;
    x[d + half] = b * cos + a * sin;
  }
  sync_warp();
}

/// A head as integers and their scale.
VITRINE_DEVICE void store_integers(const KvCache& cache, const float* x, void* plane,
                                   int64_t head_block, int32_t offset) {
  const int32_t n = cache.head_dim;
  auto* block = static_cast<uint8_t*>(plane) + head_block * kv_head_bytes(cache);
  const IntegerScale scale = scale_of_row(x, n);
  auto* numbers = reinterpret_cast<int16_t*>(block) + offset * n;
  for (int32_t d = lane_index(); d < n; d += kWarp) {
    numbers[d] = static_cast<int16_t>(number_of(x[d], scale.factor));
  }
  if (lane_index() == 0) {
    reinterpret_cast<float*>(block + kKvBlock * n * 2)[offset] = scale.scale;
  }
}

template <FloatFormat kFormat>
VITRINE_DEVICE void store_head(const float* x, int32_t n, void* to, int64_t at) {
  for (int32_t d = lane_index(); d < n; d += kWarp) store_element<kFormat>(to, at + d, x[d]);
}

/// A head's elements into the block that row `table` of the tables has for the position.
template <FloatFormat kCache>
VITRINE_DEVICE void write_head(const RopeKv& step, const float* x, void* plane, int32_t kv_head,
                               int32_t position, int64_t table) {
  const KvCache& cache = step.cache;
  const int64_t block = step.blocks.tables[table * step.blocks.stride + position / kKvBlock];
  const int64_t head_block = block * cache.kv_heads + kv_head;
  const int32_t offset = position % kKvBlock;
  if (cache.is_integers) return store_integers(cache, x, plane, head_block, offset);
  store_head<kCache>(x, cache.head_dim, plane, (head_block * kKvBlock + offset) * cache.head_dim);
}

// A warp a head of a token. Bytes a head: 4 * head_dim to read, and the cosines and sines; its
// elements to write. With a norm of whole rows every head reads its row besides, out of the L2
// cache, in head_dim * heads / 16 dependent FMAs (an estimated 1 us for 2,048).
template <FloatFormat kCache, FloatFormat kQuery>
VITRINE_KERNEL(kWarpsPerBlock* kWarp)
void rope_kv_kernel(RopeKv step) {
  Shared& shared = *dynamic_shared<Shared>();
  const KvCache& cache = step.cache;
  const int32_t n = cache.head_dim;
  const int64_t token = block_x();
  const int32_t head = block_y() * kWarpsPerBlock + warp_index();
  if (head >= step.heads + 2 * cache.kv_heads)
    return;  // whole warps; no barrier of the block follows
  const Part part = head < step.heads                    ? Part::kQuery
                    : head < step.heads + cache.kv_heads ? Part::kKey
                                                         : Part::kValue;
  float* x = shared.heads[warp_index()];
  const float* from = step.qkv + token * step.qkv_stride + static_cast<int64_t>(head) * n;
  for (int32_t d = lane_index(); d < n; d += kWarp) x[d] = from[d];
  sync_warp();
  const int32_t kv_head = head - step.heads - (part == Part::kValue ? cache.kv_heads : 0);
  prepare_head(step, part, part == Part::kQuery ? head : kv_head, token, x);
  if (part == Part::kQuery) {
    store_head<kQuery>(x, n, step.query, (token * step.heads + head) * n);
    return;
  }
  const int32_t position = step.positions[token];
  const int64_t own = step.blocks.sequences[token];
  void* plane = part == Part::kKey ? cache.keys : cache.values;
  write_head<kCache>(step, x, plane, kv_head, position, own);
  if (step.branches == nullptr) return;
  for (int32_t word = 0; word < kBranchWords; ++word) {
    uint32_t bits = step.branches[token * kBranchWords + word];
    for (int64_t table = own + 1 + 32 * word; bits != 0; ++table, bits >>= 1) {
      if ((bits & 1) != 0) write_head<kCache>(step, x, plane, kv_head, position, table);
    }
  }
}

}  // namespace

Status rope_kv_write(const RopeKv& step, int32_t tokens, Stream stream) {
  if (tokens < 1) return refuse("rope_kv_write: tokens, expected at least 1");
  const int32_t n = step.cache.head_dim;
  if (n < 2 || n > kMaxHeadDim || n % 2 != 0) {
    return refuse("rope_kv_write: head_dim, expected an even number, at most 256");
  }
  if (step.rotary_dim < 2 || step.rotary_dim > n || step.rotary_dim % 2 != 0) {
    return refuse("rope_kv_write: rotary_dim, expected an even number, at most head_dim");
  }
  const int32_t heads = step.heads + 2 * step.cache.kv_heads;
  if (step.heads < 1 || step.cache.kv_heads < 1) {
    return refuse("rope_kv_write: heads, expected at least 1");
  }
  const Dim3 grid{static_cast<uint32_t>(tokens),
                  static_cast<uint32_t>(divide_up(heads, kWarpsPerBlock))};
  return with_format(step.cache.format, [&](auto cache) {
    return with_format(step.query_format, [&](auto query) {
      return launch(rope_kv_kernel<decltype(cache)::value, decltype(query)::value>, grid,
                    kWarpsPerBlock * kWarp, sizeof(Shared), stream, step);
    });
  });
}

}  // namespace vitrine::kernels::cuda
