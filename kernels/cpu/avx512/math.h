// SPDX-License-Identifier: Apache-2.0
// 16-lane building blocks of the AVX-512 table; docs/numerics.md states each of them.
//
// Everything here has internal linkage and uses intrinsics only: an inline function of the standard
// library, compiled in these files, could be the copy that the linker keeps for other machines too.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../cpu_kernels.h"
#include "../exp_constants.h"

#define VITRINE_INLINE static inline __attribute__((always_inline))

namespace vitrine::kernels::avx512 {

/// Keeps a value in a register: otherwise GCC folds a load into each of the products that use it,
/// and the load ports become the limit.
VITRINE_INLINE void keep_in_register(__m512& v) { asm("" : "+v"(v)); }
VITRINE_INLINE void keep_in_register(__m512i& v) { asm("" : "+v"(v)); }

/// The first n (0 … 16) lanes.
VITRINE_INLINE __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

VITRINE_INLINE __m512 minus_infinity() { return _mm512_set1_ps(-__builtin_inff()); }

/// Adds the lanes in the fixed tree: (j, j+8), (j, j+4), (j, j+2), (j, j+1).
VITRINE_INLINE float sum_lanes(__m512 v) {
  const __m256 high = _mm512_extractf32x8_ps(v, 1);
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(v), high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

/// The maximum of 16 lanes, none of which is NaN; the tree of the sum.
VITRINE_INLINE float max_lanes(__m512 v) {
  const __m256 high = _mm512_extractf32x8_ps(v, 1);
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(v), high);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

/// Lane i of the result is what v[i]'s lanes come to, taken together two and two: i and i + 8, then
/// + 4, + 2, + 1.
template <class Combine>
VITRINE_INLINE __m512 reduce_lanes_16(const __m512* v, const Combine& combine) {
  __m512 by8[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {  // lanes 0-7: of v[i]; lanes 8-15: of v[i + 8]
    const __m512 low = _mm512_shuffle_f32x4(v[i], v[i + 8], 0x44);
    const __m512 high = _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee);
    by8[i] = combine(low, high);
  }
  __m512 by4[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // 128-bit parts: v[i], v[i + 8], v[i + 4], v[i + 12]
    const __m512 low = _mm512_shuffle_f32x4(by8[i], by8[i + 4], 0x88);
    const __m512 high = _mm512_shuffle_f32x4(by8[i], by8[i + 4], 0xdd);
    by4[i] = combine(low, high);
  }
  __m512 by2[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // each 128-bit part: two lanes of v[i + …], two of v[i + 2 + …]
    const __m512 low = _mm512_shuffle_ps(by4[i], by4[i + 2], 0x44);
    const __m512 high = _mm512_shuffle_ps(by4[i], by4[i + 2], 0xee);
    by2[i] = combine(low, high);
  }
  const __m512 low = _mm512_shuffle_ps(by2[0], by2[1], 0x88);
  const __m512 high = _mm512_shuffle_ps(by2[0], by2[1], 0xdd);
  // Each 128-bit part p now holds 0, 2, 1, 3 (+ its base 0, 8, 4, 12).
  const __m512 mixed = combine(low, high);
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(order, mixed);
}

/// Where 16 vectors are added up at once: lane i of the result is sum_lanes(v[i]).
VITRINE_INLINE __m512 sum_lanes_16(const __m512* v) {
  return reduce_lanes_16(
      v, [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_add_ps(a, b); });
}

/// Adds 16 vectors in the order of sum_lanes, where vector i holds lane i of each dot. Changes
/// them.
VITRINE_INLINE __m512 sum_vectors_16(__m512* v) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = _mm512_add_ps(v[i], v[i + 8]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) v[i] = _mm512_add_ps(v[i], v[i + 4]);
  return _mm512_add_ps(_mm512_add_ps(v[0], v[2]), _mm512_add_ps(v[1], v[3]));
}

/// exp_lanes of lanes from kExpLow to kExpHigh.
VITRINE_INLINE __m512 exp_in_range(__m512 x) {
  const __m512 magic = _mm512_set1_ps(kRoundMagic);
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(kLog2E), magic), magic);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), r);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kExpC6), r, _mm512_set1_ps(kExpC5));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC2));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

VITRINE_INLINE __m512 exp_lanes(__m512 x) {
  // min and max give their second operand where one is NaN.
  x = _mm512_min_ps(_mm512_set1_ps(kExpHigh), x);
  x = _mm512_max_ps(_mm512_set1_ps(kExpLow), x);
  return exp_in_range(x);
}

VITRINE_INLINE __m512 silu_lanes(__m512 x) {
  const __m512 negated = _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exp_lanes(negated)));
}

VITRINE_INLINE __m512 widen_bf16_lanes(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/// E4M3 as float16 with its exponent 2^8 too small, which the conversion widens at full speed
/// (subnormal ones too); none is a NaN.
VITRINE_INLINE __m512 widen_e4m3_lanes(__m128i bytes) {
  const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i halves = _mm256_and_si256(moved, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m512 small = _mm512_cvtph_ps(halves);
  return _mm512_mul_ps(small, _mm512_set1_ps(256.0f));
}

/// Loads the masked lanes of 16 consecutive elements, widened.
template <WeightFormat kFormat>
VITRINE_INLINE __m512 load_lanes(const uint8_t* data, __mmask16 mask) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return _mm512_maskz_loadu_ps(mask, data);
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, data));
  } else if constexpr (kFormat == WeightFormat::kE4M3) {
    return widen_e4m3_lanes(_mm_maskz_loadu_epi8(mask, data));
  } else {
    return widen_bf16_lanes(_mm256_maskz_loadu_epi16(mask, data));
  }
}

/// Loads 16 consecutive elements, widened.
template <WeightFormat kFormat>
VITRINE_INLINE __m512 load_lanes(const uint8_t* data) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return _mm512_loadu_ps(data);
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
  } else if constexpr (kFormat == WeightFormat::kE4M3) {
    return widen_e4m3_lanes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
  } else {
    return widen_bf16_lanes(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
  }
}

}  // namespace vitrine::kernels::avx512
