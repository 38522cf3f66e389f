// SPDX-License-Identifier: Apache-2.0
// Sums into the residual stream (docs/numerics.md, "Sum over experts"): the CPU's order and
// roundings, so the same bits.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// What is added to a token's row of the residual stream. All pointers are on the device; rows are
/// [n] float32.
struct Addend {
  enum class Kind : uint8_t {
    kNone,
    kScaled,   ///< residual + multiplier * x[token]
    kExperts,  ///< residual + multiplier * (((w[0]*slot[0] + w[1]*slot[1]) + …) + shared)
  };
  Kind kind = Kind::kNone;
  float multiplier = 1;
  const float* x = nullptr;  // [tokens, n]
  // kExperts: the rows that the experts' last products left.
  const float* slots = nullptr;  // [any, n]
  const int32_t* slot_rows =
      nullptr;                     // [tokens, top_k] rows of `slots`; null: token * top_k + slot
  const float* weights = nullptr;  // [tokens, top_k]
  int32_t top_k = 0;
  const float* shared = nullptr;       // [tokens, n]; null: no shared expert
  const float* shared_gate = nullptr;  // [tokens] logits; null: the shared expert counts whole
  float* shared_weights = nullptr;     // [tokens] what it counted; may be null
};

/// residual [tokens, n] float32 = residual + addend, each product and sum rounded.
Status add_to_residual(const Addend& addend, int32_t tokens, int64_t n, float* residual,
                       Stream stream);

}  // namespace vitrine::kernels::cuda
