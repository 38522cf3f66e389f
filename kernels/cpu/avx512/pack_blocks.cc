// SPDX-License-Identifier: Apache-2.0
// Packing of the common block formats with gathers: lane r reads row r of a tile, so that four
// neighbouring columns of all 16 rows are one vector, as the packed layout has them.
#include <cstring>

#include "../packed.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

/// 16 rows of blocks; the gathers' offsets are of 32 bits.
struct Rows {
  const uint8_t* base;
  __m512i offsets;  // of each row

  /// Bytes at … at + 3 of each row.
  VITRINE_INLINE __m512i words(const Rows& rows, int64_t at) {
    return _mm512_i32gather_epi32(rows.offsets, rows.base + at, 1);
  }
};

VITRINE_INLINE __m512i low_nibbles(__m512i bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}
VITRINE_INLINE __m512i high_nibbles(__m512i bytes) {
  return low_nibbles(_mm512_srli_epi16(bytes, 4));
}
/// Two fours of columns in a vector of a packed unit; both hold 0 … 15.
VITRINE_INLINE __m512i both_nibbles(__m512i low, __m512i high) {
  return _mm512_or_si512(low, _mm512_slli_epi16(high, 4));
}
VITRINE_INLINE void store_bytes(uint8_t* out, __m512i lanes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(lanes));
}
VITRINE_INLINE void store_halves(uint8_t* out, __m512i lanes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(lanes));
}
/// Rows whose half in the low 16 bits is infinite or no number.
VITRINE_INLINE __mmask16 not_finite(__m512i lanes) {
  const __m512i exponent = _mm512_set1_epi32(0x7c00);
  return _mm512_cmpeq_epi32_mask(_mm512_and_si512(lanes, exponent), exponent);
}

/// 16 bytes of nibbles, low ones the first half of 32 columns, to one unit.
VITRINE_INLINE void store_32_columns(const Rows& rows, int64_t at, uint8_t* unit) {
  __m512i words[4];
  for (int i = 0; i < 4; ++i) words[i] = Rows::words(rows, at + 4 * i);
  for (int i = 0; i < 4; i += 2) {
    _mm512_storeu_si512(unit + 32 * i,
                        both_nibbles(low_nibbles(words[i]), low_nibbles(words[i + 1])));
    _mm512_storeu_si512(unit + 32 * i + 128,
                        both_nibbles(high_nibbles(words[i]), high_nibbles(words[i + 1])));
  }
}

// One block of 16 rows: its numbers to `unit` …, what they mean to entry `entry` of scales and
// offsets. Each returns the rows that are not finite.

struct Q4_0 {
  static constexpr int kCols = 32, kBytes = 18;
  VITRINE_INLINE __mmask16 pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                uint8_t* scales, uint8_t*) {
    store_32_columns(rows, at + 2, unit);
    const __m512i head = Rows::words(rows, at);
    store_halves(scales + entry * 32, head);
    return not_finite(head);
  }
};

struct Q4_1 {
  static constexpr int kCols = 32, kBytes = 20;
  VITRINE_INLINE __mmask16 pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                uint8_t* scales, uint8_t* offsets) {
    store_32_columns(rows, at + 4, unit);
    const __m512i head = Rows::words(rows, at);
    const __m512i minimums = _mm512_srli_epi32(head, 16);
    store_halves(scales + entry * 32, head);
    store_halves(offsets + entry * 32, minimums);
    return static_cast<__mmask16>(not_finite(head) | not_finite(minimums));
  }
};

struct Q8_0 {
  static constexpr int kCols = 32, kBytes = 34;
  VITRINE_INLINE __mmask16 pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                uint8_t* scales, uint8_t*) {
    for (int i = 0; i < 8; ++i) {
      const __m512i words = Rows::words(rows, at + 2 + 4 * i);
      _mm512_storeu_si512(unit + 64 * i, _mm512_xor_si512(words, _mm512_set1_epi8(-128)));
    }
    const __m512i head = Rows::words(rows, at);
    store_halves(scales + entry * 32, head);
    return not_finite(head);
  }
};

struct Mxfp4 {
  static constexpr int kCols = 32, kBytes = 17;
  VITRINE_INLINE __mmask16 pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                uint8_t* scales, uint8_t*) {
    store_32_columns(rows, at + 1, unit);
    store_bytes(scales + entry * 16, Rows::words(rows, at));
    return 0;
  }
};

/// Bits 2u and 2u + 1 of 32 bytes a row, to two vectors of a packed unit.
VITRINE_INLINE void store_two_bits(const __m512i* words, int u, uint8_t* out) {
  const __m512i two = _mm512_set1_epi8(3);
  const __m128i shift = _mm_cvtsi32_si128(2 * u);
  for (int q = 0; q < 2; ++q) {
    __m512i bits = _mm512_setzero_si512();
    for (int j = 0; j < 4; ++j) {
      const __m512i part = _mm512_and_si512(_mm512_srl_epi16(words[4 * q + j], shift), two);
      bits = _mm512_or_si512(bits, _mm512_sll_epi16(part, _mm_cvtsi32_si128(2 * j)));
    }
    _mm512_storeu_si512(out + 64 * q, bits);
  }
}

/// 16 bytes a row, to 16 bytes of 16 rows each.
VITRINE_INLINE void store_part_bytes(const Rows& rows, int64_t at, uint8_t* out) {
  for (int i = 0; i < 4; ++i) {
    const __m512i four = Rows::words(rows, at + 4 * i);
    for (int g = 0; g < 4; ++g) {
      store_bytes(out + 64 * i + 16 * g, _mm512_srli_epi32(four, 8 * g));
    }
  }
}

struct Q2K {
  static constexpr int kCols = 256, kBytes = 84;
  VITRINE_INLINE __mmask16 pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                uint8_t* scales, uint8_t*) {
    for (int half = 0; half < 2; ++half) {
      __m512i words[8];
      for (int i = 0; i < 8; ++i) words[i] = Rows::words(rows, at + 16 + 32 * half + 4 * i);
      for (int u = 0; u < 4; ++u, unit += 128) store_two_bits(words, u, unit);
    }
    uint8_t* out = scales + entry * kQ2KScaleBytes;
    store_part_bytes(rows, at, out + 64);
    const __m512i head = Rows::words(rows, at + 80);
    const __m512i minimum = _mm512_srli_epi32(head, 16);
    store_halves(out, head);
    store_halves(out + 32, minimum);
    return static_cast<__mmask16>(not_finite(head) | not_finite(minimum));
  }
};

struct Q4K {
  static constexpr int kCols = 256, kBytes = 144;
  VITRINE_INLINE __mmask16 pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                uint8_t* scales, uint8_t*) {
    for (int i = 0; i < 4; ++i, unit += 512) {
      for (int k = 0; k < 4; ++k) {
        const __m512i first = Rows::words(rows, at + 16 + 32 * i + 8 * k);
        const __m512i second = Rows::words(rows, at + 20 + 32 * i + 8 * k);
        _mm512_storeu_si512(unit + 64 * k, both_nibbles(low_nibbles(first), low_nibbles(second)));
        _mm512_storeu_si512(unit + 256 + 64 * k,
                            both_nibbles(high_nibbles(first), high_nibbles(second)));
      }
    }
    uint8_t* out = scales + entry * kQ4KScaleBytes;
    const __m512i head = Rows::words(rows, at);
    const __m512i minimum = _mm512_srli_epi32(head, 16);
    store_halves(out, head);
    store_halves(out + 32, minimum);
    store_small_scales(Rows::words(rows, at + 4), Rows::words(rows, at + 8),
                       Rows::words(rows, at + 12), out);
    return static_cast<__mmask16>(not_finite(head) | not_finite(minimum));
  }

 private:
  /// Stores eight scales and eight minimums of six bits from 12 bytes a row.
  VITRINE_INLINE void store_small_scales(__m512i first, __m512i second, __m512i third,
                                         uint8_t* out) {
    const __m512i six = _mm512_set1_epi8(0x3f), top = _mm512_set1_epi8(0x30);
    const __m512i scale[2] = {
        _mm512_and_si512(first, six),
        _mm512_or_si512(low_nibbles(third), _mm512_and_si512(_mm512_srli_epi16(first, 2), top))};
    const __m512i minimum[2] = {
        _mm512_and_si512(second, six),
        _mm512_or_si512(high_nibbles(third), _mm512_and_si512(_mm512_srli_epi16(second, 2), top))};
    for (int half = 0; half < 2; ++half) {
      const __m512i low = both_nibbles(low_nibbles(scale[half]), low_nibbles(minimum[half]));
      for (int g = 0; g < 4; ++g) {
        store_bytes(out + 64 + 64 * half + 16 * g, _mm512_srli_epi32(low, 8 * g));
      }
      // Two bits of a scale, two of its minimum, for each group; groups in pairs.
      const __m512i high = _mm512_or_si512(high_nibbles(scale[half]),
                                           _mm512_slli_epi16(high_nibbles(minimum[half]), 2));
      const __m512i pairs = _mm512_or_si512(high, _mm512_srli_epi32(high, 4));
      store_bytes(out + 192 + 32 * half, pairs);
      store_bytes(out + 208 + 32 * half, _mm512_srli_epi32(pairs, 16));
    }
  }
};

struct Q6K {
  static constexpr int kCols = 256, kBytes = 210;
  VITRINE_INLINE __mmask16 pack(const Rows& rows, int64_t at, int64_t entry, uint8_t* unit,
                                uint8_t* scales, uint8_t*) {
    for (int half = 0; half < 2; ++half) {
      __m512i low[16], high[8];  // fours of columns: 64 of low bits, 32 of high ones
      for (int i = 0; i < 16; ++i) low[i] = Rows::words(rows, at + 64 * half + 4 * i);
      for (int i = 0; i < 8; ++i) high[i] = Rows::words(rows, at + 128 + 32 * half + 4 * i);
      for (int u = 0; u < 4; ++u, unit += 384) store_32(low + 8 * (u % 2), high, u, unit);
    }
    uint8_t* out = scales + entry * kQ6KScaleBytes;
    store_part_bytes(rows, at + 192, out + 32);
    // The half stands at the block's end: nothing behind it is read.
    const __m512i head = _mm512_srli_epi32(Rows::words(rows, at + 206), 16);
    store_halves(out, head);
    return not_finite(head);
  }

 private:
  VITRINE_INLINE void store_32(const __m512i* low, const __m512i* high, int u, uint8_t* unit) {
    for (int k = 0; k < 4; ++k) {
      const __m512i first = u < 2 ? low_nibbles(low[2 * k]) : high_nibbles(low[2 * k]);
      const __m512i second = u < 2 ? low_nibbles(low[2 * k + 1]) : high_nibbles(low[2 * k + 1]);
      _mm512_storeu_si512(unit + 64 * k, both_nibbles(first, second));
    }
    store_two_bits(high, u, unit + 256);
  }
};

/// Whole tiles; returns the first row that is not finite, -1: none.
template <class Format>
int64_t pack_tiles(const Weight& weight, int64_t row_begin, int64_t row_end, const uint8_t* blocks,
                   uint8_t* data, uint8_t* scales, uint8_t* offsets) {
  const int64_t per_row = weight.cols / Format::kCols;
  const int64_t row_bytes = per_row * Format::kBytes;
  const int64_t block_units = Format::kCols / kUnitCols * unit_bytes(weight.format);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  Rows rows;
  rows.offsets = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(row_bytes)));
  int64_t bad_row = -1;
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const int64_t tile = row / kTileRows;
    rows.base = blocks + (row - row_begin) * row_bytes;
    uint8_t* unit = data + tile * per_row * block_units;
    unsigned bad = 0;
    for (int64_t b = 0; b < per_row; ++b, unit += block_units) {
      bad |= Format::pack(rows, b * Format::kBytes, tile * per_row + b, unit, scales, offsets);
    }
    if (bad != 0 && bad_row < 0) bad_row = row + __builtin_ctz(bad);
  }
  return bad_row;
}

using PackTiles = int64_t (*)(const Weight&, int64_t, int64_t, const uint8_t*, uint8_t*, uint8_t*,
                              uint8_t*);

PackTiles find_pack_tiles(BlockFormat format) {
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

}  // namespace

int64_t pack_blocks(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
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
      kernels::pack_blocks(format, weight, whole, row_end, bytes + (whole - row_begin) * row_bytes,
                           data, scales, offsets);
  return bad_row >= 0 ? bad_row : bad_rest;
}

}  // namespace vitrine::kernels::avx512
