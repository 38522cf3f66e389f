// SPDX-License-Identifier: Apache-2.0
// Sixteen floats, and sixteen integers or pairs of them, for templates that take an instruction
// set's vectors.
#pragma once

#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

struct IntegerLanes {
  using Lanes = avx2::Lanes;
  struct Integers {
    __m256i low, high;
  };
  VITRINE_INLINE Lanes load(const float* x) { return avx2::load(x); }
  VITRINE_INLINE void store(float* x, Lanes v) { avx2::store(x, v); }
  VITRINE_INLINE Lanes set(float x) { return set_lanes(x); }
  VITRINE_INLINE Lanes add(Lanes a, Lanes b) { return avx2::add(a, b); }
  VITRINE_INLINE Lanes sub(Lanes a, Lanes b) { return avx2::sub(a, b); }
  VITRINE_INLINE Lanes mul(Lanes a, Lanes b) { return avx2::mul(a, b); }
  VITRINE_INLINE Lanes div(Lanes a, Lanes b) { return avx2::div(a, b); }
  VITRINE_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return avx2::fma(a, b, c); }
  VITRINE_INLINE Lanes max(Lanes a, Lanes b) { return avx2::max(a, b); }
  VITRINE_INLINE Lanes exp(Lanes x) { return exp_lanes(x); }
  VITRINE_INLINE Integers load_integers(const int32_t* x) {
    const auto* words = reinterpret_cast<const __m256i*>(x);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  VITRINE_INLINE void store_integers(int32_t* x, Integers v) {
    auto* words = reinterpret_cast<__m256i*>(x);
    _mm256_storeu_si256(words, v.low);
    _mm256_storeu_si256(words + 1, v.high);
  }
  VITRINE_INLINE Integers set_integers(int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
  }
  VITRINE_INLINE Integers bit_and(Integers a, Integers b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
  }
  VITRINE_INLINE Integers round(Lanes x) {
    return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)};
  }
  VITRINE_INLINE Lanes widen(Integers x) {
    return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
  }
  VITRINE_INLINE Integers dot(Integers sum, Integers a, Integers b) {
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, b.low)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, b.high))};
  }
  VITRINE_INLINE Integers pair(Integers first, Integers second) {
    return {_mm256_or_si256(first.low, _mm256_slli_epi32(second.low, 16)),
            _mm256_or_si256(first.high, _mm256_slli_epi32(second.high, 16))};
  }
  /// 16 words of two int16 each.
  VITRINE_INLINE Integers load_words(const int16_t* x) {
    const auto* words = reinterpret_cast<const __m256i*>(x);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  /// Loads numbers of int8 and widens them.
  VITRINE_INLINE Integers load_words(const int8_t* x) {
    const auto* bytes = reinterpret_cast<const __m128i*>(x);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(bytes)),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes + 1))};
  }
  /// Integers that fit 16 bits, two a word.
  VITRINE_INLINE void store_narrow(int32_t* x, Integers v) {
    const __m256i packed = _mm256_packs_epi32(v.low, v.high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  /// Lanes of `v` where a bit is set, else of `other`.
  VITRINE_INLINE Lanes select(uint32_t bits, Lanes v, Lanes other) {
    const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(bits));
    const __m256i high = _mm256_slli_epi32(low, 8);
    const Mask mask = {_mm256_cmpeq_epi32(_mm256_and_si256(all, low), low),
                       _mm256_cmpeq_epi32(_mm256_and_si256(all, high), high)};
    return blend(other, v, mask);
  }
  VITRINE_INLINE float sum(Lanes v) { return sum_lanes(v); }
  VITRINE_INLINE float largest(Lanes v) { return max_lanes(v); }
};

}  // namespace
}  // namespace vitrine::kernels::avx2
