// SPDX-License-Identifier: Apache-2.0
// Packing of compressed-tensors' words into tiles, at load or strip by strip.
#include <cstring>

#include "packed.h"
#include "word_tiles.h"

namespace vitrine::kernels {
namespace {

template <typename Bits>
Bits load(const uint8_t* bytes) {
  Bits bits;
  memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

/// Nibbles 0 to 3 become the low halves of the four bytes, 4 to 7 the high ones.
uint32_t deal_nibbles(uint32_t word) {
  uint64_t spread = (word & 0xffff) | static_cast<uint64_t>(word >> 16) << 32;
  spread = (spread | spread << 8) & 0x00ff00ff00ff00ff;
  spread = (spread | spread << 4) & 0x0f0f0f0f0f0f0f0f;
  return static_cast<uint32_t>(spread) | static_cast<uint32_t>(spread >> 32) << 4;
}

template <WeightFormat kFormat>
void pack_tile(const uint8_t* words, int64_t rows, int64_t cols, uint8_t* tile) {
  constexpr int kPerWord = kFormat == WeightFormat::kInt4 ? 8 : 4;
  constexpr uint32_t kBias = kFormat == WeightFormat::kInt4 ? 0x88888888 : 0x80808080;
  const int64_t row_bytes = quantized_row_bytes(kFormat, cols);
  const auto deal = [](uint32_t word) {
    return kFormat == WeightFormat::kInt4 ? deal_nibbles(word) : word;
  };
  const int64_t whole = cols / kPerWord, all = padded_cols(cols) / kPerWord;
  for (int64_t w = 0; w < all; ++w, tile += 64) {
    uint32_t line[kTileRows];
    uint32_t kept = w < whole ? 0xffffffff : 0;
    if (w == whole) kept = (uint32_t{1} << (cols % kPerWord * (32 / kPerWord))) - 1;
    for (int r = 0; r < kTileRows; ++r) {
      const bool is_there = r < rows && kept != 0;
      const uint32_t word = is_there ? load<uint32_t>(words + r * row_bytes + 4 * w) : 0;
      line[r] = deal(is_there ? (word & kept) | (kBias & ~kept) : kBias);
    }
    memcpy(tile, line, sizeof(line));
  }
}

/// Spreads four numbers of three bits to a byte each.
uint32_t spread_three(uint32_t bits) {
  bits = (bits | bits << 10) & 0x003f003f;
  return (bits | bits << 5) & 0x07070707;
}

/// pack_tile of kInt3: a unit of a row is three words.
void pack_int3_tile(const uint8_t* words, int64_t rows, int64_t cols, uint8_t* tile) {
  constexpr uint32_t kBias[3] = {0x24924924, 0x49249249, 0x92492492};  // 4, 32 times
  constexpr int64_t kUnitBytes = 3 * kInt3Run;
  const int64_t row_bytes = quantized_row_bytes(WeightFormat::kInt3, cols);
  for (int64_t col = 0; col < cols; col += kUnitCols, tile += kUnitBytes) {
    const int64_t bits = 3 * (cols - col < kUnitCols ? cols - col : kUnitCols);
    for (int r = 0; r < kTileRows; ++r) {
      uint32_t word[3];
      for (int w = 0; w < 3; ++w) {
        const int64_t left = r < rows ? bits - 32 * w : 0;  // bits of this word that are numbers
        const uint32_t kept = left >= 32 ? 0xffffffff : left > 0 ? (uint32_t{1} << left) - 1 : 0;
        const uint32_t own =
            kept != 0 ? load<uint32_t>(words + r * row_bytes + col / 8 * 3 + 4 * w) : 0;
        word[w] = (own & kept) | (kBias[w] & ~kept);
      }
      const uint64_t low = word[0] | uint64_t{word[1]} << 32;
      const uint64_t high = word[1] >> 16 | uint64_t{word[2]} << 16;
      uint32_t fours[8];
      for (int f = 0; f < 4; ++f) {
        fours[f] = spread_three(static_cast<uint32_t>(low >> (12 * f)) & 0xfff);
        fours[4 + f] = spread_three(static_cast<uint32_t>(high >> (12 * f)) & 0xfff);
      }
      constexpr uint32_t kLow = 0x03030303, kHigh = 0x04040404;
      const uint32_t runs[3] = {
          fours[0] | fours[1] << 3 | (fours[6] & kLow) << 6,
          fours[2] | fours[3] << 3 | (fours[7] & kLow) << 6,
          fours[4] | fours[5] << 3 | (fours[6] & kHigh) << 4 | (fours[7] & kHigh) << 5};
      for (int i = 0; i < 3; ++i) memcpy(tile + kInt3Run * i + 4 * r, &runs[i], 4);
    }
  }
}

/// The scales of `rows` rows; the first of them with one whose exponent is all ones, or -1.
template <typename Bits>
int64_t pack_scales(const uint8_t* scales, int64_t rows, int64_t groups, Bits exponent,
                    uint8_t* tile) {
  int64_t bad_row = -1;
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      constexpr int64_t kSize = sizeof(Bits);
      const Bits bits = r < rows ? load<Bits>(scales + (r * groups + g) * kSize) : Bits{0};
      if ((bits & exponent) == exponent && bad_row < 0) bad_row = r;
      memcpy(tile + (g * kTileRows + r) * kSize, &bits, sizeof(bits));
    }
  }
  return bad_row;
}

int64_t pack_scales(ScaleFormat format, const uint8_t* scales, int64_t rows, int64_t groups,
                    uint8_t* tile) {
  switch (format) {
    case ScaleFormat::kF16: return pack_scales<uint16_t>(scales, rows, groups, 0x7c00, tile);
    case ScaleFormat::kBF16: return pack_scales<uint16_t>(scales, rows, groups, 0x7f80, tile);
    default: return pack_scales<uint32_t>(scales, rows, groups, 0x7f800000, tile);
  }
}

}  // namespace

int64_t quantized_row_bytes(WeightFormat format, int64_t cols) {
  if (format == WeightFormat::kE4M3) return cols;
  if (format == WeightFormat::kInt3) return (3 * cols + 31) / 32 * 4;
  const int64_t per_word = format == WeightFormat::kInt4 ? 8 : 4;
  return (cols + per_word - 1) / per_word * 4;
}

void pack_word_tile(WeightFormat format, const uint8_t* words, int64_t rows, int64_t cols,
                    uint8_t* tile) {
  if (format == WeightFormat::kInt3) {
    pack_int3_tile(words, rows, cols, tile);
  } else if (format == WeightFormat::kInt4) {
    pack_tile<WeightFormat::kInt4>(words, rows, cols, tile);
  } else {
    pack_tile<WeightFormat::kInt8>(words, rows, cols, tile);
  }
}

int64_t pack_word_tiles(const Weight& weight, int64_t row_begin, int64_t row_end,
                        const WordRows& rows, PackWordTile pack, void* data, void* scales,
                        void* offsets) {
  const int64_t groups = group_count(weight.cols, weight.group_size);
  const int64_t row_bytes = quantized_row_bytes(weight.format, weight.cols);
  const int64_t tile_bytes = padded_cols(weight.cols) / kUnitCols * unit_bytes(weight.format);
  const int64_t scale_bytes = scale_size(weight.scale_format);
  int64_t bad_row = -1;
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const int64_t tile = row / kTileRows, in = row - row_begin;
    const int64_t count = row_end - row < kTileRows ? row_end - row : kTileRows;
    pack(weight.format, static_cast<const uint8_t*>(rows.words) + in * row_bytes, count,
         weight.cols, static_cast<uint8_t*>(data) + tile * tile_bytes);
    const int64_t entry = tile * groups * kTileRows;
    const int64_t bad = pack_scales(
        weight.scale_format, static_cast<const uint8_t*>(rows.scales) + in * groups * scale_bytes,
        count, groups, static_cast<uint8_t*>(scales) + entry * scale_bytes);
    if (bad >= 0 && bad_row < 0) bad_row = row + bad;
    if (weight.offset_format == OffsetFormat::kNone) continue;
    int8_t* zero_points = static_cast<int8_t*>(offsets) + entry;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t r = 0; r < kTileRows; ++r) {
        zero_points[g * kTileRows + r] =
            r < count ? rows.zero_points[(in + r) * groups + g] : int8_t{0};
      }
    }
  }
  return bad_row;
}

int64_t pack_words(const Weight& weight, int64_t row_begin, int64_t row_end, const WordRows& rows,
                   void* data, void* scales, void* offsets) {
  return pack_word_tiles(weight, row_begin, row_end, rows, pack_word_tile, data, scales, offsets);
}

bool has_nan(const void* bytes, size_t count) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  bool found = false;
  for (size_t i = 0; i < count; ++i) found |= (at[i] & 0x7f) == 0x7f;
  return found;
}

int64_t stored_row_bytes(const Weight& weight) {
  if (weight.row_scales == nullptr) return block_row_bytes(weight.block_format, weight.cols);
  return quantized_row_bytes(weight.format, weight.cols);
}

size_t stored_bytes(const Weight& weight) {
  int64_t row = stored_row_bytes(weight);
  if (weight.row_scales != nullptr) {
    const int64_t groups = group_count(weight.cols, weight.group_size);
    row += groups * scale_size(weight.scale_format);
    if (weight.row_zero_points != nullptr) row += groups;
  }
  return static_cast<size_t>(weight.rows * row);
}

}  // namespace vitrine::kernels
