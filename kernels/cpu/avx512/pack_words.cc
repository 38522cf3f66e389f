// SPDX-License-Identifier: Apache-2.0
// Packing of compressed-tensors' words with gathers: lane r reads row r of a tile, so that a word
// of all 16 rows is one vector.
#include "../word_tiles.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

VITRINE_INLINE __m512i in_each_quarter(int a, int b, int c, int d) {
  return _mm512_setr_epi32(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d);
}

/// Nibbles 0 to 3 of each word become the low halves of its bytes, 4 to 7 the high ones.
VITRINE_INLINE __m512i deal_nibbles(__m512i words) {
  const __m512i even = _mm512_set1_epi32(0x000f000f);
  const __m512i odd = _mm512_set1_epi32(0x0f000f00);
  // Bytes 0, 0, 1, 1 of each word, and 2, 2, 3, 3.
  const __m512i low_bytes = in_each_quarter(0x01010000, 0x05050404, 0x09090808, 0x0d0d0c0c);
  const __m512i high_bytes = in_each_quarter(0x03030202, 0x07070606, 0x0b0b0a0a, 0x0f0f0e0e);
  const __m512i low = _mm512_shuffle_epi8(words, low_bytes);
  const __m512i high = _mm512_shuffle_epi8(words, high_bytes);
  const auto nibbles = [&](__m512i twice) __attribute__((always_inline)) {
    return _mm512_or_si512(_mm512_and_si512(twice, even),
                           _mm512_and_si512(_mm512_srli_epi16(twice, 4), odd));
  };
  return _mm512_or_si512(nibbles(low), _mm512_slli_epi16(nibbles(high), 4));
}

void pack_tile(WeightFormat format, const uint8_t* words, int64_t rows, int64_t cols,
               uint8_t* tile) {
  const bool is_int4 = format == WeightFormat::kInt4;
  const int64_t row_bytes = quantized_row_bytes(format, cols);
  // Whole tiles of whole units of bytes or nibbles; the gathers' offsets are of 32 bits.
  if (format == WeightFormat::kInt3 || rows < kTileRows || padded_cols(cols) != cols ||
      row_bytes >= INT32_MAX / kTileRows) {
    return pack_word_tile(format, words, rows, cols, tile);
  }
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i offsets =
      _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(row_bytes)));
  for (int64_t at = 0; at < row_bytes; at += 4, tile += 64) {
    const __m512i word = _mm512_i32gather_epi32(offsets, words + at, 1);
    _mm512_storeu_si512(tile, is_int4 ? deal_nibbles(word) : word);
  }
}

}  // namespace

int64_t pack_words(const Weight& weight, int64_t row_begin, int64_t row_end, const WordRows& rows,
                   void* data, void* scales, void* offsets) {
  return pack_word_tiles(weight, row_begin, row_end, rows, pack_tile, data, scales, offsets);
}

}  // namespace vitrine::kernels::avx512
