// SPDX-License-Identifier: Apache-2.0
// Packing of the common block formats (../block_packing.h) with gathers: a vector is all 16 rows.
#include "../block_packing.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

struct PackLanes {
  using Words = __m512i;
  static constexpr int kHalves = 1;
  struct Rows {
    const uint8_t* base;
    __m512i offsets;  // of each row, of 32 bits
  };

  VITRINE_INLINE Rows rows(const uint8_t* base, int64_t row_bytes) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {base, _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(row_bytes)))};
  }
  VITRINE_INLINE Words word(const Rows& rows, int64_t at) {
    return _mm512_i32gather_epi32(rows.offsets, rows.base + at, 1);
  }
  VITRINE_INLINE void four_words(const Rows& rows, int64_t at, Words* out) {
    for (int i = 0; i < 4; ++i) out[i] = word(rows, at + 4 * i);
  }

  VITRINE_INLINE Words with_bits(Words bytes, uint8_t bits) {
    return _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(bits)));
  }
  VITRINE_INLINE Words bit_or(Words a, Words b) { return _mm512_or_si512(a, b); }
  VITRINE_INLINE Words flip(Words bytes) { return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)); }
  VITRINE_INLINE Words right(Words words, int bits) {
    return _mm512_srl_epi16(words, _mm_cvtsi32_si128(bits));
  }
  VITRINE_INLINE Words left(Words words, int bits) {
    return _mm512_sll_epi16(words, _mm_cvtsi32_si128(bits));
  }
  VITRINE_INLINE Words right_32(Words words, int bits) {
    return _mm512_srl_epi32(words, _mm_cvtsi32_si128(bits));
  }

  VITRINE_INLINE void store_words(uint8_t* out, Words words, int) {
    _mm512_storeu_si512(out, words);
  }
  VITRINE_INLINE void store_bytes(uint8_t* out, Words lanes, int) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(lanes));
  }
  VITRINE_INLINE void store_halves(uint8_t* out, Words lanes, int) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(lanes));
  }
  VITRINE_INLINE uint32_t not_finite(Words lanes) {
    const __m512i exponent = _mm512_set1_epi32(0x7c00);
    return _mm512_cmpeq_epi32_mask(_mm512_and_si512(lanes, exponent), exponent);
  }
};

}  // namespace

int64_t pack_blocks(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
                    const void* blocks, void* data, void* scales, void* offsets) {
  return BlockPacking<PackLanes>::pack(format, weight, row_begin, row_end, blocks, data, scales,
                                       offsets);
}

}  // namespace vitrine::kernels::avx512
