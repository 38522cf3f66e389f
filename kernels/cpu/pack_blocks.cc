// Packing of the block formats of published files into tiles; runs once at load.
#include <cstring>

#include "packed.h"

namespace vitrine::kernels {
namespace {

/// One block as it stands in a file: its stored numbers, in column order, and what they mean.
struct Block {
  uint8_t numbers[kSuperCols];
  uint16_t d = 0;    // float16; of kMxfp4 the exponent
  uint16_t min = 0;  // float16
  uint8_t scales[16] = {};
  uint8_t minimums[8] = {};
};

uint16_t load_half(const uint8_t* bytes) {
  uint16_t half;
  memcpy(&half, bytes, sizeof(half));
  return half;
}

/// Low nibbles are the first half of the columns, high nibbles the second.
void read_nibbles(const uint8_t* bytes, int half, uint8_t* numbers) {
  for (int i = 0; i < half; ++i) {
    numbers[i] = bytes[i] & 15;
    numbers[half + i] = bytes[i] >> 4;
  }
}

void read_q4k(const uint8_t* bytes, Block* block) {
  block->d = load_half(bytes);
  block->min = load_half(bytes + 2);
  const uint8_t* packed = bytes + 4;  // 8 scales and 8 minimums of 6 bits
  for (int j = 0; j < 4; ++j) {
    block->scales[j] = packed[j] & 63;
    block->minimums[j] = packed[j + 4] & 63;
    block->scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
    block->minimums[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
  }
  for (int i = 0; i < 4; ++i) read_nibbles(bytes + 16 + 32 * i, 32, block->numbers + 64 * i);
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
  block->d = load_half(bytes + 208);
}

void read_block(BlockFormat format, const uint8_t* bytes, Block* block) {
  switch (format) {
    case BlockFormat::kQ4_0:
      block->d = load_half(bytes);
      return read_nibbles(bytes + 2, 16, block->numbers);
    case BlockFormat::kQ4_1:
      block->d = load_half(bytes);
      block->min = load_half(bytes + 2);
      return read_nibbles(bytes + 4, 16, block->numbers);
    case BlockFormat::kQ8_0:
      block->d = load_half(bytes);
      for (int i = 0; i < 32; ++i) block->numbers[i] = bytes[2 + i] ^ 0x80;
      return;
    case BlockFormat::kMxfp4:
      block->d = bytes[0];
      return read_nibbles(bytes + 1, 16, block->numbers);
    case BlockFormat::kQ4_K: return read_q4k(bytes, block);
    case BlockFormat::kQ6_K: return read_q6k(bytes, block);
  }
}

/// Writes what block `index` of row r means beside its tile.
void store_meaning(const Weight& weight, const Block& block, int64_t tile, int64_t index, int r,
                   uint8_t* scales, uint8_t* offsets) {
  const int64_t blocks = weight.cols / block_cols(weight.format);
  const int64_t entry = tile * blocks + index;
  switch (weight.format) {
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
    default:
      memcpy(scales + 2 * (entry * kTileRows + r), &block.d, 2);
      if (offsets != nullptr) memcpy(offsets + 2 * (entry * kTileRows + r), &block.min, 2);
  }
}

int64_t block_bytes(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0: return 18;
    case BlockFormat::kQ4_1: return 20;
    case BlockFormat::kQ8_0: return 34;
    case BlockFormat::kMxfp4: return 17;
    case BlockFormat::kQ4_K: return 144;
    case BlockFormat::kQ6_K: return 210;
  }
  return 0;
}

}  // namespace

Weight block_weight(BlockFormat format, int64_t rows, int64_t cols) {
  Weight weight{.scale_format = ScaleFormat::kF16, .group_size = 32, .rows = rows, .cols = cols};
  switch (format) {
    case BlockFormat::kQ4_1: weight.offset_format = OffsetFormat::kF16; [[fallthrough]];
    case BlockFormat::kQ4_0: weight.format = WeightFormat::kInt4; break;
    case BlockFormat::kQ8_0: weight.format = WeightFormat::kInt8; break;
    case BlockFormat::kMxfp4: weight.format = WeightFormat::kMxfp4; break;
    case BlockFormat::kQ4_K: weight.format = WeightFormat::kQ4K; break;
    case BlockFormat::kQ6_K: weight.format = WeightFormat::kQ6K; break;
  }
  return weight;
}

int64_t block_cols(WeightFormat format) {
  return format == WeightFormat::kQ4K || format == WeightFormat::kQ6K ? kSuperCols : kUnitCols;
}

int64_t block_row_bytes(BlockFormat format, int64_t cols) {
  return cols / block_cols(block_weight(format, 0, 0).format) * block_bytes(format);
}

void pack_blocks(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
                 const void* blocks, void* data, void* scales, void* offsets) {
  const int64_t width = block_cols(weight.format);
  const int64_t row_bytes = block_row_bytes(format, weight.cols);
  const int64_t unit = unit_bytes(weight.format);
  const int64_t tile_bytes = weight.cols / kUnitCols * unit;
  const int64_t end = row_end == weight.rows ? tile_count(weight.rows) * kTileRows
                                             : row_end / kTileRows * kTileRows;
  for (int64_t row = row_begin; row < end; ++row) {
    const int64_t tile = row / kTileRows;
    const int r = static_cast<int>(row % kTileRows);
    auto* out = static_cast<uint8_t*>(data) + tile * tile_bytes;
    if (r == 0) memset(out, 0, static_cast<size_t>(tile_bytes));
    const auto* source = static_cast<const uint8_t*>(blocks) + (row - row_begin) * row_bytes;
    for (int64_t b = 0; b * width < weight.cols; ++b) {
      Block block{};  // of a row past the end: zeros, with a scale of zero or next to it
      if (row < row_end) read_block(format, source + b * block_bytes(format), &block);
      for (int64_t c = 0; c < width; ++c) {
        const int64_t col = b * width + c;
        store_number(weight.format, out + col / kUnitCols * unit, r,
                     static_cast<int>(col % kUnitCols), block.numbers[c]);
      }
      store_meaning(weight, block, tile, b, r, static_cast<uint8_t*>(scales),
                    static_cast<uint8_t*>(offsets));
    }
  }
}

}  // namespace vitrine::kernels
