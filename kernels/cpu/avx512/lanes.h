// SPDX-License-Identifier: Apache-2.0
// Sixteen floats, and sixteen integers or pairs of them, for templates that take an instruction
// set's vectors.
#pragma once

#include "float_lanes.h"

namespace vitrine::kernels::avx512 {
namespace {

struct IntegerLanes : FloatLanes {
  using Integers = __m512i;
  VITRINE_INLINE Integers load_integers(const int32_t* x) { return _mm512_loadu_si512(x); }
  VITRINE_INLINE void store_integers(int32_t* x, Integers v) { _mm512_storeu_si512(x, v); }
  VITRINE_INLINE Integers set_integers(int32_t x) { return _mm512_set1_epi32(x); }
  VITRINE_INLINE Integers bit_and(Integers a, Integers b) { return _mm512_and_si512(a, b); }
  VITRINE_INLINE Integers round(Lanes x) { return _mm512_cvtps_epi32(x); }
  VITRINE_INLINE Lanes widen(Integers x) { return _mm512_cvtepi32_ps(x); }
  VITRINE_INLINE Integers dot(Integers sum, Integers a, Integers b) {
    return _mm512_dpwssd_epi32(sum, a, b);
  }
  VITRINE_INLINE Integers pair(Integers first, Integers second) {
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
  }
  /// 16 words of two int16 each.
  VITRINE_INLINE Integers load_words(const int16_t* x) { return _mm512_loadu_si512(x); }
  /// Loads numbers of int8 and widens them.
  VITRINE_INLINE Integers load_words(const int8_t* x) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  /// Integers that fit 16 bits, two a word.
  VITRINE_INLINE void store_narrow(int32_t* x, Integers v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), _mm512_cvtepi32_epi16(v));
  }
  /// Lanes of `v` where a bit is set, else of `other`.
  VITRINE_INLINE Lanes select(uint32_t bits, Lanes v, Lanes other) {
    return _mm512_mask_mov_ps(other, static_cast<__mmask16>(bits), v);
  }
  VITRINE_INLINE float sum(Lanes v) { return sum_lanes(v); }
  VITRINE_INLINE float largest(Lanes v) { return max_lanes(v); }
};

}  // namespace
}  // namespace vitrine::kernels::avx512
