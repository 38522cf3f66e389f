// SPDX-License-Identifier: Apache-2.0
// Float32, float16, bfloat16 and E4M3 matrix products: four dots at once, rows x tokens = 4x1 or
// 2x2.
#include "../widen.h"
#include "linear.h"

namespace vitrine::kernels::avx2 {
namespace {

/// Lanes t * kRows + r of `acc`: of the dot of weight row r and token t.
template <WeightFormat kFormat, int kRows, int kTokens>
VITRINE_INLINE void accumulate(const uint8_t* const* weight_rows, const float* const* x,
                               int64_t cols, Lanes (&acc)[4]) {
  constexpr int kBytes = element_bytes(kFormat);
  static_assert(kRows * kTokens == 4);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) acc[i] = set_lanes(0.0f);
  int64_t i = 0;
  for (; i + 16 <= cols; i += 16) {
    Lanes input[kTokens];
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) input[t] = load(x[t] + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Lanes w = load_lanes<kFormat>(weight_rows[r] + i * kBytes);
#pragma GCC unroll 2
      for (int t = 0; t < kTokens; ++t) {
        acc[t * kRows + r] = fma(w, input[t], acc[t * kRows + r]);
      }
    }
  }
  if (i < cols) {
    const Mask mask = first_lanes(cols - i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Lanes w = load_lanes<kFormat>(weight_rows[r] + i * kBytes, cols - i);
#pragma GCC unroll 2
      for (int t = 0; t < kTokens; ++t) {
        Lanes& sum = acc[t * kRows + r];
        sum = blend(sum, fma(w, load(x[t] + i, mask), sum), mask);
      }
    }
  }
}

/// Element t * kRows + r: the dot of weight row r and token t. Of E4M3 the lanes of each group by
/// themselves, then times its scale.
template <WeightFormat kFormat, int kRows, int kTokens>
VITRINE_INLINE __m128 dots_4(const uint8_t* const* weight_rows, const float* const* scales,
                             const float* const* x, int64_t cols) {
  Lanes acc[4];
  if constexpr (kFormat != WeightFormat::kE4M3) {
    accumulate<kFormat, kRows, kTokens>(weight_rows, x, cols, acc);
    return sum_lanes_4(acc);
  }
  for (int i = 0; i < 4; ++i) acc[i] = set_lanes(0.0f);
  for (int64_t begin = 0, group = 0; begin < cols; begin += kE4M3Group, ++group) {
    const uint8_t* rows[kRows];
    const float* tokens[kTokens];
    for (int r = 0; r < kRows; ++r) rows[r] = weight_rows[r] + begin;
    for (int t = 0; t < kTokens; ++t) tokens[t] = x[t] + begin;
    const int64_t left = cols - begin;
    Lanes parts[4];
    accumulate<kFormat, kRows, kTokens>(rows, tokens, left < kE4M3Group ? left : kE4M3Group, parts);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      acc[i] = fma(parts[i], set_lanes(scales[i % kRows][group]), acc[i]);
    }
  }
  return sum_lanes_4(acc);
}

template <int kTokens>
__attribute__((noinline)) __m128 dots(const Weight& weight, int64_t row, int64_t row_end,
                                      const float* const* x) {
  constexpr int kRows = 4 / kTokens;
  const int64_t row_bytes = weight.cols * element_bytes(weight.format);
  const bool is_scaled = weight.format == WeightFormat::kE4M3;
  const int64_t groups = is_scaled ? group_count(weight.cols, kE4M3Group) : 0;
  const uint8_t* pointers[kRows];
  const float* scales[kRows];
  for (int r = 0; r < kRows; ++r) {  // rows from row_end on repeat the last one
    const int64_t index = row + r < row_end ? row + r : row_end - 1;
    pointers[r] = static_cast<const uint8_t*>(weight.data) + index * row_bytes;
    scales[r] = static_cast<const float*>(weight.scales) + index * groups;
  }
  switch (weight.format) {
    case WeightFormat::kF16:
      return dots_4<WeightFormat::kF16, kRows, kTokens>(pointers, scales, x, weight.cols);
    case WeightFormat::kBF16:
      return dots_4<WeightFormat::kBF16, kRows, kTokens>(pointers, scales, x, weight.cols);
    case WeightFormat::kE4M3:
      return dots_4<WeightFormat::kE4M3, kRows, kTokens>(pointers, scales, x, weight.cols);
    default: return dots_4<WeightFormat::kF32, kRows, kTokens>(pointers, scales, x, weight.cols);
  }
}

constexpr int kRowsAtOnce = 16;

/// sums[t]: the dots of rows [row, row_end), at most kRowsAtOnce, with token t.
template <int kTokens>
VITRINE_INLINE void dots_of_rows(const Weight& weight, int64_t row, int64_t row_end,
                                 const float* const* x, float (*sums)[kRowsAtOnce]) {
  constexpr int kRows = 4 / kTokens;
  for (int64_t r = row; r < row_end; r += kRows) {
    const __m128 v = dots<kTokens>(weight, r, row_end, x);
    if constexpr (kTokens == 1) {
      _mm_storeu_ps(sums[0] + (r - row), v);
    } else {
      _mm_storel_pi(reinterpret_cast<__m64*>(sums[0] + (r - row)), v);
      _mm_storeh_pi(reinterpret_cast<__m64*>(sums[1] + (r - row)), v);
    }
  }
}

/// Rows [row, row_end), at most kRowsAtOnce, for the kTokens input rows from m on. Their dots are
/// put together first: what is stored eight at a time needs no mask.
template <int kTokens>
void token_block(const Weight& weight, const Weight* up, int64_t row, int64_t row_end,
                 const Activations& input, const RowMap& rows, int32_t m, const Target& target) {
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    x[t] = input.values + mapped(rows.in_rows, m + t) * input.value_stride;
  }
  float sums[kTokens][kRowsAtOnce] = {};
  dots_of_rows<kTokens>(weight, row, row_end, x, sums);
  float up_sums[kTokens][kRowsAtOnce] = {};
  if (up != nullptr) dots_of_rows<kTokens>(*up, row, row_end, x, up_sums);
  for (int t = 0; t < kTokens; ++t) {
    for (int64_t i = 0; i < row_end - row; i += 8) {
      __m256 v = _mm256_loadu_ps(sums[t] + i);
      if (up != nullptr) v = _mm256_mul_ps(silu_8(v), _mm256_loadu_ps(up_sums[t] + i));
      store_dots(target, m + t, row + i, row_end - row - i, v);
    }
  }
}

}  // namespace

void linear_float(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, const Target& target) {
  if (weight.tiled) return linear_tiled(weight, row_begin, row_end, input, rows, target);
  for (int64_t row = row_begin; row < row_end; row += kRowsAtOnce) {
    const int64_t end = row + kRowsAtOnce < row_end ? row + kRowsAtOnce : row_end;
    int32_t m = 0;
    for (; m + 2 <= rows.count; m += 2) {
      token_block<2>(weight, up, row, end, input, rows, m, target);
    }
    if (m < rows.count) token_block<1>(weight, up, row, end, input, rows, m, target);
  }
}

namespace {

template <WeightFormat kFormat>
void embed_float_row(const Weight& table, int64_t row, float multiplier, float* out) {
  constexpr int kBytes = element_bytes(kFormat);
  const Lanes factor = set_lanes(multiplier);
  const uint8_t* data = static_cast<const uint8_t*>(table.data) + row * table.cols * kBytes;
  int64_t i = 0;
  for (; i + 16 <= table.cols; i += 16) {
    store(out + i, mul(load_lanes<kFormat>(data + i * kBytes), factor));
  }
  const int64_t left = table.cols - i;
  if (left == 0) return;
  store(out + i, mul(load_lanes<kFormat>(data + i * kBytes, left), factor), first_lanes(left));
}

/// 16 numbers, each times the scale.
VITRINE_INLINE Lanes scaled_numbers(const int8_t* numbers, __m256 scale) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
  const __m256i low = _mm256_cvtepi8_epi32(bytes);
  const __m256i high = _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8));
  return {_mm256_mul_ps(scale, _mm256_cvtepi32_ps(low)),
          _mm256_mul_ps(scale, _mm256_cvtepi32_ps(high))};
}

}  // namespace

void embed_row(const Weight& table, int64_t row, float multiplier, float* out) {
  switch (table.format) {
    case WeightFormat::kF32:
      return embed_float_row<WeightFormat::kF32>(table, row, multiplier, out);
    case WeightFormat::kF16:
      return embed_float_row<WeightFormat::kF16>(table, row, multiplier, out);
    case WeightFormat::kBF16:
      return embed_float_row<WeightFormat::kBF16>(table, row, multiplier, out);
    case WeightFormat::kE4M3: return widen_e4m3_row(table, row, multiplier, out);
    default: return widen_packed_row(table, row, multiplier, out);
  }
}

void widen_row(const RowMajor& matrix, int64_t row, const float* factors, float* out) {
  const RowMajorRow of = row_of(matrix, row);
  const float* scales = of.scales;
  for (int64_t begin = 0; begin < matrix.cols; begin += matrix.group_size, ++scales) {
    const __m256 scale = _mm256_set1_ps(*scales);
    const int64_t left = matrix.cols - begin;
    const int64_t end = begin + (left < matrix.group_size ? left : matrix.group_size);
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      store(out + i, mul(scaled_numbers(of.numbers + i, scale), load(factors + i)));
    }
    if (i == end) continue;
    const Mask mask = first_lanes(end - i);
    store(out + i, mul(scaled_numbers(of.numbers + i, scale), load(factors + i, mask)), mask);
  }
}

}  // namespace vitrine::kernels::avx2
