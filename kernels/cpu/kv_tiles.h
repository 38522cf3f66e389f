// SPDX-License-Identifier: Apache-2.0
// Keys and values that attention reads tile by tile, as a codec gives them: what the walk is told
// of a codec. vitrine/kv_codec.h says what each of these means.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vitrine::kernels {

enum class TileKind : uint8_t { kFloat, kInt16, kInt8 };

/// Groups: of kInt8, elements that share a scale; 0: one scale for each element.
struct TileForm {
  TileKind kind = TileKind::kFloat;
  int32_t key_group = 32;
  int32_t value_group = 32;
};

struct Tile {
  const void* keys;
  const void* values;
  const float* key_scales;
  const float* value_scales;
};
struct TileRoom {
  void* keys;
  void* values;
  float* key_scales;
  float* value_scales;
};

enum class TileReading : uint8_t { kSkip, kClosed, kFine };

struct TileSource {
  const std::byte* open;
  const std::byte* closed;
  TileReading reading;
  int32_t kv_head;
  int32_t first;
  int32_t positions;
};

struct BlockMass {
  float max;
  float sum;
};

struct BlockChoice {
  int32_t kv_head;
  int32_t position;
  float scale;
  const float* query;
  int32_t blocks;
  TileReading* readings;    // [blocks]
  const BlockMass* masses;  // [blocks], or null
  const std::byte* base;
  const int32_t* table;
  int64_t stride;
};

/// Closed blocks that a query can choose among.
inline constexpr int32_t kMaxChosenBlocks = 4096;

/// A layer's codec. Its functions throw nothing.
struct TileCodec {
  const void* codec = nullptr;
  int32_t layer = 0;
  int32_t head_dim = 0;
  int64_t open_bytes = 0, closed_bytes = 0;  // of a block of one kv head; closed 0: none closes
  int32_t lag = 0;
  TileForm open, closed, fine;
  void (*decode)(const TileCodec&, const TileSource&, const TileRoom&, Tile&) = nullptr;
  void (*choose)(const TileCodec&, BlockChoice&) = nullptr;  // null: all are read
  void (*refine)(const TileCodec&, BlockChoice&) = nullptr;  // null: there is no second pass
};

/// Elements from one row of a tile's values to the next.
constexpr int32_t tile_row(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

}  // namespace vitrine::kernels
