// SPDX-License-Identifier: Apache-2.0
// Float32, float16, bfloat16 and E4M3 matrix products: 16 dots at once, rows x tokens = 16x1, 8x2
// or 4x4.
#include "../widen.h"
#include "linear.h"

namespace vitrine::kernels::avx512 {
namespace {

/// How far ahead of a single row's loads weights are fetched whose rows are short, an adapter's for
/// one: processors fetch the streams of long ones on their own, and better.
constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kShortRowBytes = 1024;

/// Accumulates kRows x kTokens dots into sums[t * kRows + r] (16 lanes each, not yet added up).
template <WeightFormat kFormat, int kRows, int kTokens>
VITRINE_INLINE void accumulate(const uint8_t* const* weight_rows, const float* const* x,
                               int64_t cols, __m512* sums) {
  constexpr int kBytes = element_bytes(kFormat);
  __m512 acc[kTokens * kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kTokens * kRows; ++i) acc[i] = _mm512_setzero_ps();
  int64_t i = 0;
  const bool is_short =
      kFormat != WeightFormat::kE4M3 && kTokens == 1 && cols * kBytes <= kShortRowBytes;
  for (; i + 16 <= cols; i += 16) {
    if (is_short) {  // the rows follow each other: as many lines as are read here
      const auto* ahead = reinterpret_cast<const char*>(weight_rows[0] + i * kBytes * kRows);
#pragma GCC unroll 8
      for (int line = 0; line < kRows * kBytes / 4; ++line) {
        _mm_prefetch(ahead + kPrefetchBytes + 64 * line, _MM_HINT_T0);
      }
    }
    __m512 input[kTokens];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) input[t] = _mm512_loadu_ps(x[t] + i);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 w = load_lanes<kFormat>(weight_rows[r] + i * kBytes);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        acc[t * kRows + r] = _mm512_fmadd_ps(w, input[t], acc[t * kRows + r]);
      }
    }
  }
  if (i < cols) {
    const __mmask16 mask = first_lanes(cols - i);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 w = load_lanes<kFormat>(weight_rows[r] + i * kBytes, mask);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const __m512 input = _mm512_maskz_loadu_ps(mask, x[t] + i);
        acc[t * kRows + r] = _mm512_mask3_fmadd_ps(w, input, acc[t * kRows + r], mask);
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kTokens * kRows; ++j) sums[j] = acc[j];
}

/// Accumulates rows of E4M3: the lanes of each group by themselves, then times its scale.
template <int kRows, int kTokens>
VITRINE_INLINE void accumulate_e4m3(const uint8_t* const* weight_rows, const float* const* scales,
                                    const float* const* x, int64_t cols, __m512* sums) {
#pragma GCC unroll 16
  for (int i = 0; i < kTokens * kRows; ++i) sums[i] = _mm512_setzero_ps();
  for (int64_t begin = 0, group = 0; begin < cols; begin += kE4M3Group, ++group) {
    const uint8_t* rows[kRows];
    const float* tokens[kTokens];
    for (int r = 0; r < kRows; ++r) rows[r] = weight_rows[r] + begin;
    for (int t = 0; t < kTokens; ++t) tokens[t] = x[t] + begin;
    const int64_t left = cols - begin;
    __m512 parts[kTokens * kRows];
    accumulate<WeightFormat::kE4M3, kRows, kTokens>(rows, tokens,
                                                    left < kE4M3Group ? left : kE4M3Group, parts);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_set1_ps(scales[r][group]);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        __m512& sum = sums[t * kRows + r];
        sum = _mm512_fmadd_ps(parts[t * kRows + r], scale, sum);
      }
    }
  }
}

/// Accumulates rows of any format; `scales` are those of E4M3.
template <WeightFormat kFormat, int kRows, int kTokens>
VITRINE_INLINE void accumulate_rows(const uint8_t* const* weight_rows, const float* const* scales,
                                    const float* const* x, int64_t cols, __m512* sums) {
  if constexpr (kFormat == WeightFormat::kE4M3) {
    accumulate_e4m3<kRows, kTokens>(weight_rows, scales, x, cols, sums);
  } else {
    accumulate<kFormat, kRows, kTokens>(weight_rows, x, cols, sums);
  }
}

/// Lane t * (16 / kTokens) + r: the dot of weight row `row + r` and token t. Rows from row_end on
/// repeat the last one, or count as 0.
template <WeightFormat kFormat, int kTokens>
VITRINE_INLINE __m512 dots_16(const Weight& weight, int64_t row, int64_t row_end,
                              const float* const* x) {
  constexpr int kRows = 16 / kTokens;
  const int64_t row_bytes = weight.cols * element_bytes(kFormat);
  const int64_t groups = kFormat == WeightFormat::kE4M3 ? group_count(weight.cols, kE4M3Group) : 0;
  const uint8_t* pointers[kRows];
  const float* scales[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const int64_t index = row + r < row_end ? row + r : row_end - 1;
    pointers[r] = static_cast<const uint8_t*>(weight.data) + index * row_bytes;
    scales[r] = static_cast<const float*>(weight.scales) + index * groups;
  }
  __m512 sums[16];
  if constexpr (kTokens == 1) {  // twice eight rows: sixteen pointers exceed the registers
    accumulate_rows<kFormat, 8, 1>(pointers, scales, x, weight.cols, sums);
    if (row + 8 < row_end) {
      accumulate_rows<kFormat, 8, 1>(pointers + 8, scales + 8, x, weight.cols, sums + 8);
    } else {  // a router of eight experts
      for (int r = 8; r < 16; ++r) sums[r] = _mm512_setzero_ps();
    }
  } else {
    accumulate_rows<kFormat, kRows, kTokens>(pointers, scales, x, weight.cols, sums);
  }
  return sum_lanes_16(sums);
}

template <int kTokens>
__attribute__((noinline)) __m512 dots(const Weight& weight, int64_t row, int64_t row_end,
                                      const float* const* x) {
  switch (weight.format) {
    case WeightFormat::kF16: return dots_16<WeightFormat::kF16, kTokens>(weight, row, row_end, x);
    case WeightFormat::kBF16: return dots_16<WeightFormat::kBF16, kTokens>(weight, row, row_end, x);
    case WeightFormat::kE4M3: return dots_16<WeightFormat::kE4M3, kTokens>(weight, row, row_end, x);
    default: return dots_16<WeightFormat::kF32, kTokens>(weight, row, row_end, x);
  }
}

/// Rows [row, row_end), at most 16, for the `count` (at most kTokens) input rows from m on.
template <int kTokens>
void token_block(const Weight& weight, const Weight* up, int64_t row, int64_t row_end,
                 const Activations& input, const RowMap& rows, int32_t m, int32_t count,
                 const Target& target) {
  constexpr int kRows = 16 / kTokens;
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const int64_t in_row = mapped(rows.in_rows, t < count ? m + t : m);
    x[t] = input.values + in_row * input.value_stride;
  }
  for (; row < row_end; row += kRows) {
    __m512 v = dots<kTokens>(weight, row, row_end, x);
    if (up != nullptr) v = _mm512_mul_ps(silu_lanes(v), dots<kTokens>(*up, row, row_end, x));
    const __mmask16 stored = first_lanes(row_end - row < kRows ? row_end - row : kRows);
    for (int t = 0; t < count; ++t) {
      const auto part = static_cast<__mmask16>(((1u << kRows) - 1u) << (t * kRows));
      store_dots(target, m + t, row, stored, _mm512_maskz_compress_ps(part, v));
    }
  }
}

}  // namespace

void linear_float(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, const Target& target) {
  if (weight.tiled) return linear_tiled(weight, row_begin, row_end, input, rows, target);
  for (int64_t row = row_begin; row < row_end; row += 16) {
    const int64_t end = row + 16 < row_end ? row + 16 : row_end;
    for (int32_t m = 0; m < rows.count;) {
      const int32_t left = rows.count - m;
      const int32_t count = left < 4 ? left : 4;
      if (count > 2) {
        token_block<4>(weight, up, row, end, input, rows, m, count, target);
      } else if (count == 2) {
        token_block<2>(weight, up, row, end, input, rows, m, count, target);
      } else {
        token_block<1>(weight, up, row, end, input, rows, m, count, target);
      }
      m += count;
    }
  }
}

void embed_row(const Weight& table, int64_t row, float multiplier, float* out) {
  if (!is_float_format(table.format)) return widen_packed_row(table, row, multiplier, out);
  if (table.format == WeightFormat::kE4M3) return widen_e4m3_row(table, row, multiplier, out);
  const __m512 factor = _mm512_set1_ps(multiplier);
  const int64_t bytes = element_bytes(table.format);
  const uint8_t* data = static_cast<const uint8_t*>(table.data) + row * table.cols * bytes;
  for (int64_t i = 0; i < table.cols; i += 16) {
    const __mmask16 mask = first_lanes(table.cols - i);
    __m512 v;
    switch (table.format) {
      case WeightFormat::kF16: v = load_lanes<WeightFormat::kF16>(data + i * bytes, mask); break;
      case WeightFormat::kBF16: v = load_lanes<WeightFormat::kBF16>(data + i * bytes, mask); break;
      default: v = load_lanes<WeightFormat::kF32>(data + i * bytes, mask);
    }
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(v, factor));
  }
}

void widen_row(const RowMajor& matrix, int64_t row, const float* factors, float* out) {
  const RowMajorRow of = row_of(matrix, row);
  const float* scale = of.scales;
  for (int64_t begin = 0; begin < matrix.cols; begin += matrix.group_size, ++scale) {
    const __m512 factor = _mm512_set1_ps(*scale);
    const int64_t left = matrix.cols - begin;
    const int64_t end = begin + (left < matrix.group_size ? left : matrix.group_size);
    for (int64_t i = begin; i < end; i += 16) {
      const __mmask16 mask = first_lanes(end - i);
      const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(of.numbers + i));
      const __m512 value = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers)));
      _mm512_mask_storeu_ps(out + i, mask,
                            _mm512_mul_ps(value, _mm512_maskz_loadu_ps(mask, factors + i)));
    }
  }
}

}  // namespace vitrine::kernels::avx512
