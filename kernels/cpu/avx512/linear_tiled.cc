// SPDX-License-Identifier: Apache-2.0
// Products of float matrices in tiles of 16 rows: lane = row, and the 16 sums that a row's own
// product has as lanes are 16 vectors, which are added up in the order of sum_lanes.
#include "../packed.h"
#include "linear.h"

namespace vitrine::kernels::avx512 {
namespace {

/// Columns j and j + 1 of a tile, j even, a number a row.
template <WeightFormat kFormat>
VITRINE_INLINE void load_columns(const uint8_t* tile, int j, __m512* columns) {
  constexpr int64_t kColumnBytes = kTileRows * element_bytes(kFormat);
  if constexpr (kFormat == WeightFormat::kBF16) {
    __m512i both = _mm512_loadu_si512(tile + j * kColumnBytes);
    keep_in_register(both);
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
    columns[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    columns[1] = _mm512_castsi512_ps(_mm512_and_si512(both, high));
  } else {
    columns[0] = load_lanes<kFormat>(tile + j * kColumnBytes);
    columns[1] = load_lanes<kFormat>(tile + (j + 1) * kColumnBytes);
  }
}

template <WeightFormat kFormat>
VITRINE_INLINE __m512 tile_dots(const uint8_t* tile, int64_t cols, const float* x) {
  constexpr int64_t kColumnBytes = kTileRows * element_bytes(kFormat);
  __m512 sums[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) sums[j] = _mm512_setzero_ps();
  int64_t col = 0;
  for (; col + 16 <= cols; col += 16, tile += 16 * kColumnBytes) {
#pragma GCC unroll 8
    for (int j = 0; j < 16; j += 2) {
      __m512 w[2];
      load_columns<kFormat>(tile, j, w);
      sums[j] = _mm512_fmadd_ps(w[0], _mm512_set1_ps(x[col + j]), sums[j]);
      sums[j + 1] = _mm512_fmadd_ps(w[1], _mm512_set1_ps(x[col + j + 1]), sums[j + 1]);
    }
  }
  const int64_t left = cols - col;
#pragma GCC unroll 8
  for (int j = 0; j < 16; j += 2) {
    if (j >= left) break;
    __m512 w[2];
    load_columns<kFormat>(tile, j, w);
    sums[j] = _mm512_fmadd_ps(w[0], _mm512_set1_ps(x[col + j]), sums[j]);
    if (j + 1 == left) break;
    sums[j + 1] = _mm512_fmadd_ps(w[1], _mm512_set1_ps(x[col + j + 1]), sums[j + 1]);
  }
  return sum_vectors_16(sums);
}

template <WeightFormat kFormat>
void linear_of(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
               const RowMap& rows, const Target& target) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const uint8_t* tile = static_cast<const uint8_t*>(weight.data) +
                          row * tiled_cols(weight.cols) * element_bytes(kFormat);
    const __mmask16 stored = first_lanes(row_end - row);
    for (int32_t m = 0; m < rows.count; ++m) {
      const float* x = input.values + mapped(rows.in_rows, m) * input.value_stride;
      store_dots(target, m, row, stored, tile_dots<kFormat>(tile, weight.cols, x));
    }
  }
}

}  // namespace

void linear_tiled(const Weight& weight, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, const Target& target) {
  const auto product = weight.format == WeightFormat::kF16    ? linear_of<WeightFormat::kF16>
                       : weight.format == WeightFormat::kBF16 ? linear_of<WeightFormat::kBF16>
                                                              : linear_of<WeightFormat::kF32>;
  product(weight, row_begin, row_end, input, rows, target);
}

}  // namespace vitrine::kernels::avx512
