// SPDX-License-Identifier: Apache-2.0
// Packing of the block formats of published files into tiles; runs once at load.
#include <cstring>

#include "blocks/list.h"
#include "packed.h"

// Into each format's loop, whose constants then fold.
#define VITRINE_INLINE inline __attribute__((always_inline))

namespace vitrine::kernels {
namespace {

using blocks::half_of;
using blocks::is_finite_half;
using blocks::take_nibbles;

/// One block as it stands in a file: its stored numbers, in column order, and what they mean.
struct Block {
  uint8_t numbers[kSuperCols];
  uint16_t d = 0;           // float16; of kMxfp4 the exponent
  uint16_t min = 0;         // float16
  uint8_t scales[16] = {};  // of kQ2K the minimums too
  uint8_t minimums[8] = {};
};

/// What becomes of a format that has kernels of its own.
struct Shape {
  BlockFormat format;
  int cols, bytes;
  WeightFormat packed;
  ScaleFormat scales = ScaleFormat::kF16;
  OffsetFormat offsets = OffsetFormat::kNone;
};

constexpr Shape kShapes[] = {
    {BlockFormat::kQ4_0, 32, 18, WeightFormat::kInt4},
    {BlockFormat::kQ4_1, 32, 20, WeightFormat::kInt4, ScaleFormat::kF16, OffsetFormat::kF16},
    {BlockFormat::kQ8_0, 32, 34, WeightFormat::kInt8},
    {BlockFormat::kQ2_K, 256, 84, WeightFormat::kQ2K},
    {BlockFormat::kQ4_K, 256, 144, WeightFormat::kQ4K},
    {BlockFormat::kQ6_K, 256, 210, WeightFormat::kQ6K},
    {BlockFormat::kMxfp4, 32, 17, WeightFormat::kMxfp4},
};

/// Null for those that are multiplied as they are (blocks/).
constexpr const Shape* find_shape(BlockFormat format) {
  for (const Shape& shape : kShapes) {
    if (shape.format == format) return &shape;
  }
  return nullptr;
}

/// Eight scales and eight minimums of six bits.
void read_scales_and_minimums(const uint8_t* packed, Block* block) {
  for (int u = 0; u < 8; ++u) {
    const auto [scale, minimum] = blocks::scale_and_minimum(packed, u);
    block->scales[u] = static_cast<uint8_t>(scale);
    block->minimums[u] = static_cast<uint8_t>(minimum);
  }
}

/// 256 numbers of two bits: 128 share 32 bytes.
void read_two_bits(const uint8_t* bytes, uint8_t* numbers) {
  for (int i = 0; i < kSuperCols; ++i) {
    numbers[i] = bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  }
}

void read_q2k(const uint8_t* bytes, Block* block) {
  memcpy(block->scales, bytes, 16);
  read_two_bits(bytes + 16, block->numbers);
  block->d = half_of(bytes + 80);
  block->min = half_of(bytes + 82);
}

void read_q4k(const uint8_t* bytes, Block* block) {
  block->d = half_of(bytes);
  block->min = half_of(bytes + 2);
  read_scales_and_minimums(bytes + 4, block);
  for (int i = 0; i < 4; ++i) take_nibbles(bytes + 16 + 32 * i, 32, block->numbers + 64 * i);
}

void read_q6k(const uint8_t* bytes, Block* block) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = bytes + 64 * half;
    const uint8_t* high = bytes + 128 + 32 * half;
    uint8_t* out = block->numbers + 128 * half;
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<uint8_t>((low[i] & 15) | (high[i] & 3) << 4);
      out[i + 32] = static_cast<uint8_t>((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
      out[i + 64] = static_cast<uint8_t>(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
      out[i + 96] = static_cast<uint8_t>(low[i + 32] >> 4 | high[i] >> 6 << 4);
    }
  }
  memcpy(block->scales, bytes + 192, 16);
  block->d = half_of(bytes + 208);
}

VITRINE_INLINE void read_block(BlockFormat format, const uint8_t* bytes, Block* block) {
  switch (format) {
    case BlockFormat::kQ4_0:
      block->d = half_of(bytes);
      return take_nibbles(bytes + 2, 16, block->numbers);
    case BlockFormat::kQ4_1:
      block->d = half_of(bytes);
      block->min = half_of(bytes + 2);
      return take_nibbles(bytes + 4, 16, block->numbers);
    case BlockFormat::kQ8_0:
      block->d = half_of(bytes);
      for (int i = 0; i < 32; ++i) block->numbers[i] = bytes[2 + i] ^ 0x80;
      return;
    case BlockFormat::kMxfp4:
      block->d = bytes[0];
      return take_nibbles(bytes + 1, 16, block->numbers);
    case BlockFormat::kQ2_K: return read_q2k(bytes, block);
    case BlockFormat::kQ4_K: return read_q4k(bytes, block);
    case BlockFormat::kQ6_K: return read_q6k(bytes, block);
    default: __builtin_unreachable();
  }
}

/// Writes row r of a unit: 32 numbers.
VITRINE_INLINE void store_unit(WeightFormat format, const uint8_t* numbers, int r, uint8_t* unit) {
  if (format == WeightFormat::kInt8) {
    for (int i = 0; i < 8; ++i) memcpy(unit + 64 * i + 4 * r, numbers + 4 * i, 4);
    return;
  }
  if (format == WeightFormat::kQ2K) return blocks::put_two_bits(unit, r, numbers);
  blocks::put_nibbles(unit, r, numbers);
  if (format == WeightFormat::kQ6K) blocks::put_two_bits(unit + 256, r, numbers, 4);
}

/// Writes what block `index` of row r means beside its tile.
VITRINE_INLINE void store_meaning(const Weight& weight, const Shape& shape, const Block& block,
                                  int64_t tile, int64_t index, int r, uint8_t* scales,
                                  uint8_t* offsets) {
  const int64_t entry = tile * (weight.cols / shape.cols) + index;
  switch (shape.packed) {
    case WeightFormat::kQ2K: {
      uint8_t* out = scales + entry * kQ2KScaleBytes;
      memcpy(out + 2 * r, &block.d, 2);
      memcpy(out + 32 + 2 * r, &block.min, 2);
      for (int g = 0; g < 16; ++g) out[64 + 16 * g + r] = block.scales[g];
      return;
    }
    case WeightFormat::kQ4K: {
      uint8_t* out = scales + entry * kQ4KScaleBytes;
      memcpy(out + 2 * r, &block.d, 2);
      memcpy(out + 32 + 2 * r, &block.min, 2);
      for (int g = 0; g < 8; ++g) {
        out[64 + 16 * g + r] =
            static_cast<uint8_t>((block.scales[g] & 15) | (block.minimums[g] & 15) << 4);
      }
      for (int g = 0; g < 8; g += 2) {
        out[192 + 8 * g + r] =
            static_cast<uint8_t>(block.scales[g] >> 4 | block.minimums[g] >> 4 << 2 |
                                 block.scales[g + 1] >> 4 << 4 | block.minimums[g + 1] >> 4 << 6);
      }
      return;
    }
    case WeightFormat::kQ6K: {
      uint8_t* out = scales + entry * kQ6KScaleBytes;
      memcpy(out + 2 * r, &block.d, 2);
      for (int g = 0; g < 16; ++g) out[32 + 16 * g + r] = block.scales[g];
      return;
    }
    case WeightFormat::kMxfp4:
      scales[entry * kTileRows + r] = static_cast<uint8_t>(block.d);
      return;
    default: break;
  }
  memcpy(scales + 2 * (entry * kTileRows + r), &block.d, 2);
  if (offsets != nullptr) memcpy(offsets + 2 * (entry * kTileRows + r), &block.min, 2);
}

/// pack_blocks of one format, so that all its constants are known: twice as fast.
template <BlockFormat kFormat>
int64_t pack_tiles(const Weight& weight, int64_t row_begin, int64_t row_end, const uint8_t* blocks,
                   uint8_t* data, uint8_t* scales, uint8_t* offsets) {
  constexpr Shape shape = *find_shape(kFormat);
  const int64_t row_bytes = weight.cols / shape.cols * shape.bytes;
  constexpr int64_t unit = unit_bytes(shape.packed);
  const int64_t tile_bytes = weight.cols / kUnitCols * unit;
  const int64_t last_tile = row_end == weight.rows ? tile_count(row_end) : row_end / kTileRows;
  int64_t bad_row = -1;
  Block block;
  for (int64_t tile = row_begin / kTileRows; tile < last_tile; ++tile) {
    uint8_t* out = data + tile * tile_bytes;
    for (int64_t b = 0; b * shape.cols < weight.cols; ++b) {
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t row = tile * kTileRows + r;
        if (row < row_end) {
          const uint8_t* source = blocks + (row - row_begin) * row_bytes;
          read_block(kFormat, source + b * shape.bytes, &block);
          const bool is_finite = is_finite_half(block.d) && is_finite_half(block.min);
          if (!is_finite && (bad_row < 0 || row < bad_row)) bad_row = row;
        } else {
          block = {};  // zeros, with a scale of zero or next to it
        }
        for (int64_t c = 0; c < shape.cols; c += kUnitCols) {
          store_unit(shape.packed, block.numbers + c, r,
                     out + (b * shape.cols + c) / kUnitCols * unit);
        }
        store_meaning(weight, shape, block, tile, b, r, scales, offsets);
      }
    }
  }
  return bad_row;
}

/// Packs a format that is multiplied as it stands.
template <class Format>
int64_t pack_as_they_are(const Weight& weight, int64_t row_begin, int64_t row_end,
                         const uint8_t* blocks, uint8_t* data, uint8_t* scales, uint8_t*) {
  const int64_t per_row = weight.cols / Format::kCols;
  constexpr int64_t kBlockUnits = Format::kCols / kUnitCols * Format::kUnitBytes;
  const int64_t last_tile = row_end == weight.rows ? tile_count(row_end) : row_end / kTileRows;
  int64_t bad_row = -1;
  for (int64_t tile = row_begin / kTileRows; tile < last_tile; ++tile) {
    for (int64_t b = 0; b < per_row; ++b) {
      uint8_t* units = data + (tile * per_row + b) * kBlockUnits;
      uint8_t* block_scales = scales + (tile * per_row + b) * Format::kScaleBytes;
      memset(units, 0, kBlockUnits);
      memset(block_scales, 0, Format::kScaleBytes);
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t row = tile * kTileRows + r;
        if (row >= row_end) break;
        const uint8_t* source = blocks + ((row - row_begin) * per_row + b) * Format::kBytes;
        const bool is_finite = Format::pack(source, r, units, block_scales);
        if (!is_finite && (bad_row < 0 || row < bad_row)) bad_row = row;
      }
    }
  }
  return bad_row;
}

using PackTiles = int64_t (*)(const Weight&, int64_t, int64_t, const uint8_t*, uint8_t*, uint8_t*,
                              uint8_t*);

PackTiles find_pack_tiles(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0: return pack_tiles<BlockFormat::kQ4_0>;
    case BlockFormat::kQ4_1: return pack_tiles<BlockFormat::kQ4_1>;
    case BlockFormat::kQ8_0: return pack_tiles<BlockFormat::kQ8_0>;
    case BlockFormat::kQ2_K: return pack_tiles<BlockFormat::kQ2_K>;
    case BlockFormat::kQ4_K: return pack_tiles<BlockFormat::kQ4_K>;
    case BlockFormat::kQ6_K: return pack_tiles<BlockFormat::kQ6_K>;
    case BlockFormat::kMxfp4: return pack_tiles<BlockFormat::kMxfp4>;
    default: break;
  }
  PackTiles pack = nullptr;
  blocks::with_format(format, [&]<class Format>() { pack = pack_as_they_are<Format>; });
  return pack;
}

}  // namespace

bool has_block_format(uint32_t ggml_type) {
  const auto format = static_cast<BlockFormat>(ggml_type);
  return find_shape(format) != nullptr || blocks::find_shape(format).cols != 0;
}

Weight block_weight(BlockFormat format, int64_t rows, int64_t cols) {
  Weight weight = {.format = WeightFormat::kBlocks,
                   .group_size = kUnitCols,
                   .rows = rows,
                   .cols = cols,
                   .block_format = format};
  if (const Shape* shape = find_shape(format)) {
    weight.format = shape->packed;
    weight.scale_format = shape->scales;
    weight.offset_format = shape->offsets;
  }
  return weight;
}

int64_t block_cols(BlockFormat format) {
  const Shape* shape = find_shape(format);
  return shape != nullptr ? shape->cols : blocks::find_shape(format).cols;
}

int64_t block_row_bytes(BlockFormat format, int64_t cols) {
  const Shape* shape = find_shape(format);
  const int64_t bytes = shape != nullptr ? shape->bytes : blocks::find_shape(format).bytes;
  return cols / block_cols(format) * bytes;
}

int64_t pack_blocks(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
                    const void* blocks, void* data, void* scales, void* offsets) {
  return find_pack_tiles(format)(weight, row_begin, row_end, static_cast<const uint8_t*>(blocks),
                                 static_cast<uint8_t*>(data), static_cast<uint8_t*>(scales),
                                 static_cast<uint8_t*>(offsets));
}

}  // namespace vitrine::kernels
