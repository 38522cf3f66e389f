// SPDX-License-Identifier: Apache-2.0
// Activation quantization of the AVX2 table.
#include "../quantize_four.h"
#include "../quantize_whole.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

VITRINE_INLINE int32_t sum_integers(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return _mm_cvtsi128_si32(sum);
}

/// One group of `count` numbers.
VITRINE_INLINE void quantize_one(const float* x, int32_t count, int32_t group_size, int8_t* values,
                                 float* scale, GroupSum* of) {
  const float infinity = __builtin_inff();
  const __m256i limit = _mm256_set1_epi32(127);
  const __m256i low_limit = _mm256_set1_epi32(-127);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  Lanes largest_lanes = set_lanes(0.0f);
  uint32_t nan = 0;
  for (int32_t i = 0; i < count; i += 16) {
    Lanes v = load(x + i, first_lanes(count - i));
    v = {_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
    nan |= nan_bits(v);
    largest_lanes = max(v, largest_lanes);
  }
  const float largest = max_lanes(largest_lanes);
  const float factor = 127.0f / largest;
  if (nan != 0 || factor == 0.0f || factor == infinity) {
    for (int32_t i = 0; i < count; i += 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i), _mm_setzero_si128());
    }
    *scale = nan != 0 ? __builtin_nanf("") : (factor == 0.0f ? infinity : 0.0f);
    *of = {0, 0, 0.0f * *scale};
    return;
  }
  *scale = largest / 127.0f;
  const Lanes multiplier = set_lanes(factor);
  __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};  // of the group's halves
  for (int32_t i = 0; i < count; i += 16) {
    const Lanes scaled = mul(load(x + i, first_lanes(count - i)), multiplier);
    __m256i low = _mm256_cvtps_epi32(scaled.low);
    __m256i high = _mm256_cvtps_epi32(scaled.high);
    low = _mm256_min_epi32(_mm256_max_epi32(low, low_limit), limit);
    high = _mm256_min_epi32(_mm256_max_epi32(high, low_limit), limit);
    __m256i& half = sum[2 * i >= group_size ? 1 : 0];
    half = _mm256_add_epi32(half, _mm256_add_epi32(low, high));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i), bytes);
  }
  const int32_t first_half = sum_integers(sum[0]);
  const int32_t whole = first_half + sum_integers(sum[1]);
  *of = {static_cast<int16_t>(whole), static_cast<int16_t>(first_half),
         static_cast<float>(whole) * *scale};
}

}  // namespace

void quantize_row(const float* x, int64_t n, int32_t group_size, int8_t* values, float* scales,
                  GroupSum* sums) {
  const auto one = [&](int64_t group, int64_t left) __attribute__((always_inline)) {
    const auto count = static_cast<int32_t>(left < group_size ? left : group_size);
    const int64_t begin = group * group_size;
    quantize_one(x + begin, count, group_size, values + begin, scales + group, sums + group);
    return 1;
  };
  quantize_with_fours(x, n, group_size, values, scales, sums, one);
}

void quantize_whole_row(const float* x, int64_t n, int32_t group_size, float given, int8_t* values,
                        float* scales, GroupSum* sums) {
  quantize_whole(x, n, group_size, given, values, scales, sums);
}

}  // namespace vitrine::kernels::avx2
