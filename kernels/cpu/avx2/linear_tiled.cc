// SPDX-License-Identifier: Apache-2.0
// Products of float matrices in tiles of 16 rows, half a tile at once: lane = row, and the 16 sums
// that a row's own product has as lanes are 16 vectors, which are added up in the order of
// sum_lanes.
#include "../packed.h"
#include "linear.h"

namespace vitrine::kernels::avx2 {
namespace {

/// Columns j and j + 1 of a tile, j even, a number for each of eight rows.
template <WeightFormat kFormat>
VITRINE_INLINE void load_columns(const uint8_t* tile, int j, __m256* columns) {
  constexpr int64_t kColumnBytes = kTileRows * element_bytes(kFormat);
  if constexpr (kFormat == WeightFormat::kBF16) {
    __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + j * kColumnBytes));
    asm("" : "+x"(both));  // loaded once
    const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    columns[0] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    columns[1] = _mm256_castsi256_ps(_mm256_and_si256(both, high));
  } else {
    columns[0] = load_8<kFormat>(tile + j * kColumnBytes);
    columns[1] = load_8<kFormat>(tile + (j + 1) * kColumnBytes);
  }
}

/// Sums kFirst … kFirst + 3 and kFirst + 8 … kFirst + 11 of the 16, added: eight chains, as many as
/// there is room for.
template <WeightFormat kFormat, int kFirst>
VITRINE_INLINE void add_columns(const uint8_t* tile, int64_t cols, const float* x, __m256* by8) {
  constexpr int64_t kColumnBytes = kTileRows * element_bytes(kFormat);
  constexpr int kColumns[4] = {kFirst, kFirst + 2, kFirst + 8, kFirst + 10};
  __m256 sums[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) sums[i] = _mm256_setzero_ps();
  int64_t col = 0;
  for (; col + 16 <= cols; col += 16, tile += 16 * kColumnBytes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int j = kColumns[i];
      __m256 w[2];
      load_columns<kFormat>(tile, j, w);
      sums[2 * i] = _mm256_fmadd_ps(w[0], _mm256_broadcast_ss(x + col + j), sums[2 * i]);
      sums[2 * i + 1] =
          _mm256_fmadd_ps(w[1], _mm256_broadcast_ss(x + col + j + 1), sums[2 * i + 1]);
    }
  }
  const int64_t left = cols - col;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int j = kColumns[i];
    if (j >= left) break;
    __m256 w[2];
    load_columns<kFormat>(tile, j, w);
    sums[2 * i] = _mm256_fmadd_ps(w[0], _mm256_broadcast_ss(x + col + j), sums[2 * i]);
    if (j + 1 == left) break;
    sums[2 * i + 1] = _mm256_fmadd_ps(w[1], _mm256_broadcast_ss(x + col + j + 1), sums[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) by8[i] = _mm256_add_ps(sums[i], sums[i + 4]);
}

template <WeightFormat kFormat>
__m256 half_tile_dots(const uint8_t* tile, int64_t cols, const float* x) {
  __m256 low[4], high[4];
  add_columns<kFormat, 0>(tile, cols, x, low);
  add_columns<kFormat, 4>(tile, cols, x, high);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) low[j] = _mm256_add_ps(low[j], high[j]);
  return _mm256_add_ps(_mm256_add_ps(low[0], low[2]), _mm256_add_ps(low[1], low[3]));
}

template <WeightFormat kFormat>
void linear_of(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
               const RowMap& rows, const Target& target) {
  constexpr int64_t kBytes = element_bytes(kFormat);
  constexpr int64_t kRowBytes = kFormat == WeightFormat::kBF16 ? 2 * kBytes : kBytes;
  for (int64_t row = row_begin; row < row_end; row += 8) {
    const uint8_t* tile = static_cast<const uint8_t*>(weight.data) +
                          row / kTileRows * kTileRows * tiled_cols(weight.cols) * kBytes +
                          row % kTileRows * kRowBytes;
    for (int32_t m = 0; m < rows.count; ++m) {
      const float* x = input.values + mapped(rows.in_rows, m) * input.value_stride;
      store_dots(target, m, row, row_end - row, half_tile_dots<kFormat>(tile, weight.cols, x));
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

}  // namespace vitrine::kernels::avx2
