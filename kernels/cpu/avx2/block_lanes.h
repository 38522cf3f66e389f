// SPDX-License-Identifier: Apache-2.0
// The vectors of AVX2 for decoding blocks (../blocks/format.h): eight rows, the first or the last
// of a tile.
#pragma once

#include "../blocks/format.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

struct BlockLanes {
  using Bytes = __m256i;
  using Ints = __m256i;
  using Floats = __m256;
  using Plane = uint32_t;

  /// Four bytes, a half, a byte or four bits of each row.
  VITRINE_INLINE Bytes words(const uint8_t* p, int half) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * half));
  }
  VITRINE_INLINE Floats halves(const uint8_t* p, int half) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * half)));
  }
  VITRINE_INLINE Ints half_words(const uint8_t* p, int half) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * half)));
  }
  VITRINE_INLINE Ints bytes(const uint8_t* p, int half) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * half)));
  }
  /// Makes a half of the low seven bits of each row's byte, which become its bits 7 … 13.
  VITRINE_INLINE Floats byte_halves(const uint8_t* p, int half) {
    const __m128i words =
        _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * half)));
    return _mm256_cvtph_ps(_mm_srli_epi16(_mm_slli_epi16(words, 9), 2));
  }
  VITRINE_INLINE Plane plane(const uint8_t* p, int half) {
    Plane bits;
    __builtin_memcpy(&bits, p + 4 * half, sizeof bits);
    return bits;
  }
  VITRINE_INLINE Plane rows_of(uint64_t plane, int half) {
    return static_cast<Plane>(plane >> (32 * half));
  }
  VITRINE_INLINE Ints nibbles(Plane plane) {
    const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(plane));
    const __m256i of_row = _mm256_srlv_epi32(all, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return mask(of_row, 15);
  }

  /// (byte >> shift) & mask; shift is 0, 2, 4 or 6.
  VITRINE_INLINE Bytes field(Bytes word, int shift, uint8_t mask) {
    const __m256i bits = _mm256_set1_epi8(static_cast<char>(mask));
    return _mm256_and_si256(shift == 0 ? word : _mm256_srli_epi16(word, shift), bits);
  }
  VITRINE_INLINE Bytes set_bytes(uint8_t byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  VITRINE_INLINE Bytes add_bytes(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
  VITRINE_INLINE Bytes add_where(Bytes bytes, Plane where, uint8_t value) {
    return _mm256_add_epi8(bytes, _mm256_and_si256(bytes_of(where), set_bytes(value)));
  }
  /// kFrom less the byte where a bit is set.
  template <uint8_t kFrom>
  VITRINE_INLINE Bytes subtract_where(Bytes bytes, Plane where) {
    return _mm256_blendv_epi8(bytes, _mm256_sub_epi8(set_bytes(kFrom), bytes), bytes_of(where));
  }
  VITRINE_INLINE Bytes bytes_by_row(Ints flags, uint8_t where_set, uint8_t where_clear) {
    const __m256i is_clear = _mm256_cmpeq_epi32(flags, _mm256_setzero_si256());
    return _mm256_blendv_epi8(set_bytes(where_set), set_bytes(where_clear), is_clear);
  }
  /// How many of two limits a byte is above.
  VITRINE_INLINE Bytes count_above(Bytes bytes, uint8_t first, uint8_t second) {
    const __m256i one = set_bytes(1);
    const auto is_above = [&](uint8_t limit) __attribute__((always_inline)) {
      const __m256i over = _mm256_subs_epu8(bytes, set_bytes(limit));
      return _mm256_min_epu8(over, one);
    };
    return _mm256_add_epi8(is_above(first), is_above(second));
  }
  VITRINE_INLINE Bytes look_up_16(const uint8_t* table, Bytes indices) {
    const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), indices);
  }
  /// Points at the bytes of eight rows that are indices into a book.
  struct ByteIndices {
    const uint8_t* of_row;
  };
  VITRINE_INLINE ByteIndices byte_indices(const uint8_t* p, int half) { return {p + 8 * half}; }

  template <class Book, class Indices>
  VITRINE_INLINE blocks::Eight<BlockLanes> look_up_fours(Indices first, Indices second) {
    return {look_up_four<Book>(first), look_up_four<Book>(second)};
  }
  template <class Book, class Indices>
  VITRINE_INLINE blocks::Eights<BlockLanes> look_up_eights(Indices first, Indices second) {
    return {look_up_eight<Book>(first), look_up_eight<Book>(second)};
  }

  VITRINE_INLINE Ints set_ints(int32_t value) { return _mm256_set1_epi32(value); }
  VITRINE_INLINE Ints mask(Ints a, int32_t bits) { return _mm256_and_si256(a, set_ints(bits)); }
  VITRINE_INLINE Ints bit_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
  VITRINE_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  VITRINE_INLINE Ints shift_right(Ints a, int bits) { return _mm256_srli_epi32(a, bits); }
  VITRINE_INLINE Ints shift_left(Ints a, int bits) { return _mm256_slli_epi32(a, bits); }

  VITRINE_INLINE Floats set(float value) { return _mm256_set1_ps(value); }
  VITRINE_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  VITRINE_INLINE Floats negative(Floats a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  VITRINE_INLINE Floats to_float(Ints a) { return _mm256_cvtepi32_ps(a); }
  /// The halves in the low 16 bits.
  VITRINE_INLINE Floats widen_halves(Ints a) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, a), 0xd8);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }

 private:
  // Entries are loaded one by one: a Zen 3 takes fewer steps for them than for a gather
  // (docs/lab/avx2.md).

  VITRINE_INLINE const uint8_t* indices_of_rows(ByteIndices indices) { return indices.of_row; }

  /// Indices of eight rows in registers, two in each.
  struct Pairs {
    uint64_t pair[4];

    uint32_t operator[](int r) const { return static_cast<uint32_t>(pair[r / 2] >> (r % 2 * 32)); }
  };
  VITRINE_INLINE Pairs indices_of_rows(Ints indices) {
    const auto pair = [&]<int kPair>() __attribute__((always_inline)) {
      return static_cast<uint64_t>(_mm256_extract_epi64(indices, kPair));
    };
    return {{pair.template operator()<0>(), pair.template operator()<1>(),
             pair.template operator()<2>(), pair.template operator()<3>()}};
  }

  template <class Book, class Indices>
  VITRINE_INLINE __m256i look_up_four(Indices indices) {
    const auto rows = indices_of_rows(indices);
    const auto entry = [&](int r) __attribute__((always_inline)) {
      return static_cast<int>(Book::entries()[rows[r]]);
    };
    return _mm256_setr_epi32(entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6),
                             entry(7));
  }

  template <class Book, class Indices>
  VITRINE_INLINE blocks::Eight<BlockLanes> look_up_eight(Indices indices) {
    const auto rows = indices_of_rows(indices);
    const auto entry = [&](int r) __attribute__((always_inline)) {
      return static_cast<int64_t>(Book::entries()[rows[r]]);
    };
    const __m256i a = _mm256_setr_epi64x(entry(0), entry(1), entry(4), entry(5));
    const __m256i b = _mm256_setr_epi64x(entry(2), entry(3), entry(6), entry(7));
    const __m256 first = _mm256_castsi256_ps(a), last = _mm256_castsi256_ps(b);
    return {_mm256_castps_si256(_mm256_shuffle_ps(first, last, 0x88)),
            _mm256_castps_si256(_mm256_shuffle_ps(first, last, 0xdd))};
  }

  /// 0xff for each bit that is set.
  VITRINE_INLINE __m256i bytes_of(Plane plane) {
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                            2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i bytes =
        _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(plane)), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  }
};

}  // namespace
}  // namespace vitrine::kernels::avx2
