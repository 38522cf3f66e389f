// SPDX-License-Identifier: Apache-2.0
// Packing of the common block formats with vectors whose lanes are rows of a tile, all or half of
// them, so that four neighbouring columns of these rows are one vector, as the packed layout has
// them.
//
// Lanes are an instruction set's vectors, all sixteen rows of a tile or half of them:
//   Words: four bytes of each row; kHalves: how many such vectors are a tile;
//   Rows: where the rows' blocks begin, made of the first one and the bytes of a row;
//   four_words, word: bytes at … at + 15, or at + 3, of each row;
//   with_bits, bit_or, flip: and with a byte, or, and of a byte its highest bit turned;
//   right, left: shifts within 16 bits; right_32: within a word;
//   store_words, store_halves, store_bytes: whole words, their low 16 bits and their low bytes, to
//     this half's place in what all sixteen rows have;
//   not_finite: a bit for each row whose half in the low 16 bits is infinite or no number.
#pragma once

#include "packed.h"

#define VITRINE_PACK_INLINE static inline __attribute__((always_inline))

namespace vitrine::kernels {
namespace {

template <class Lanes>
struct BlockPacking {
  using Words = typename Lanes::Words;
  using Rows = typename Lanes::Rows;

  VITRINE_PACK_INLINE Words low_nibbles(Words bytes) { return Lanes::with_bits(bytes, 15); }
  VITRINE_PACK_INLINE Words high_nibbles(Words bytes) {
    return low_nibbles(Lanes::right(bytes, 4));
  }
  /// Two fours of columns in a vector of a packed unit; both hold 0 … 15.
  VITRINE_PACK_INLINE Words both_nibbles(Words low, Words high) {
    return Lanes::bit_or(low, Lanes::left(high, 4));
  }
  template <int kCount>
  VITRINE_PACK_INLINE void read_words(const Rows& rows, int64_t at, Words* out) {
    for (int i = 0; i < kCount; i += 4) Lanes::four_words(rows, at + 4 * i, out + i);
  }

  /// 16 bytes of nibbles, low ones the first half of 32 columns, to one unit.
  VITRINE_PACK_INLINE void store_32_columns(const Rows& rows, int64_t at, uint8_t* unit, int half) {
    Words words[4];
    read_words<4>(rows, at, words);
    for (int i = 0; i < 4; i += 2) {
      Lanes::store_words(unit + 32 * i,
                         both_nibbles(low_nibbles(words[i]), low_nibbles(words[i + 1])), half);
      Lanes::store_words(unit + 32 * i + 128,
                         both_nibbles(high_nibbles(words[i]), high_nibbles(words[i + 1])), half);
    }
  }

  /// Bits 2u and 2u + 1 of 32 bytes a row, to two vectors of a packed unit.
  VITRINE_PACK_INLINE void store_two_bits(const Words* words, int u, uint8_t* out, int half) {
    for (int q = 0; q < 2; ++q) {
      Words bits = Lanes::with_bits(Lanes::right(words[4 * q], 2 * u), 3);
      for (int j = 1; j < 4; ++j) {
        const Words part = Lanes::with_bits(Lanes::right(words[4 * q + j], 2 * u), 3);
        bits = Lanes::bit_or(bits, Lanes::left(part, 2 * j));
      }
      Lanes::store_words(out + 64 * q, bits, half);
    }
  }

  /// 16 bytes a row, to 16 bytes of 16 rows each.
  VITRINE_PACK_INLINE void store_part_bytes(const Rows& rows, int64_t at, uint8_t* out, int half) {
    Words words[4];
    read_words<4>(rows, at, words);
    for (int i = 0; i < 4; ++i) {
      for (int g = 0; g < 4; ++g) {
        Lanes::store_bytes(out + 64 * i + 16 * g, Lanes::right_32(words[i], 8 * g), half);
      }
    }
  }

  /// Stores a half of each row from the low 16 bits; returns the rows in which it is not finite.
  VITRINE_PACK_INLINE uint32_t store_half(Words head, uint8_t* to, int half) {
    Lanes::store_halves(to, head, half);
    return Lanes::not_finite(head);
  }
  /// Stores two halves of each row likewise, the first from the low 16 bits.
  VITRINE_PACK_INLINE uint32_t store_two_halves(Words head, uint8_t* first, uint8_t* second,
                                                int half) {
    return store_half(head, first, half) | store_half(Lanes::right_32(head, 16), second, half);
  }

  // One block of the rows: its numbers to `unit` …, what they mean to entry `entry` of scales and
  // offsets. Each returns the rows that are not finite.

  struct Q4_0 {
    static constexpr int kCols = 32, kBytes = 18;
    VITRINE_PACK_INLINE uint32_t pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                      uint8_t* scales, uint8_t*, int half) {
      store_32_columns(rows, at + 2, unit, half);
      return store_half(Lanes::word(rows, at), scales + entry * 32, half);
    }
  };

  struct Q4_1 {
    static constexpr int kCols = 32, kBytes = 20;
    VITRINE_PACK_INLINE uint32_t pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                      uint8_t* scales, uint8_t* offsets, int half) {
      store_32_columns(rows, at + 4, unit, half);
      return store_two_halves(Lanes::word(rows, at), scales + entry * 32, offsets + entry * 32,
                              half);
    }
  };

  struct Q8_0 {
    static constexpr int kCols = 32, kBytes = 34;
    VITRINE_PACK_INLINE uint32_t pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                      uint8_t* scales, uint8_t*, int half) {
      Words words[8];
      read_words<8>(rows, at + 2, words);
      for (int i = 0; i < 8; ++i) Lanes::store_words(unit + 64 * i, Lanes::flip(words[i]), half);
      return store_half(Lanes::word(rows, at), scales + entry * 32, half);
    }
  };

  struct Mxfp4 {
    static constexpr int kCols = 32, kBytes = 17;
    VITRINE_PACK_INLINE uint32_t pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                      uint8_t* scales, uint8_t*, int half) {
      store_32_columns(rows, at + 1, unit, half);
      Lanes::store_bytes(scales + entry * 16, Lanes::word(rows, at), half);
      return 0;
    }
  };

  struct Q2K {
    static constexpr int kCols = 256, kBytes = 84;
    VITRINE_PACK_INLINE uint32_t pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                      uint8_t* scales, uint8_t*, int half) {
      for (int part = 0; part < 2; ++part) {
        Words words[8];
        read_words<8>(rows, at + 16 + 32 * part, words);
        for (int u = 0; u < 4; ++u, unit += 128) store_two_bits(words, u, unit, half);
      }
      uint8_t* out = scales + entry * kQ2KScaleBytes;
      store_part_bytes(rows, at, out + 64, half);
      return store_two_halves(Lanes::word(rows, at + 80), out, out + 32, half);
    }
  };

  struct Q4K {
    static constexpr int kCols = 256, kBytes = 144;
    VITRINE_PACK_INLINE uint32_t pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                      uint8_t* scales, uint8_t*, int half) {
      for (int i = 0; i < 4; ++i, unit += 512) {
        Words words[8];
        read_words<8>(rows, at + 16 + 32 * i, words);
        for (int k = 0; k < 4; ++k) {
          const Words first = words[2 * k], second = words[2 * k + 1];
          Lanes::store_words(unit + 64 * k, both_nibbles(low_nibbles(first), low_nibbles(second)),
                             half);
          Lanes::store_words(unit + 256 + 64 * k,
                             both_nibbles(high_nibbles(first), high_nibbles(second)), half);
        }
      }
      uint8_t* out = scales + entry * kQ4KScaleBytes;
      Words head[4];
      read_words<4>(rows, at, head);
      store_small_scales(head[1], head[2], head[3], out, half);
      return store_two_halves(head[0], out, out + 32, half);
    }

   private:
    /// Stores eight scales and eight minimums of six bits from 12 bytes a row.
    VITRINE_PACK_INLINE void store_small_scales(Words first, Words second, Words third,
                                                uint8_t* out, int half) {
      const auto top = [](Words words) __attribute__((always_inline)) {
        return Lanes::with_bits(Lanes::right(words, 2), 0x30);
      };
      const Words scale[2] = {Lanes::with_bits(first, 0x3f),
                              Lanes::bit_or(low_nibbles(third), top(first))};
      const Words minimum[2] = {Lanes::with_bits(second, 0x3f),
                                Lanes::bit_or(high_nibbles(third), top(second))};
      for (int part = 0; part < 2; ++part) {
        const Words low = both_nibbles(low_nibbles(scale[part]), low_nibbles(minimum[part]));
        for (int g = 0; g < 4; ++g) {
          Lanes::store_bytes(out + 64 + 64 * part + 16 * g, Lanes::right_32(low, 8 * g), half);
        }
        // Two bits of a scale, two of its minimum, for each group; groups in pairs.
        const Words high =
            Lanes::bit_or(high_nibbles(scale[part]), Lanes::left(high_nibbles(minimum[part]), 2));
        const Words pairs = Lanes::bit_or(high, Lanes::right_32(high, 4));
        Lanes::store_bytes(out + 192 + 32 * part, pairs, half);
        Lanes::store_bytes(out + 208 + 32 * part, Lanes::right_32(pairs, 16), half);
      }
    }
  };

  struct Q6K {
    static constexpr int kCols = 256, kBytes = 210;
    VITRINE_PACK_INLINE uint32_t pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                      uint8_t* scales, uint8_t*, int half) {
      for (int part = 0; part < 2; ++part) {
        Words low[16], high[8];  // fours of columns: 64 of low bits, 32 of high ones
        read_words<16>(rows, at + 64 * part, low);
        read_words<8>(rows, at + 128 + 32 * part, high);
        for (int u = 0; u < 4; ++u, unit += 384) store_32(low + 8 * (u % 2), high, u, unit, half);
      }
      uint8_t* out = scales + entry * kQ6KScaleBytes;
      store_part_bytes(rows, at + 192, out + 32, half);
      // The half stands at the block's end: nothing behind it is read.
      const Words head = Lanes::right_32(Lanes::word(rows, at + 206), 16);
      return store_half(head, out, half);
    }

   private:
    VITRINE_PACK_INLINE void store_32(const Words* low, const Words* high, int u, uint8_t* unit,
                                      int half) {
      for (int k = 0; k < 4; ++k) {
        const Words first = u < 2 ? low_nibbles(low[2 * k]) : high_nibbles(low[2 * k]);
        const Words second = u < 2 ? low_nibbles(low[2 * k + 1]) : high_nibbles(low[2 * k + 1]);
        Lanes::store_words(unit + 64 * k, both_nibbles(first, second), half);
      }
      store_two_bits(high, u, unit + 256, half);
    }
  };

  /// Whole tiles; returns the first row that is not finite, -1: none.
  template <class Format>
  static int64_t pack_tiles(const Weight& weight, int64_t row_begin, int64_t row_end,
                            const uint8_t* blocks, uint8_t* data, uint8_t* scales,
                            uint8_t* offsets) {
    const int64_t per_row = weight.cols / Format::kCols;
    const int64_t row_bytes = per_row * Format::kBytes;
    const int64_t block_units = Format::kCols / kUnitCols * unit_bytes(weight.format);
    constexpr int kHalfRows = kTileRows / Lanes::kHalves;
    int64_t bad_row = -1;
    for (int64_t row = row_begin; row < row_end; row += kTileRows) {
      const int64_t tile = row / kTileRows;
      const uint8_t* base = blocks + (row - row_begin) * row_bytes;
      for (int half = 0; half < Lanes::kHalves; ++half) {
        const auto rows = Lanes::rows(base + half * kHalfRows * row_bytes, row_bytes);
        uint8_t* unit = data + tile * per_row * block_units;
        uint32_t bad = 0;
        for (int64_t b = 0; b < per_row; ++b, unit += block_units) {
          bad |= Format::pack(rows, b * Format::kBytes, tile * per_row + b, unit, scales, offsets,
                              half);
        }
        if (bad != 0 && bad_row < 0) bad_row = row + half * kHalfRows + __builtin_ctz(bad);
      }
    }
    return bad_row;
  }

  using PackTiles = int64_t (*)(const Weight&, int64_t, int64_t, const uint8_t*, uint8_t*, uint8_t*,
                                uint8_t*);

  static PackTiles find_pack_tiles(BlockFormat format) {
    switch (format) {
      case BlockFormat::kQ4_0: return pack_tiles<Q4_0>;
      case BlockFormat::kQ4_1: return pack_tiles<Q4_1>;
      case BlockFormat::kQ8_0: return pack_tiles<Q8_0>;
      case BlockFormat::kQ2_K: return pack_tiles<Q2K>;
      case BlockFormat::kQ4_K: return pack_tiles<Q4K>;
      case BlockFormat::kQ6_K: return pack_tiles<Q6K>;
      case BlockFormat::kMxfp4: return pack_tiles<Mxfp4>;
      default: return nullptr;
    }
  }

  /// Does what a table's pack_blocks does: whole tiles of the formats above with vectors, all else
  /// with plain code, and so rows so long that a vector's offsets of 32 bits do not reach the last.
  static int64_t pack(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
                      const void* blocks, void* data, void* scales, void* offsets) {
    const PackTiles pack = find_pack_tiles(format);
    const int64_t row_bytes = block_row_bytes(format, weight.cols);
    const bool fits = row_bytes < INT32_MAX / kTileRows;
    const int64_t whole = pack == nullptr || !fits ? row_begin : row_end / kTileRows * kTileRows;
    const auto* bytes = static_cast<const uint8_t*>(blocks);
    int64_t bad_row = -1;
    if (whole > row_begin) {
      bad_row = pack(weight, row_begin, whole, bytes, static_cast<uint8_t*>(data),
                     static_cast<uint8_t*>(scales), static_cast<uint8_t*>(offsets));
    }
    if (whole == row_end) return bad_row;
    const int64_t bad_rest =
        kernels::pack_blocks(format, weight, whole, row_end,
                             bytes + (whole - row_begin) * row_bytes, data, scales, offsets);
    return bad_row >= 0 ? bad_row : bad_rest;
  }
};

}  // namespace
}  // namespace vitrine::kernels
