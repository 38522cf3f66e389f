// SPDX-License-Identifier: Apache-2.0
// Products of quantized matrices with rows of floats: lane = row, as in linear_tiled.cc. A tile is
// unpacked once to signed bytes, which are made floats in registers.
#include "../widened.h"
#include "quantized.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int64_t kMaxUnits = kMaxWidenedCols / kUnit;

struct Unpacked {
  alignas(64) int8_t numbers[kMaxUnits][kUnit / 4][4 * kTileRows];
  Group groups[kMaxUnits];
};

/// Turns the numbers of half a unit into floats: scale * (number + bias) + minimum.
struct Widening {
  __m512 scale, minimum;
  __m512i bias;
};

VITRINE_INLINE Widening widening_of(const Group& group, bool has_two_scales, bool has_parts,
                                    int part) {
  const __m512i none = _mm512_setzero_si512();
  if (has_two_scales) {
    return {part == 0 ? group.scale : group.minimum, _mm512_setzero_ps(), none};
  }
  if (has_parts) {
    return {_mm512_mul_ps(group.scale, _mm512_cvtepi32_ps(group.part_scale[part])),
            _mm512_setzero_ps(), none};
  }
  return {group.scale, group.minimum,
          _mm512_srai_epi32(_mm512_slli_epi32(group.bias_words, 16), 16)};
}

/// Calls take(column, numbers) for all columns of an unpacked tile, and keeps a column's place in
/// each 16 known to the compiler.
template <bool kHasMinimum, class Take>
VITRINE_INLINE void widen_columns(const Weight& weight, const Unpacked& tile, const Take& take) {
  const bool has_parts = parts_of(weight).has_parts;
  const bool has_two_scales = blocks::shape_of(weight).has_two_scales;
  for (int64_t u = 0; u * kUnit < weight.cols; ++u) {
    const Group& group = tile.groups[u * kUnit / weight.group_size];
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      const Widening of = widening_of(group, has_two_scales, has_parts, part);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const __m512i words = _mm512_load_si512(tile.numbers[u][4 * part + i / 4]);
        const __m512i high = i % 4 == 3 ? words : _mm512_slli_epi32(words, 24 - 8 * (i % 4));
        const __m512i number = _mm512_add_epi32(_mm512_srai_epi32(high, 24), of.bias);
        __m512 w = _mm512_mul_ps(of.scale, _mm512_cvtepi32_ps(number));
        if constexpr (kHasMinimum) w = _mm512_add_ps(w, of.minimum);
        take(u * kUnit + 16 * part, i, w);
      }
    }
  }
}

/// The dots of 16 rows, the sums added in the order of sum_lanes.
template <bool kHasMinimum>
VITRINE_INLINE __m512 tile_dots(const Weight& weight, const Unpacked& tile, const float* x) {
  __m512 sums[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) sums[j] = _mm512_setzero_ps();
  widen_columns<kHasMinimum>(
      weight, tile, [&](int64_t col, int i, __m512 w) __attribute__((always_inline)) {
        sums[i] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[col + i]), sums[i]);
      });
  return sum_vectors_16(sums);
}

/// A tile as floats in tiles.
template <bool kHasMinimum>
void widen_tile(const Weight& weight, int64_t index, float* floats) {
  Unpacked tile;
  find_format(weight).unpack(weight, index, tile.numbers[0][0], tile.groups);
  widen_columns<kHasMinimum>(
      weight, tile, [&](int64_t col, int i, __m512 w) __attribute__((always_inline)) {
        _mm512_store_ps(floats + (col + i) * kTileRows, w);
      });
}

template <bool kHasMinimum>
void multiply_tiles(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, const Target& target) {
  const FormatKernels& format = find_format(weight);
  Unpacked tile;
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    format.unpack(weight, row / kTileRows, tile.numbers[0][0], tile.groups);
    const __mmask16 stored = first_lanes(row_end - row);
    for (int32_t m = 0; m < rows.count; ++m) {
      const float* x = input.values + mapped(rows.in_rows, m) * input.value_stride;
      store_dots(target, m, row, stored, tile_dots<kHasMinimum>(weight, tile, x));
    }
  }
}

}  // namespace

void linear_widened(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  const bool has_minimum = parts_of(weight).has_minimum;
  if (rows.count > kFewWidenedRows) {
    const auto widen = has_minimum ? widen_tile<true> : widen_tile<false>;
    return multiply_floats(
        weight, row_begin, row_end, input, rows, out, out_stride,
        [&](int64_t tile, float* floats) { widen(weight, tile, floats); }, linear);
  }
  const Target target{rows.out_rows, nullptr, nullptr, out, out_stride};
  const auto product = has_minimum ? multiply_tiles<true> : multiply_tiles<false>;
  product(weight, row_begin, row_end, input, rows, target);
}

}  // namespace vitrine::kernels::avx512
