// SPDX-License-Identifier: Apache-2.0
// 16-lane building blocks of the AVX2 table: two vectors of 8; docs/numerics.md states each of
// them.
//
// Everything here has internal linkage and uses intrinsics only: an inline function of the standard
// library, compiled in these files, could be the copy that the linker keeps for other machines too.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../cpu_kernels.h"
#include "../exp_constants.h"

#define VITRINE_INLINE static inline __attribute__((always_inline))

namespace vitrine::kernels::avx2 {

/// 16 lanes: 0-7 and 8-15.
struct Lanes {
  __m256 low;
  __m256 high;
};

struct Mask {
  __m256i low;
  __m256i high;
};

/// The first n lanes of 8, all of them from n = 8 on, none up to n = 0.
VITRINE_INLINE __m256i first_lanes_8(int64_t n) {
  const int clamped = n >= 8 ? 8 : static_cast<int>(n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(clamped), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/// The first n of 16 lanes.
VITRINE_INLINE Mask first_lanes(int64_t n) { return {first_lanes_8(n), first_lanes_8(n - 8)}; }
/// Lanes begin … end - 1.
VITRINE_INLINE Mask lanes_between(int64_t begin, int64_t end) {
  const Mask before = first_lanes(begin), all = first_lanes(end);
  return {_mm256_andnot_si256(before.low, all.low), _mm256_andnot_si256(before.high, all.high)};
}

/// Bit i: lane i.
VITRINE_INLINE uint32_t bits_of(__m256 low, __m256 high) {
  return static_cast<uint32_t>(_mm256_movemask_ps(low)) |
         static_cast<uint32_t>(_mm256_movemask_ps(high)) << 8;
}
VITRINE_INLINE uint32_t first_bits(int64_t n) { return n >= 16 ? 0xffffu : (1u << n) - 1u; }

VITRINE_INLINE Lanes set_lanes(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
VITRINE_INLINE Lanes minus_infinity() { return set_lanes(-__builtin_inff()); }

VITRINE_INLINE Lanes load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
/// Other lanes are zero, and their memory is not touched.
VITRINE_INLINE Lanes load(const float* x, Mask mask) {
  return {_mm256_maskload_ps(x, mask.low), _mm256_maskload_ps(x + 8, mask.high)};
}
VITRINE_INLINE void store(float* x, Lanes v) {
  _mm256_storeu_ps(x, v.low);
  _mm256_storeu_ps(x + 8, v.high);
}
VITRINE_INLINE void store(float* x, Lanes v, Mask mask) {
  _mm256_maskstore_ps(x, mask.low, v.low);
  _mm256_maskstore_ps(x + 8, mask.high, v.high);
}

/// b where the mask holds, a elsewhere.
VITRINE_INLINE Lanes blend(Lanes a, Lanes b, Mask mask) {
  return {_mm256_blendv_ps(a.low, b.low, _mm256_castsi256_ps(mask.low)),
          _mm256_blendv_ps(a.high, b.high, _mm256_castsi256_ps(mask.high))};
}
VITRINE_INLINE Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
VITRINE_INLINE Lanes sub(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
VITRINE_INLINE Lanes mul(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
VITRINE_INLINE Lanes div(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
VITRINE_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
/// b where a lane of either is NaN.
VITRINE_INLINE Lanes max(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
VITRINE_INLINE uint32_t nan_bits(Lanes v) {
  return bits_of(_mm256_cmp_ps(v.low, v.low, _CMP_UNORD_Q),
                 _mm256_cmp_ps(v.high, v.high, _CMP_UNORD_Q));
}

/// Adds the lanes in the fixed tree: (j, j+8), (j, j+4), (j, j+2), (j, j+1).
VITRINE_INLINE float sum_lanes(Lanes v) {
  const __m256 by8 = _mm256_add_ps(v.low, v.high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

/// Element i of the result is sum_lanes(v[i]).
VITRINE_INLINE __m128 sum_lanes_4(const Lanes* v) {
  __m128 by4[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 by8 = _mm256_add_ps(v[i].low, v[i].high);
    by4[i] = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  }
  const __m128 low01 = _mm_unpacklo_ps(by4[0], by4[1]);
  const __m128 low23 = _mm_unpacklo_ps(by4[2], by4[3]);
  const __m128 high01 = _mm_unpackhi_ps(by4[0], by4[1]);
  const __m128 high23 = _mm_unpackhi_ps(by4[2], by4[3]);
  const __m128 even = _mm_add_ps(_mm_movelh_ps(low01, low23), _mm_movelh_ps(high01, high23));
  const __m128 odd = _mm_add_ps(_mm_movehl_ps(low23, low01), _mm_movehl_ps(high23, high01));
  return _mm_add_ps(even, odd);
}

/// The maximum of 16 lanes, none of which is NaN; the tree of the sum.
VITRINE_INLINE float max_lanes(Lanes v) {
  const __m256 by8 = _mm256_max_ps(v.low, v.high);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

/// p * 2^n, rounded once: two factors, so that the first product is exact (denormals). Of a NaN the
/// exponent is nonsense, and the product NaN.
VITRINE_INLINE __m256 scale_by_power(__m256 p, __m256 n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i rest = _mm256_sub_epi32(exponent, half);
  p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

VITRINE_INLINE __m256 exp_8(__m256 x) {
  // min and max give their second operand where one is NaN.
  x = _mm256_min_ps(_mm256_set1_ps(kExpHigh), x);
  x = _mm256_max_ps(_mm256_set1_ps(kExpLow), x);
  const __m256 magic = _mm256_set1_ps(kRoundMagic);
  const __m256 n = _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), magic), magic);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kExpC6), r, _mm256_set1_ps(kExpC5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  return scale_by_power(p, n);
}

VITRINE_INLINE Lanes exp_lanes(Lanes x) { return {exp_8(x.low), exp_8(x.high)}; }

VITRINE_INLINE __m256 silu_8(__m256 x) {
  const __m256 negated = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp_8(negated)));
}

VITRINE_INLINE __m256 widen_bf16_8(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/// E4M3 as float16 with its exponent 2^8 too small, which the conversion widens at full speed
/// (subnormal ones too); none is a NaN.
VITRINE_INLINE __m256 widen_e4m3_8(__m128i bytes) {
  const __m128i moved = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
  const __m128i halves = _mm_and_si128(moved, _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
  return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
}

/// Loads 8 consecutive elements, widened.
template <WeightFormat kFormat>
VITRINE_INLINE __m256 load_8(const uint8_t* data) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(data));
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
  } else if constexpr (kFormat == WeightFormat::kE4M3) {
    return widen_e4m3_8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(data)));
  } else {
    return widen_bf16_8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
  }
}

/// Loads the first n (1 … 8) of 8 elements, widened; the other lanes are zero.
template <WeightFormat kFormat>
VITRINE_INLINE __m256 load_8(const uint8_t* data, int64_t n) {
  constexpr int kBytes = element_bytes(kFormat);
  alignas(32) uint8_t copy[8 * kBytes] = {};
  __builtin_memcpy(copy, data, static_cast<size_t>(n) * kBytes);
  return load_8<kFormat>(copy);
}

/// Loads 16 consecutive elements, widened.
template <WeightFormat kFormat>
VITRINE_INLINE Lanes load_lanes(const uint8_t* data) {
  constexpr int kBytes = element_bytes(kFormat);
  return {load_8<kFormat>(data), load_8<kFormat>(data + 8 * kBytes)};
}

/// Loads the first n (1 … 16) of 16 elements, widened; the other lanes are zero.
template <WeightFormat kFormat>
VITRINE_INLINE Lanes load_lanes(const uint8_t* data, int64_t n) {
  constexpr int kBytes = element_bytes(kFormat);
  alignas(32) uint8_t copy[16 * kBytes] = {};
  __builtin_memcpy(copy, data, static_cast<size_t>(n) * kBytes);
  return load_lanes<kFormat>(copy);
}

}  // namespace vitrine::kernels::avx2
