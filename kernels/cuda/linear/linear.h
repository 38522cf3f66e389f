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
};

/// Some tokens of one expert: places [first, first + count) of the sorted ones.
struct GroupTile {
  int32_t expert;
  int32_t first;
  int32_t count;
};

/// Which input rows go where. Place p is input row in_rows[p] and output row out_rows[p] (p where
/// null).
struct Rows {
  ActivationFormat format = ActivationFormat::kInt8;
  const void* activations = nullptr;  // 16-byte aligned
  const int32_t* in_rows = nullptr;
  const int32_t* out_rows = nullptr;
  /// Dense: places 0 … count - 1, or fewer where *device_count is less. Grouped: the places at
  /// most.
  int32_t count = 0;
  const int32_t* device_count = nullptr;
  /// Grouped: *tile_count tiles of at most `tokens_per_tile` places, made by list_group_tiles.
  const GroupTile* tiles = nullptr;
  const int32_t* tile_count = nullptr;
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
  int tokens_per_tile = 0;  // 8, 16, 32 or 64; 0: by the number of places
  bool split_k = false;     // blocks of 16 rows whose 4 warps share K; tokens_per_tile 8 only
};

/// The cut for `places` rows of input over `groups` experts (1: dense).
ProductTuning choose_tuning(const PackedLayout& layout, int64_t places, int64_t groups, bool gated);

/// Tiles of a grouped product at most.
constexpr int64_t most_group_tiles(int64_t places, int64_t experts, int tokens_per_tile) {
  const int64_t full = places / tokens_per_tile + experts;
  return places < full ? places : full;
}

/// Cuts each expert's places [begin[e], begin[e + 1]) into tiles: `tiles` holds at least
/// most_group_tiles(). Experts without places get none. begin: [experts + 1], on the device.
Status list_group_tiles(const int32_t* begin, int32_t experts, int tokens_per_tile,
                        GroupTile* tiles, int32_t* tile_count, Stream stream);

/// out = weight . x, with the epilogue. `experts` is 1 for a dense product.
Status linear(const PackedMatrix& weight, int32_t experts, const Rows& rows,
              const Epilogue& epilogue, const ProductTuning& tuning, Stream stream);

/// out = silu(gate . x) * (up . x), both products in one launch; the matrices have one layout.
/// No bias, no residual.
Status gate_up(const PackedMatrix& gate, const PackedMatrix& up, int32_t experts, const Rows& rows,
               const Epilogue& epilogue, const ProductTuning& tuning, Stream stream);

}  // namespace vitrine::kernels::cuda
