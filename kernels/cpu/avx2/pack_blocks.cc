// SPDX-License-Identifier: Apache-2.0
// Packing of the common block formats (../block_packing.h): a vector is half a tile, eight rows,
// whose bytes are turned from rows into columns 16 at a time.
#include <cstring>

#include "../block_packing.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

struct PackLanes {
  using Words = __m256i;
  static constexpr int kHalves = 2;
  static constexpr int kRows = kTileRows / kHalves;
  struct Rows {
    const uint8_t* base;
    int64_t row_bytes;
  };

  VITRINE_INLINE Rows rows(const uint8_t* base, int64_t row_bytes) { return {base, row_bytes}; }
  VITRINE_INLINE Words word(const Rows& rows, int64_t at) {
    int32_t words[kRows];
    for (int r = 0; r < kRows; ++r) memcpy(&words[r], rows.base + r * rows.row_bytes + at, 4);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  }
  VITRINE_INLINE void four_words(const Rows& rows, int64_t at, Words* out) {
    // Rows r and r + 4, whose words then go to the lower and the upper half of the vectors.
    __m256i pair[4];
    for (int r = 0; r < 4; ++r) {
      const uint8_t* first = rows.base + r * rows.row_bytes + at;
      const __m128i upper =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(first + 4 * rows.row_bytes));
      const __m128i lower = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
      pair[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1);
    }
    const __m256i low_a = _mm256_unpacklo_epi32(pair[0], pair[1]);
    const __m256i low_b = _mm256_unpacklo_epi32(pair[2], pair[3]);
    const __m256i high_a = _mm256_unpackhi_epi32(pair[0], pair[1]);
    const __m256i high_b = _mm256_unpackhi_epi32(pair[2], pair[3]);
    out[0] = _mm256_unpacklo_epi64(low_a, low_b);
    out[1] = _mm256_unpackhi_epi64(low_a, low_b);
    out[2] = _mm256_unpacklo_epi64(high_a, high_b);
    out[3] = _mm256_unpackhi_epi64(high_a, high_b);
  }

  VITRINE_INLINE Words with_bits(Words bytes, uint8_t bits) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(bits)));
  }
  VITRINE_INLINE Words bit_or(Words a, Words b) { return _mm256_or_si256(a, b); }
  VITRINE_INLINE Words flip(Words bytes) { return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)); }
  VITRINE_INLINE Words right(Words words, int bits) { return _mm256_srli_epi16(words, bits); }
  VITRINE_INLINE Words left(Words words, int bits) { return _mm256_slli_epi16(words, bits); }
  VITRINE_INLINE Words right_32(Words words, int bits) { return _mm256_srli_epi32(words, bits); }

  VITRINE_INLINE void store_words(uint8_t* out, Words words, int half) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * half), words);
  }
  VITRINE_INLINE void store_bytes(uint8_t* out, Words lanes, int half) {
    const __m256i low = _mm256_and_si256(lanes, _mm256_set1_epi32(255));
    const __m128i halves = halves_of(low);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 8 * half), _mm_packus_epi16(halves, halves));
  }
  VITRINE_INLINE void store_halves(uint8_t* out, Words lanes, int half) {
    const __m256i low = _mm256_and_si256(lanes, _mm256_set1_epi32(0xffff));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * half), halves_of(low));
  }
  VITRINE_INLINE uint32_t not_finite(Words lanes) {
    const __m256i exponent = _mm256_set1_epi32(0x7c00);
    const __m256i is_bad = _mm256_cmpeq_epi32(_mm256_and_si256(lanes, exponent), exponent);
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_bad)));
  }

 private:
  /// Eight numbers below 65,536.
  VITRINE_INLINE __m128i halves_of(__m256i lanes) {
    return _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  }
};

}  // namespace

int64_t pack_blocks(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
                    const void* blocks, void* data, void* scales, void* offsets) {
  return BlockPacking<PackLanes>::pack(format, weight, row_begin, row_end, blocks, data, scales,
                                       offsets);
}

}  // namespace vitrine::kernels::avx2
