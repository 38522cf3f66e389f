// SPDX-License-Identifier: Apache-2.0
// What the product kernels are given, and where a block finds its tokens.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/linear.h"

namespace vitrine::kernels::cuda {

/// By value to every kernel of the family.
struct ProductArguments {
  PackedLayout layout;
  const uint8_t* matrix[2] = {};  // [1]: `up` of gate_up
  int64_t expert_bytes = 0;       // from one expert's matrix to the next's
  Rows rows;
  Epilogue epilogue;
  bool gated = false;
};

constexpr bool has_records(ActivationFormat activations) {
  return activations != ActivationFormat::kBF16;  // of bytes
}
/// Bytes of a token's 128 columns.
constexpr int chunk_row_bytes(ActivationFormat activations) {
  return has_records(activations) ? kRecordBytes : 2 * kChunkCols;
}

/// A block's tile of tokens: whose expert it is, and how many rows there are (dense).
struct TokenTile {
  int32_t expert = -1;  // -1: the block has nothing to do
  int32_t first = 0;    // place of its first token
  int32_t count = 0;    // dense: rows in all
};

VITRINE_DEVICE TokenTile find_tile(const Rows& rows, int tile, int tokens) {
  TokenTile found;
  found.first = tile * tokens;
  if (rows.tile_experts != nullptr) {
    if (tile < *rows.num_tiles) found.expert = rows.tile_experts[tile];
    return found;
  }
  found.count = rows.count;
  if (rows.device_count != nullptr && *rows.device_count < found.count) {
    found.count = *rows.device_count;
  }
  if (found.first < found.count) found.expert = 0;
  return found;
}

/// The output row of a token of the tile; -1: none. Those are behind the others.
VITRINE_DEVICE int32_t out_row_of(const Rows& rows, const TokenTile& tile, int token) {
  const int32_t place = tile.first + token;
  if (rows.tile_experts != nullptr) return rows.row_routes[place];
  return place < tile.count ? place : -1;
}
/// The input row of a token of the tile; where there is none, that of the first.
VITRINE_DEVICE int32_t in_row_or_first(const Rows& rows, const TokenTile& tile, int token) {
  int32_t out_row = out_row_of(rows, tile, token);
  if (out_row < 0) out_row = out_row_of(rows, tile, 0);
  return rows.tile_experts == nullptr ? out_row : out_row / rows.routes_per_row;
}

}  // namespace vitrine::kernels::cuda
