// SPDX-License-Identifier: Apache-2.0
// Activation quantization with 256-bit vectors: whole groups of 32 four at a time, whose divisions,
// tests and sums are then one vector's. For files that are compiled for AVX2 or more.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "cpu_kernels.h"

namespace vitrine::kernels {
namespace {

constexpr int kFourGroups = 4;
constexpr int kFourGroupSize = 32;

/// The largest lane of each.
__attribute__((always_inline)) inline __m128 max_of_each(const __m256* v) {
  const __m256 first = _mm256_max_ps(_mm256_permute2f128_ps(v[0], v[1], 0x20),
                                     _mm256_permute2f128_ps(v[0], v[1], 0x31));
  const __m256 last = _mm256_max_ps(_mm256_permute2f128_ps(v[2], v[3], 0x20),
                                    _mm256_permute2f128_ps(v[2], v[3], 0x31));
  // Lanes 0 and 1 of each half are now the first two's, 2 and 3 the last two's.
  const __m256 pairs =
      _mm256_max_ps(_mm256_shuffle_ps(first, last, 0x88), _mm256_shuffle_ps(first, last, 0xdd));
  const __m256 all = _mm256_max_ps(pairs, _mm256_shuffle_ps(pairs, pairs, 0xb1));
  return _mm_blend_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1), 0xa);
}

/// Four whole groups of 32; false, with nothing done, where one of them holds NaN, an infinity or
/// nothing but (nearly) zeros.
__attribute__((always_inline)) inline bool quantize_four(const float* x, int8_t* values,
                                                         float* scales, GroupSum* sums) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 nan = _mm256_setzero_ps();
  __m256 most[kFourGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kFourGroups; ++g) {
    const float* group = x + g * kFourGroupSize;
    const __m256 a = _mm256_loadu_ps(group), b = _mm256_loadu_ps(group + 8);
    const __m256 c = _mm256_loadu_ps(group + 16), d = _mm256_loadu_ps(group + 24);
    nan = _mm256_or_ps(
        nan, _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q), _mm256_cmp_ps(c, d, _CMP_UNORD_Q)));
    most[g] = _mm256_max_ps(_mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b)),
                            _mm256_max_ps(_mm256_andnot_ps(sign, c), _mm256_andnot_ps(sign, d)));
  }
  const __m128 largest = max_of_each(most);
  const __m128 factors = _mm_div_ps(_mm_set1_ps(127.0f), largest);
  const __m128 special = _mm_or_ps(_mm_cmpeq_ps(factors, _mm_setzero_ps()),
                                   _mm_cmpeq_ps(factors, _mm_set1_ps(__builtin_inff())));
  if (_mm256_movemask_ps(nan) != 0 || _mm_movemask_ps(special) != 0) return false;
  const __m128 scale = _mm_div_ps(largest, _mm_set1_ps(127.0f));
  _mm_storeu_ps(scales, scale);
  alignas(16) float factor[kFourGroups];
  _mm_store_ps(factor, factors);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i parts[kFourGroups];  // of each four bytes the sum
#pragma GCC unroll 4
  for (int g = 0; g < kFourGroups; ++g) {
    const __m256 multiplier = _mm256_broadcast_ss(factor + g);
    __m256i numbers[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      // The factor is rounded by less than what would lead above 127.5.
      numbers[i] = _mm256_cvtps_epi32(
          _mm256_mul_ps(_mm256_loadu_ps(x + g * kFourGroupSize + 8 * i), multiplier));
    }
    const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(numbers[0], numbers[1]),
                                             _mm256_packs_epi32(numbers[2], numbers[3]));
    const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, in_order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + g * kFourGroupSize), bytes);
    parts[g] =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
  }
  // Halves of a group lie in the halves of a vector.
  const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(parts[0], parts[1]),
                                           _mm256_hadd_epi32(parts[2], parts[3]));
  const __m128i first_half = _mm256_castsi256_si128(halves);
  const __m128i whole = _mm_add_epi32(first_half, _mm256_extracti128_si256(halves, 1));
  const __m128i words = _mm_blend_epi16(whole, _mm_slli_epi32(first_half, 16), 0xaa);
  const __m128i weighted = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(whole), scale));
  auto* out = reinterpret_cast<__m128i*>(sums);
  _mm_storeu_si128(out, _mm_unpacklo_epi32(words, weighted));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi32(words, weighted));
  return true;
}

/// A row: whole groups of 32 four at a time; `rest` does others from one on, of which `left`
/// numbers are left, and says how many groups it did.
template <typename Rest>
__attribute__((always_inline)) inline void quantize_with_fours(const float* x, int64_t n,
                                                               int32_t group_size, int8_t* values,
                                                               float* scales, GroupSum* sums,
                                                               const Rest& rest) {
  static_assert(sizeof(GroupSum) == 8 && offsetof(GroupSum, first_half) == 2);
  for (int64_t i = n; i < padded_cols(n); ++i) values[i] = 0;
  const int64_t groups = group_count(n, group_size);
  for (int64_t g = 0; g < groups;) {
    const int64_t begin = g * group_size, left = n - begin;
    const bool is_four = group_size == kFourGroupSize && left >= kFourGroups * kFourGroupSize;
    if (is_four && quantize_four(x + begin, values + begin, scales + g, sums + g)) {
      g += kFourGroups;
    } else {
      g += rest(g, left);
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels
