// SPDX-License-Identifier: Apache-2.0
// The vectors of AVX-512 for decoding blocks (../blocks/format.h): all sixteen rows at once.
#pragma once

#include "../blocks/format.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

struct BlockLanes {
  using Bytes = __m512i;
  using Ints = __m512i;
  using Floats = __m512;
  using Plane = uint64_t;

  /// Four bytes, a half, a byte or four bits of each row.
  VITRINE_INLINE Bytes words(const uint8_t* p, int) { return _mm512_loadu_si512(p); }
  VITRINE_INLINE Floats halves(const uint8_t* p, int) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  VITRINE_INLINE Ints half_words(const uint8_t* p, int) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  VITRINE_INLINE Ints bytes(const uint8_t* p, int) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// Makes a half of the low seven bits of each row's byte, which become its bits 7 … 13.
  VITRINE_INLINE Floats byte_halves(const uint8_t* p, int) {
    const __m256i words =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_srli_epi16(_mm256_slli_epi16(words, 9), 2));
  }
  VITRINE_INLINE Plane plane(const uint8_t* p, int) {
    Plane bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
  }
  VITRINE_INLINE Plane rows_of(uint64_t plane, int) { return plane; }
  VITRINE_INLINE Ints nibbles(Plane plane) {
    const __m128i both = _mm_cvtsi64_si128(static_cast<int64_t>(plane));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i low = _mm_and_si128(both, nibble);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), nibble);
    return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high));
  }

  /// (byte >> shift) & mask; shift is 0, 2, 4 or 6.
  VITRINE_INLINE Bytes field(Bytes word, int shift, uint8_t mask) {
    const __m512i bits = _mm512_set1_epi8(static_cast<char>(mask));
    return _mm512_and_si512(shift == 0 ? word : _mm512_srli_epi16(word, shift), bits);
  }
  VITRINE_INLINE Bytes set_bytes(uint8_t byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  VITRINE_INLINE Bytes add_bytes(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
  VITRINE_INLINE Bytes add_where(Bytes bytes, Plane where, uint8_t value) {
    return _mm512_mask_add_epi8(bytes, where, bytes, set_bytes(value));
  }
  /// kFrom less the byte where a bit is set.
  template <uint8_t kFrom>
  VITRINE_INLINE Bytes subtract_where(Bytes bytes, Plane where) {
    return _mm512_mask_sub_epi8(bytes, where, set_bytes(kFrom), bytes);
  }
  VITRINE_INLINE Bytes bytes_by_row(Ints flags, uint8_t where_set, uint8_t where_clear) {
    return _mm512_mask_blend_epi32(_mm512_test_epi32_mask(flags, flags), set_bytes(where_clear),
                                   set_bytes(where_set));
  }
  /// How many of two limits a byte is above.
  VITRINE_INLINE Bytes count_above(Bytes bytes, uint8_t first, uint8_t second) {
    const __m512i one = set_bytes(1);
    const __m512i above =
        _mm512_maskz_mov_epi8(_mm512_cmpgt_epu8_mask(bytes, set_bytes(first)), one);
    return _mm512_mask_add_epi8(above, _mm512_cmpgt_epu8_mask(bytes, set_bytes(second)), above,
                                one);
  }
  VITRINE_INLINE Bytes look_up_16(const uint8_t* table, Bytes indices) {
    const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), indices);
  }
  VITRINE_INLINE Ints byte_indices(const uint8_t* p, int half) { return bytes(p, half); }
  template <class Book>
  VITRINE_INLINE blocks::Eight<BlockLanes> look_up_fours(Ints first, Ints second) {
    const __m512i codes = look_up_codes<Book>(words_of_both(first, second));
    return {four_of_three_bits<Book>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(codes))),
            four_of_three_bits<Book>(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(codes, 1)))};
  }
  template <class Book>
  VITRINE_INLINE blocks::Eights<BlockLanes> look_up_eights(Ints first, Ints second) {
    if constexpr (Book::kCount > kMostInRegisters) {
      return {gather_eight<Book>(first), gather_eight<Book>(second)};
    } else {
      const __m512i codes = look_up_codes<Book>(words_of_both(first, second));
      const __m256i last = _mm512_extracti64x4_epi64(codes, 1);
      return {eight_of_two_bits<Book>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(codes))),
              eight_of_two_bits<Book>(_mm512_cvtepu16_epi32(last))};
    }
  }

  VITRINE_INLINE Ints set_ints(int32_t value) { return _mm512_set1_epi32(value); }
  VITRINE_INLINE Ints mask(Ints a, int32_t bits) { return _mm512_and_si512(a, set_ints(bits)); }
  VITRINE_INLINE Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
  VITRINE_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  VITRINE_INLINE Ints shift_right(Ints a, int bits) {
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits));
  }
  VITRINE_INLINE Ints shift_left(Ints a, int bits) {
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits));
  }

  VITRINE_INLINE Floats set(float value) { return _mm512_set1_ps(value); }
  VITRINE_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  VITRINE_INLINE Floats negative(Floats a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  VITRINE_INLINE Floats to_float(Ints a) { return _mm512_cvtepi32_ps(a); }
  /// The halves in the low 16 bits.
  VITRINE_INLINE Floats widen_halves(Ints a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }

 private:
  /// Entries of a book that are found faster by looking through all of it than by gathering.
  static constexpr int kMostInRegisters = 512;

  template <class Book>
  VITRINE_INLINE blocks::Eight<BlockLanes> gather_eight(Ints indices) {
    const uint64_t* entries = Book::entries();
    const __m512i first = _mm512_i32gather_epi64(_mm512_castsi512_si256(indices), entries, 8);
    const __m512i last = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(indices, 1), entries, 8);
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return {_mm512_permutex2var_epi32(first, even, last),
            _mm512_permutex2var_epi32(first, odd, last)};
  }

  VITRINE_INLINE __m512i words_of_both(Ints first, Ints second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(first)),
                              _mm512_cvtepi32_epi16(second), 1);
  }

  /// The codes of 32 indices: of each 64 entries the one that the low six bits name, and of these
  /// the one that the others name, bit by bit.
  template <class Book>
  VITRINE_INLINE __m512i look_up_codes(__m512i indices) {
    return look_up_of<Book::kCount>(Book::codes(), indices);
  }

  /// Looks up in one half of the entries or the other, by the highest bit of an index. It calls
  /// itself, since a loop with a bound of its own is not unrolled under sanitizers.
  template <int kCount>
  VITRINE_INLINE __m512i look_up_of(const uint16_t* codes, __m512i indices) {
    if constexpr (kCount == 64) {
      return _mm512_permutex2var_epi16(_mm512_loadu_si512(codes), indices,
                                       _mm512_loadu_si512(codes + 32));
    } else {
      const __mmask32 is_upper =
          _mm512_test_epi16_mask(indices, _mm512_set1_epi16(static_cast<int16_t>(kCount / 2)));
      return _mm512_mask_blend_epi16(is_upper, look_up_of<kCount / 2>(codes, indices),
                                     look_up_of<kCount / 2>(codes + kCount / 2, indices));
    }
  }

  template <class Book>
  VITRINE_INLINE Bytes levels_of(__m512i codes) {
    const auto* levels = reinterpret_cast<const __m128i*>(Book::levels());
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(levels)), codes);
  }

  /// a | b, and of that the bits of a mask.
  VITRINE_INLINE __m512i or_and(__m512i a, __m512i b, int32_t bits) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32(bits), 0xa8);
  }

  /// Four codes of three bits to a byte each.
  template <class Book>
  VITRINE_INLINE Bytes four_of_three_bits(__m512i codes) {
    const __m512i pairs = or_and(codes, _mm512_slli_epi32(codes, 10), 0x003f003f);
    return levels_of<Book>(or_and(pairs, _mm512_slli_epi32(pairs, 5), 0x07070707));
  }

  /// Eight codes of two bits to a byte each.
  template <class Book>
  VITRINE_INLINE blocks::Eight<BlockLanes> eight_of_two_bits(__m512i codes) {
    const __m512i low = or_and(codes, _mm512_slli_epi32(codes, 12), 0x000f000f);
    const __m512i high =
        or_and(_mm512_srli_epi32(codes, 8), _mm512_slli_epi32(codes, 4), 0x000f000f);
    return {levels_of<Book>(or_and(low, _mm512_slli_epi32(low, 6), 0x03030303)),
            levels_of<Book>(or_and(high, _mm512_slli_epi32(high, 6), 0x03030303))};
  }
};

}  // namespace
}  // namespace vitrine::kernels::avx512
