// SPDX-License-Identifier: Apache-2.0
// Activation quantization of the AVX-512 table: whole groups of 32 sixteen at a time up to one that
// is special, the rest of the row four at a time, as AVX2 does; groups of other sizes up to
// sixteen, whose divisions, tests and sums are then one vector's.
#include "../quantize_four.h"
#include "../quantize_whole.h"
#include "avx512.h"
#include "math.h"
#include "quantize_sixteen.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int kGroups = 16;
constexpr int64_t kFewGroups = 4;

/// The largest magnitudes of up to 16 groups, and which groups hold NaN.
struct Largest {
  alignas(64) float values[kGroups];
  uint32_t nan = 0;
};

VITRINE_INLINE void find_largest(const float* x, int64_t count, int group, Largest* out) {
  __m512 max = _mm512_setzero_ps();
  __mmask16 nan = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 v = _mm512_abs_ps(_mm512_maskz_loadu_ps(first_lanes(count - i), x + i));
    nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    max = _mm512_max_ps(v, max);
  }
  out->values[group] = max_lanes(max);
  out->nan |= (nan != 0 ? 1u : 0u) << group;
}

/// 16 numbers as bytes, stored; the sums of the first and of the last eight, each plus 8 * 128.
VITRINE_INLINE __m128i quantize_16(const float* x, __mmask16 lanes, __m512 factor, int8_t* values) {
  const __m512 v = _mm512_maskz_loadu_ps(lanes, x);
  // The factor is rounded by less than what would lead above 127.5.
  const __m512i rounded = _mm512_cvt_roundps_epi32(_mm512_mul_ps(v, factor),
                                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m128i bytes = _mm512_cvtsepi32_epi8(rounded);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(values), bytes);
  return _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
}

/// Quantizes one group of `count` numbers. Returns {its first half's sum, its last half's}, each
/// plus 128 for every number of a whole group.
VITRINE_INLINE __m128i quantize_group(const float* x, int64_t count, int32_t group_size,
                                      __m512 factor, int8_t* values) {
  const int32_t half = group_size / 2;
  __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
#pragma GCC unroll 2
  for (int part = 0; part < 2; ++part) {
    for (int32_t i = part * half; i < part * half + half; i += 16) {
      const bool is_there = i < count;
      const __m128i sum = is_there ? quantize_16(x + i, first_lanes(count - i), factor, values + i)
                                   : _mm_set1_epi64x(8 * 128);
      sums[part] = _mm_add_epi64(sums[part], sum);
    }
  }
  return _mm_add_epi64(_mm_unpacklo_epi64(sums[0], sums[1]), _mm_unpackhi_epi64(sums[0], sums[1]));
}

VITRINE_INLINE void store_zeros(int8_t* values, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i), _mm_setzero_si128());
  }
}

/// One group of n numbers by itself, which is faster than a few side by side.
VITRINE_INLINE void quantize_one(const float* x, int64_t n, int32_t group_size, int8_t* values,
                                 float* scale, GroupSum* sum) {
  Largest found;
  find_largest(x, n, 0, &found);
  const float largest = found.values[0];
  const float factor = 127.0f / largest;
  if (found.nan != 0 || factor == 0.0f || factor == __builtin_inff()) {
    store_zeros(values, n);
    *scale = found.nan != 0 ? __builtin_nanf("") : (factor == 0.0f ? __builtin_inff() : 0.0f);
    *sum = {0, 0, 0.0f * *scale};
    return;
  }
  *scale = largest / 127.0f;
  const __m128i halves = quantize_group(x, n, group_size, _mm512_set1_ps(factor), values);
  const int32_t first_half = _mm_cvtsi128_si32(halves) - group_size * 64;
  const int32_t whole = first_half + _mm_extract_epi32(halves, 2) - group_size * 64;
  *sum = {static_cast<int16_t>(whole), static_cast<int16_t>(first_half),
          static_cast<float>(whole) * *scale};
}

/// `count` groups, at most 16, of n numbers in all.
VITRINE_INLINE void quantize_groups(const float* x, int64_t n, int count, int32_t group_size,
                                    int8_t* values, float* scales, GroupSum* sums) {
  const __mmask16 groups = first_lanes(count);
  const auto length = [n, group_size](int group) {
    const int64_t left = n - static_cast<int64_t>(group) * group_size;
    return left < group_size ? left : group_size;
  };
  Largest largest;
  for (int g = 0; g < count; ++g) find_largest(x + g * group_size, length(g), g, &largest);
  const __m512 infinity = _mm512_set1_ps(__builtin_inff());
  const __m512 most = _mm512_maskz_loadu_ps(groups, largest.values);
  const __m512 factors = _mm512_div_ps(_mm512_set1_ps(127.0f), most);
  // Factor 0: the largest is infinite. Factor infinite: it is 0, or so small that 127 / it
  // overflows.
  const __mmask16 is_infinite = _mm512_cmp_ps_mask(factors, _mm512_setzero_ps(), _CMP_EQ_OQ);
  const __mmask16 is_zero = _mm512_cmp_ps_mask(factors, infinity, _CMP_EQ_OQ);
  const auto has_nan = static_cast<__mmask16>(largest.nan);
  const auto is_special = static_cast<__mmask16>(is_infinite | is_zero | has_nan);
  __m512 scale = _mm512_div_ps(most, _mm512_set1_ps(127.0f));
  scale = _mm512_mask_mov_ps(scale, is_zero, _mm512_setzero_ps());
  scale = _mm512_mask_mov_ps(scale, is_infinite, infinity);
  scale = _mm512_mask_mov_ps(scale, has_nan, _mm512_set1_ps(__builtin_nanf("")));
  _mm512_mask_storeu_ps(scales, groups, scale);

  alignas(64) float factor[kGroups];
  alignas(64) int64_t halves[2 * kGroups];
  _mm512_store_ps(factor, factors);
  for (int g = 0; g < count; ++g) {
    int8_t* to = values + g * group_size;
    __m128i sum = _mm_set1_epi64x(group_size * 64);
    if ((is_special >> g & 1) == 0) {
      sum =
          quantize_group(x + g * group_size, length(g), group_size, _mm512_set1_ps(factor[g]), to);
    } else {
      store_zeros(to, length(g));
    }
    _mm_store_si128(reinterpret_cast<__m128i*>(halves + 2 * g), sum);
  }
  // What the bytes were raised by goes: 128 each, as many as a whole group has.
  const __m512i raised = _mm512_set1_epi32(group_size * 64);
  const __m512i low = _mm512_load_si512(halves), high = _mm512_load_si512(halves + 8);
  const __m512i low2 = _mm512_load_si512(halves + 16), high2 = _mm512_load_si512(halves + 24);
  const __m512i evens = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(2));
  const auto of = [&](__m512i places) {
    const __m512i first = _mm512_permutex2var_epi32(low, places, high);
    const __m512i second = _mm512_permutex2var_epi32(low2, places, high2);
    return _mm512_sub_epi32(_mm512_mask_blend_epi32(0xff00, first, second), raised);
  };
  const __m512i first_half = of(evens);
  const __m512i whole = _mm512_add_epi32(first_half, of(odds));
  store_sums(whole, first_half, scale, groups, sums);
}

}  // namespace

void quantize_row(const float* x, int64_t n, int32_t group_size, int8_t* values, float* scales,
                  GroupSum* sums) {
  while (group_size == kSixteenGroupSize && n >= kSixteenNumbers &&
         quantize_sixteen(x, values, scales, sums)) {
    x += kSixteenNumbers, values += kSixteenNumbers, n -= kSixteenNumbers;
    scales += kSixteen, sums += kSixteen;
  }
  const int64_t groups = group_count(n, group_size);
  const auto others = [&](int64_t g, int64_t left) __attribute__((always_inline)) {
    const int64_t begin = g * group_size;
    const int64_t count = groups - g < kFewGroups ? 1 : groups - g < kGroups ? groups - g : kGroups;
    if (count == 1) {
      const int64_t length = left < group_size ? left : group_size;
      quantize_one(x + begin, length, group_size, values + begin, scales + g, sums + g);
    } else {
      quantize_groups(x + begin, left, static_cast<int>(count), group_size, values + begin,
                      scales + g, sums + g);
    }
    return count;
  };
  quantize_with_fours(x, n, group_size, values, scales, sums, others);
}

void quantize_whole_row(const float* x, int64_t n, int32_t group_size, float given, int8_t* values,
                        float* scales, GroupSum* sums) {
  quantize_whole(x, n, group_size, given, values, scales, sums);
}

}  // namespace vitrine::kernels::avx512
