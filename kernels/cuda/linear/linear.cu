// SPDX-License-Identifier: Apache-2.0
// Checks, the choice of a cut, and the choice of a kernel.
#include "kernels/cuda/linear/linear.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/linear_shapes.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int64_t kEnoughWarps = 1056;  // 8 an SM of a GPU with 132
constexpr int kRowsPerTile = 16;
constexpr int kMostSlices = 8;
constexpr int kManyTiles = 256;  // of 16 rows

const char* problem_of(const ProductArguments& a, const ProductTuning& tuning, int32_t experts) {
  const PackedLayout& layout = a.layout;
  if (layout.rows <= 0 || layout.cols <= 0 || experts <= 0) return "product: an empty matrix";
  if (a.rows.count <= 0) return "product: count of rows, expected at least 1";
  if (layout.kind == PackedKind::kBF16 && a.rows.format != ActivationFormat::kBF16) {
    return "product: bf16 weights take bf16 activations";
  }
  const bool is_e4m3 = layout.kind == PackedKind::kE4M3;
  if (is_e4m3 ? a.rows.format == ActivationFormat::kInt8
              : a.rows.format == ActivationFormat::kE4M3) {
    return "product: E4M3 weights take bf16 or E4M3 activations, and they alone the latter";
  }
  if (has_parts(layout.kind) && a.rows.format != ActivationFormat::kInt8) {
    return "product: Q2_K and Q6_K weights take int8 activations";
  }
  if (experts > 1 && a.rows.tile_experts == nullptr) return "product: several experts need tiles";
  if (a.rows.tile_experts != nullptr &&
      (a.rows.num_tiles == nullptr || a.rows.row_routes == nullptr || a.rows.routes_per_row < 1)) {
    return "product: tile_experts, num_tiles, row_routes and routes_per_row go together";
  }
  const int tokens = tuning.tokens_per_tile;
  if (tokens != 8 && tokens != 16 && tokens != 32) {
    return "product: tokens_per_tile, expected 8, 16 or 32";
  }
  const int slices = tuning.slices;
  if (slices != 1 && slices != 2 && slices != 4 && slices != 8) {
    return "product: slices, expected 1, 2, 4 or 8";
  }
  if (tuning.tokens <= 0) return "product: tokens of a tile, expected at least 1";
  if (a.epilogue.out_format == FloatFormat::kF16) return "product: out_format, float32 or bf16";
  if (a.epilogue.adds_residual && a.epilogue.out_format != FloatFormat::kF32) {
    return "product: a residual is float32";
  }
  return nullptr;
}

Status run(ProductArguments& a, const PackedMatrix& weight, int32_t experts, const Rows& rows,
           const Epilogue& epilogue, ProductTuning tuning, Stream stream) {
  a.layout = weight.layout;
  a.matrix[0] = static_cast<const uint8_t*>(weight.data);
  a.expert_bytes = weight.layout.bytes();
  a.rows = rows;
  a.epilogue = epilogue;
  if (tuning.tokens_per_tile == 0 && rows.tile_experts == nullptr) {
    tuning = choose_tuning(weight.layout, rows.count, experts);
  }
  if (const char* problem = problem_of(a, tuning, experts)) return refuse(problem);
  const int tokens = tuning.tokens_per_tile;
  const int64_t blocks_y = rows.tile_experts != nullptr
                               ? rows.count / tokens + (experts < rows.count ? experts : rows.count)
                               : divide_up<int64_t>(rows.count, tokens);
  if (blocks_y > 65535) return refuse("product: too many rows of activations for one launch");
  const auto y = static_cast<uint32_t>(blocks_y);
  const bool int8 = rows.format == ActivationFormat::kInt8;
  constexpr auto kA8 = ActivationFormat::kInt8;
  constexpr auto kA16 = ActivationFormat::kBF16;
  switch (weight.layout.kind) {
    case PackedKind::kInt4:
      return int8 ? launch_shape<PackedKind::kInt4, kA8>(a, tuning, y, stream)
                  : launch_shape<PackedKind::kInt4, kA16>(a, tuning, y, stream);
    case PackedKind::kInt3:
      return int8 ? launch_shape<PackedKind::kInt3, kA8>(a, tuning, y, stream)
                  : launch_shape<PackedKind::kInt3, kA16>(a, tuning, y, stream);
    case PackedKind::kInt8:
      return int8 ? launch_shape<PackedKind::kInt8, kA8>(a, tuning, y, stream)
                  : launch_shape<PackedKind::kInt8, kA16>(a, tuning, y, stream);
    case PackedKind::kMxfp4:
      return int8 ? launch_shape<PackedKind::kMxfp4, kA8>(a, tuning, y, stream)
                  : launch_shape<PackedKind::kMxfp4, kA16>(a, tuning, y, stream);
    case PackedKind::kE4M3:
      return rows.format == ActivationFormat::kE4M3
                 ? launch_shape<PackedKind::kE4M3, ActivationFormat::kE4M3>(a, tuning, y, stream)
                 : launch_shape<PackedKind::kE4M3, kA16>(a, tuning, y, stream);
    case PackedKind::kQ2K: return launch_shape<PackedKind::kQ2K, kA8>(a, tuning, y, stream);
    case PackedKind::kQ6K: return launch_shape<PackedKind::kQ6K, kA8>(a, tuning, y, stream);
    default: return launch_shape<PackedKind::kBF16, kA16>(a, tuning, y, stream);
  }
}

bool same_layout(const PackedLayout& a, const PackedLayout& b) {
  return a.kind == b.kind && a.scale_format == b.scale_format &&
         a.offset_format == b.offset_format && a.group_size == b.group_size && a.rows == b.rows &&
         a.cols == b.cols;
}

}  // namespace

ProductTuning choose_tuning(const PackedLayout& layout, int64_t count, int64_t experts) {
  const int64_t per_expert = divide_up(count, experts);
  const bool is_dense = experts == 1;
  ProductTuning tuning;
  // A large matrix is read once more for each tile of a dense product's tokens.
  const int64_t most_for_16 = is_dense && layout.tiles < kManyTiles ? 64 : 16;
  tuning.tokens_per_tile = per_expert <= 8 ? 8 : per_expert <= most_for_16 ? 16 : 32;
  if (is_dense) tuning.tokens = static_cast<int>(count < 64 ? count : 64);
  // Tiles of 16 rows (of each of gate and up) must cover the GPU with warps; where they do not,
  // several warps share the columns of one.
  const int64_t token_tiles = is_dense ? divide_up<int64_t>(count, tuning.tokens_per_tile)
                                       : (count < experts ? count : experts);
  const int64_t warps = divide_up<int64_t>(layout.rows, kRowsPerTile) * token_tiles;
  while (tuning.slices < kMostSlices && warps * tuning.slices < kEnoughWarps &&
         layout.chunks >= 4 * tuning.slices) {
    tuning.slices *= 2;
  }
  return tuning;
}

Status linear(const PackedMatrix& weight, int32_t experts, const Rows& rows,
              const Epilogue& epilogue, const ProductTuning& tuning, Stream stream) {
  ProductArguments arguments;
  return run(arguments, weight, experts, rows, epilogue, tuning, stream);
}

Status gate_up(const PackedMatrix& gate, const PackedMatrix& up, int32_t experts, const Rows& rows,
               const Epilogue& epilogue, const ProductTuning& tuning, Stream stream) {
  if (!same_layout(gate.layout, up.layout)) return refuse("gate_up: matrices of two layouts");
  if (epilogue.bias != nullptr || epilogue.adds_residual) {
    return refuse("gate_up: takes no bias and no residual");
  }
  ProductArguments arguments;
  arguments.gated = true;
  arguments.matrix[1] = static_cast<const uint8_t*>(up.data);
  return run(arguments, gate, experts, rows, epilogue, tuning, stream);
}

}  // namespace vitrine::kernels::cuda
