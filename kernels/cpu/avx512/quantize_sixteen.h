// SPDX-License-Identifier: Apache-2.0
// Activation quantization: sixteen whole groups of 32 at once, a lane for each in what is done once
// a group.
#pragma once

#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int kSixteen = 16;
constexpr int kSixteenGroupSize = 32;
constexpr int64_t kSixteenNumbers = kSixteen * kSixteenGroupSize;

/// A lane a group, of as many as the mask says.
VITRINE_INLINE void store_sums(__m512i whole, __m512i first_half, __m512 scale, __mmask16 groups,
                               GroupSum* sums) {
  const __m512i words =
      _mm512_mask_blend_epi16(0xaaaaaaaa, whole, _mm512_slli_epi32(first_half, 16));
  const __m512i weighted = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale));
  const __m512i turns = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i later = _mm512_add_epi32(turns, _mm512_set1_epi32(8));
  auto* out = reinterpret_cast<int64_t*>(sums);
  _mm512_mask_storeu_epi64(out, static_cast<__mmask8>(groups),
                           _mm512_permutex2var_epi32(words, turns, weighted));
  _mm512_mask_storeu_epi64(out + 8, static_cast<__mmask8>(groups >> 8),
                           _mm512_permutex2var_epi32(words, later, weighted));
}

/// The largest of 32 floats' magnitudes, lane by lane of the two halves, as bits: those of a NaN
/// are above all others.
VITRINE_INLINE __m512 largest_bits(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
  const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), magnitude);
  return _mm512_castsi512_ps(_mm512_max_epi32(a, b));
}

VITRINE_INLINE __m512 max_of_bits(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/// 32 numbers of two vectors as 16-bit integers, each part of 128 bits four of the first's and four
/// of the second's.
VITRINE_INLINE __m512i quantize_32(const float* x, __m512 factor) {
  // The factor is rounded by less than what would lead above 127.5.
  const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor));
  const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), factor));
  return _mm512_packs_epi32(a, b);
}

/// Adds up the four sums in each 128-bit part of four vectors; the parts' totals stand side by
/// side.
VITRINE_INLINE __m512i total_of_parts(const __m512i* v) {
  const __m512i first =
      _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i last =
      _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(first, last), _mm512_unpackhi_epi64(first, last));
}

/// False, with nothing done, where a group holds NaN, an infinity or nothing but (nearly) zeros.
VITRINE_INLINE bool quantize_sixteen(const float* x, int8_t* values, float* scales,
                                     GroupSum* sums) {
  __m512 most[kSixteen];
#pragma GCC unroll 16
  for (int g = 0; g < kSixteen; ++g) most[g] = largest_bits(x + g * kSixteenGroupSize);
  const __m512 largest = reduce_lanes_16(most, max_of_bits);
  const __m512 factors = _mm512_div_ps(_mm512_set1_ps(127.0f), largest);
  // Neither 0 (of an infinity) nor infinite nor NaN.
  const __mmask16 plain = _mm512_cmp_ps_mask(factors, _mm512_setzero_ps(), _CMP_GT_OQ) &
                          _mm512_cmp_ps_mask(factors, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
  if (plain != 0xffff) return false;
  const __m512 scale = _mm512_div_ps(largest, _mm512_set1_ps(127.0f));
  _mm512_storeu_ps(scales, scale);
  alignas(64) float factor[kSixteen];
  _mm512_store_ps(factor, factors);
  const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i parts[kSixteen / 2];  // of two groups' halves, each four bytes' sum
#pragma GCC unroll 8
  for (int pair = 0; pair < kSixteen / 2; ++pair) {
    const float* group = x + 2 * pair * kSixteenGroupSize;
    const __m512i first = quantize_32(group, _mm512_set1_ps(factor[2 * pair]));
    const __m512i second =
        quantize_32(group + kSixteenGroupSize, _mm512_set1_ps(factor[2 * pair + 1]));
    const __m512i bytes = _mm512_permutexvar_epi32(in_order, _mm512_packs_epi16(first, second));
    _mm512_storeu_si512(values + 2 * pair * kSixteenGroupSize, bytes);
    parts[pair] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
  }
  // 128-bit parts: the even groups' first and last halves, then the odd groups'.
  const __m512i low = total_of_parts(parts), high = total_of_parts(parts + 4);
  const __m512i firsts =
      _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
  const __m512i lasts = _mm512_add_epi32(firsts, _mm512_set1_epi32(4));
  const __m512i first_half = _mm512_permutex2var_epi32(low, firsts, high);
  const __m512i whole = _mm512_add_epi32(first_half, _mm512_permutex2var_epi32(low, lasts, high));
  store_sums(whole, first_half, scale, 0xffff, sums);
  return true;
}

}  // namespace
}  // namespace vitrine::kernels::avx512
