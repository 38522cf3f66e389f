// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/adapter/low_rank.h"

#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHalves = kThreads / kLanes;  // half warps, each at a dot of its own
constexpr int kRowsOfHalf = 16;

// The 16-lane dot of a half warp; n may differ between the halves.
VITRINE_DEVICE float dot(const float* w, const float* x, int64_t n) {
  float lane = 0.0f;
#pragma unroll 8
  for (int64_t i = lane_index() % kLanes; i < n; i += kLanes) lane = fma_rn(w[i], x[i], lane);
  return add_lanes(lane);
}

// This block's matrix; its a is null where there is nothing to do.
VITRINE_DEVICE LowRankMatrix matrix_of(const LowRank& low_rank, int64_t item) {
  const int32_t adapter = low_rank.adapter_of[item / low_rank.per_token];
  if (adapter < 0) return {};
  const int64_t expert = low_rank.experts != nullptr ? low_rank.experts[item] : 0;
  return low_rank.parts[block_z()].matrices[expert * low_rank.adapters + adapter];
}

// A block an item, eight rows of a and a part. Bytes: 4 * cols * rank an item and part.
VITRINE_KERNEL(kThreads)
void low_rank_inner_kernel(LowRank low_rank) {
  const int64_t item = block_x();
  const LowRankMatrix matrix = matrix_of(low_rank, item);
  if (matrix.a == nullptr) return;  // the whole block
  const int32_t row = block_y() * kHalves + thread_index() / kLanes;
  const bool is_there = row < matrix.rank;
  const int64_t n = is_there ? low_rank.cols : 0;
  const int64_t x_row = low_rank.x_of_items ? item : item / low_rank.per_token;
  const float sum = dot(matrix.a + row * n, low_rank.x + x_row * low_rank.x_stride, n);
  if (!is_there || lane_index() % kLanes != 0) return;
  low_rank.parts[block_z()].low[item * low_rank.max_rank + row] = sum;
}

// A block an item, 128 rows of b and a part. Bytes: 4 * rank * rows an item and part.
VITRINE_KERNEL(kThreads)
void low_rank_outer_kernel(LowRank low_rank) {
  const int64_t item = block_x();
  const LowRankMatrix matrix = matrix_of(low_rank, item);
  if (matrix.a == nullptr) return;  // the whole block
  const LowRankPart& part = low_rank.parts[block_z()];
  const float* low = part.low + item * low_rank.max_rank;
  float* out = part.out + item * part.out_stride;
  const int64_t first = static_cast<int64_t>(block_y()) * kHalves * kRowsOfHalf;
  for (int j = 0; j < kRowsOfHalf; ++j) {
    const int64_t row = first + j * kHalves + thread_index() / kLanes;
    const bool is_there = row < part.rows;
    const int64_t n = is_there ? matrix.rank : 0;
    const float sum = dot(matrix.b + row * n, low, n);
    if (is_there && lane_index() % kLanes == 0) out[row] = out[row] + matrix.scale * sum;
  }
}

}  // namespace

Status add_low_rank(const LowRank& low_rank, int32_t tokens, Stream stream) {
  if (tokens < 1) return refuse("add_low_rank: tokens, expected at least 1");
  if (low_rank.num_parts < 1 || low_rank.num_parts > kMaxLowRankParts) {
    return refuse("add_low_rank: num_parts, expected 1 to 3");
  }
  if (low_rank.max_rank < 1 || low_rank.max_rank > kMaxLowRank) {
    return refuse("add_low_rank: max_rank, expected 1 to 4,096");
  }
  int64_t rows = 0;
  for (int32_t i = 0; i < low_rank.num_parts; ++i) {
    rows = low_rank.parts[i].rows > rows ? low_rank.parts[i].rows : rows;
  }
  const auto items = static_cast<uint32_t>(tokens * low_rank.per_token);
  const auto parts = static_cast<uint32_t>(low_rank.num_parts);
  const auto blocks = [](int64_t all, int each) {
    return static_cast<uint32_t>(divide_up<int64_t>(all, each));
  };
  const Status status =
      launch(low_rank_inner_kernel, {items, blocks(low_rank.max_rank, kHalves), parts}, kThreads, 0,
             stream, low_rank);
  if (!status.ok()) return status;
  return launch(low_rank_outer_kernel, {items, blocks(rows, kHalves * kRowsOfHalf), parts},
                kThreads, 0, stream, low_rank);
}

}  // namespace vitrine::kernels::cuda
