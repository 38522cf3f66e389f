// SPDX-License-Identifier: Apache-2.0
// Products of packed matrices with rows of activations, on tensor cores.
//
// Two ways to the same bytes of weights:
// - int8 activations (W4A8, W8A8, MXFP4A8): integer products, exact, then the order of groups of
//   docs/numerics.md: bit for bit what the CPU kernels compute. This is the invariant path.
// - bf16 activations (W4A16, W8A16, MXFP4A16, BF16): float32 sums by the tensor core within a
// group,
//   groups in ascending order. The same bits whatever else is in the batch, but not the CPU's; it
//   has other names in a plan.
// A small batch waits for memory: both read the same weights, and int8 half the activations, so at
// 1 to 16 tokens they should take the same time. In a large one int8 has twice bf16's tensor
// throughput, less three float operations for each group and element (groups of 32: about even).
//
// A result depends on its weight row, its token and nothing else: each output is one chain over the
// groups in ascending order, whichever block shape computes it, so every variant has the same bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/activation_rows.h"
#include "kernels/cuda/linear/packed_matrix.h"
#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// A packed matrix on the device, or one for each expert, one behind another.
struct PackedMatrix {
  PackedLayout layout;
  const void* data = nullptr;  // layout.bytes() each, 16-byte aligned
};

enum class ActivationFormat : uint8_t {
  kInt8,  ///< rows of int8_row_bytes(cols)
  kBF16,  ///< rows of bf16_row_bytes(cols)
  kE4M3,  ///< rows of int8_row_bytes(cols), groups of 128; from compute capability 8.9 on
};

/// Which rows go where. Dense: input row i to output row i. Grouped by expert (router/router.h):
/// tile i is rows [i, i + 1) * tokens_per_tile of `row_routes`, all of expert tile_experts[i]; a
/// route reads input row route / routes_per_row and goes to output row `route`. Empty tiles and
/// padding cost nothing but a block that ends at once.
struct Rows {
  ActivationFormat format = ActivationFormat::kInt8;
  const void* activations = nullptr;  // 16-byte aligned
  int32_t count = 0;                  // dense: rows; grouped: routes at most
  /// Dense: fewer than `count` rows where this is less.
  const int32_t* device_count = nullptr;
  // Grouped, on the device:
  const int32_t* tile_experts = nullptr;  // -1: none
  const int32_t* num_tiles = nullptr;     // tiles behind it are not read
  const int32_t* row_routes = nullptr;    // -1: padding, behind a tile's routes
  int32_t routes_per_row = 1;  // top_k where the input is a row a token, 1 where it is one a route
};

/// value = dot + bias; then out = value, or out = out + residual_scale * value.
struct Epilogue {
  const float* bias = nullptr;  // by weight row
  int64_t expert_bias = 0;      // from one expert's bias to the next's, elements
  bool adds_residual = false;   // out is float32
  float residual_scale = 1.0f;
  void* out = nullptr;  // out[out_row * out_stride + weight row]
  int64_t out_stride = 0;
  FloatFormat out_format = FloatFormat::kF32;  // or kBF16, rounded to nearest even
};

/// How a product is cut. Every cut gives the same bits; which one is fastest is another matter.
struct ProductTuning {
  int tokens_per_tile = 0;  // 8, 16 or 32; 0: chosen (dense only)
  int slices = 1;           // warps that share a tile's columns: 1, 2, 4 or 8; below 32 tokens only
  int tokens = 64;          // that a tile has at most, where less than tokens_per_tile is known
};

/// The cut for `count` rows, or routes over `experts` experts (1: dense).
ProductTuning choose_tuning(const PackedLayout& layout, int64_t count, int64_t experts);

/// out = weight . x, with the epilogue. `experts` is 1 for a dense product.
Status linear(const PackedMatrix& weight, int32_t experts, const Rows& rows,
              const Epilogue& epilogue, const ProductTuning& tuning, Stream stream);

/// out = silu(gate . x) * (up . x), both products in one launch; the matrices have one layout.
/// No bias, no residual.
Status gate_up(const PackedMatrix& gate, const PackedMatrix& up, int32_t experts, const Rows& rows,
               const Epilogue& epilogue, const ProductTuning& tuning, Stream stream);

}  // namespace vitrine::kernels::cuda
