// SPDX-License-Identifier: Apache-2.0
// What low-rank adapters (Hu et al. 2021) add to a product: y += scale * b (a x), for each token by
// its own adapter.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// One adapter's of one matrix [rows, cols]. a null: it leaves the matrix as it is.
struct LowRankMatrix {
  const float* a = nullptr;  ///< [rank, cols]
  const float* b = nullptr;  ///< [rows, rank]
  int32_t rank = 0;
  float scale = 0;
};

/// One of up to three products that read the same rows.
struct LowRankPart {
  const LowRankMatrix* matrices = nullptr;  ///< [experts, adapters] on the device
  float* low = nullptr;                     ///< [items, max_rank] scratch
  float* out = nullptr;                     ///< [items, out_stride]
  int64_t out_stride = 0;
  int64_t rows = 0;
};

inline constexpr int kMaxLowRankParts = 3;
inline constexpr int32_t kMaxLowRank = 4096;

/// Items are tokens, or routes: token * per_token + slot.
struct LowRank {
  int32_t num_parts = 0;
  LowRankPart parts[kMaxLowRankParts] = {};
  int32_t adapters = 0;
  int32_t max_rank = 0;
  const int32_t* adapter_of = nullptr;  ///< [tokens] -1: none
  int32_t per_token = 1;
  const int32_t* experts = nullptr;  ///< [items]; null: one matrix for all
  const float* x = nullptr;          ///< [tokens or items, x_stride]
  int64_t x_stride = 0;
  int64_t cols = 0;
  bool x_of_items = false;
};

/// Two kernels. Both products are the CPU kernels' 16-lane dots, the sum is rounded as there: their
/// bits.
Status add_low_rank(const LowRank& low_rank, int32_t tokens, Stream stream);

}  // namespace vitrine::kernels::cuda
