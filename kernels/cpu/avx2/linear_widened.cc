// SPDX-License-Identifier: Apache-2.0
// Products of quantized matrices with rows of floats, half a tile at once: lane = row, as in
// linear_tiled.cc. The numbers are made floats in registers.
#include "../widened.h"
#include "blocks.h"

namespace vitrine::kernels::avx2 {
namespace {

/// Turns half a unit's numbers into floats: scale * (number + bias) + minimum.
struct Widening {
  __m256 scale, minimum;
  __m256i bias;
};

/// Says what the first or last 16 columns of a unit mean.
template <class Format>
VITRINE_INLINE Widening widening_of(const Group& group, int part) {
  if constexpr (Format::kTwoScales) {
    return {part == 0 ? group.scale : group.minimum, _mm256_setzero_ps(),
            _mm256_set1_epi32(-Format::kBias)};
  } else if constexpr (Format::kTwoParts) {
    return {_mm256_mul_ps(group.scale, _mm256_cvtepi32_ps(group.part_scale[part])),
            _mm256_setzero_ps(), _mm256_set1_epi32(-Format::kBias)};
  } else {
    const __m256i low_words = _mm256_slli_epi32(group.bias_words, 16);
    return {group.scale, group.minimum, _mm256_srai_epi32(low_words, 16)};
  }
}

/// Calls take(i, numbers) for four columns, a byte each of eight rows' words.
template <bool kHasMinimum, class Take>
VITRINE_INLINE void widen_four(__m256i words, const Widening& of, const Take& take) {
  const __m256i byte = _mm256_set1_epi32(255);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i number = i == 0 ? words : _mm256_srli_epi32(words, 8 * i);
    if (i < 3) number = _mm256_and_si256(number, byte);
    const __m256 integer = _mm256_cvtepi32_ps(_mm256_add_epi32(number, of.bias));
    __m256 w = _mm256_mul_ps(of.scale, integer);
    if constexpr (kHasMinimum) w = _mm256_add_ps(w, of.minimum);
    take(i, w);
  }
}

/// Adds the products of four columns to four sums.
template <bool kHasMinimum>
VITRINE_INLINE void add_four(__m256i words, const Widening& of, const float* x, __m256* sums) {
  widen_four<kHasMinimum>(
      words, of, [&](int i, __m256 w) __attribute__((always_inline)) {
        sums[i] = _mm256_fmadd_ps(w, _mm256_broadcast_ss(x + i), sums[i]);
      });
}

/// Eight of the 16 sums of a row, those of the columns 8 * kPart … 8 * kPart + 7 of each 16, in as
/// many chains. `next`: so far behind this tile's numbers is what is fetched meanwhile; 0: nothing.
template <class Format, bool kHasMinimum, int kPart>
VITRINE_INLINE void add_columns(const Tile& tile, int half, int64_t cols, int64_t group_size,
                                const float* x, int64_t next, __m256* sums) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) sums[i] = _mm256_setzero_ps();
  const uint8_t* unit = tile.data;
  for (int64_t k = 0, g = 0; k < cols; ++g) {
    const Group group = Format::template group<false>(tile, g, half);
    const int64_t end = k + group_size < cols ? k + group_size : cols;
    for (; k < end; k += kUnit, unit += Format::kUnitBytes) {
      if (next != 0) {
#pragma GCC unroll 8
        for (int line = 0; line < Format::kUnitBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(unit + next + line), _MM_HINT_T0);
        }
      }
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const Widening widening = widening_of<Format>(group, part);
        const Step step = Format::step(unit, k / kUnit, half, 2 * part + kPart);
        const float* at = x + k + 16 * part + 8 * kPart;
        add_four<kHasMinimum>(step.low, widening, at, sums);
        add_four<kHasMinimum>(step.high, widening, at + 4, sums + 4);
      }
    }
  }
}

/// The dots of eight rows, the sums added in the order of sum_lanes.
template <class Format, bool kHasMinimum>
VITRINE_INLINE __m256 half_tile_dots(const Tile& tile, int half, int64_t cols, int64_t group_size,
                                     const float* x, int64_t next) {
  __m256 first[8], last[8];
  add_columns<Format, kHasMinimum, 0>(tile, half, cols, group_size, x, next, first);
  add_columns<Format, kHasMinimum, 1>(tile, half, cols, group_size, x, 0, last);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) first[i] = _mm256_add_ps(first[i], last[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) first[i] = _mm256_add_ps(first[i], first[i + 4]);
  return _mm256_add_ps(_mm256_add_ps(first[0], first[2]), _mm256_add_ps(first[1], first[3]));
}

/// A tile as floats in tiles.
template <class Format, bool kHasMinimum>
void widen_tile(const Weight& weight, int64_t index, float* floats) {
  const Tile tile = Format::tile(weight, index);
  const uint8_t* unit = tile.data;
  for (int64_t k = 0; k < weight.cols; k += kUnit, unit += Format::kUnitBytes) {
    for (int half = 0; half < 2; ++half) {
      const Group group = Format::template group<false>(tile, k / weight.group_size, half);
      for (int s = 0; s < kUnit / 8; ++s) {
        const Widening widening = widening_of<Format>(group, s / 2);
        const Step step = Format::step(unit, k / kUnit, half, s);
        float* to = floats + (k + 8 * s) * kTileRows + 8 * half;
        const auto store = [&](int i, __m256 w) __attribute__((always_inline)) {
          _mm256_store_ps(to + i * kTileRows, w);
        };
        widen_four<kHasMinimum>(step.low, widening, store);
        to += 4 * kTileRows;
        widen_four<kHasMinimum>(step.high, widening, store);
      }
    }
  }
}

template <class Format, bool kHasMinimum>
void multiply_tiles(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, const Target& target) {
  const int64_t tile_bytes = weight.cols / kUnit * Format::kUnitBytes;
  for (int64_t row = row_begin; row < row_end; row += 8) {
    const int half = static_cast<int>(row % kTileRows / 8);
    const Tile tile = Format::tile(weight, row / kTileRows);
    const bool fetches = half == 0 && row + kTileRows < row_end;
    for (int32_t m = 0; m < rows.count; ++m) {
      const float* x = input.values + mapped(rows.in_rows, m) * input.value_stride;
      const int64_t next = fetches && m == 0 ? tile_bytes : 0;
      store_dots(
          target, m, row, row_end - row,
          half_tile_dots<Format, kHasMinimum>(tile, half, weight.cols, weight.group_size, x, next));
    }
  }
}

struct TileKernels {
  decltype(&multiply_tiles<Int4, false>) multiply;
  decltype(&widen_tile<Int4, false>) widen;
};

template <class Format, bool kHasMinimum>
TileKernels kernels_of() {
  return {multiply_tiles<Format, kHasMinimum>, widen_tile<Format, kHasMinimum>};
}

template <class Format>
TileKernels kernels_of(const Weight& weight) {
  return parts_of(weight).has_minimum ? kernels_of<Format, true>() : kernels_of<Format, false>();
}

struct BiasedQ6K : Q6K {
  static constexpr int kBias = 32;
};

TileKernels find_tiles(const Weight& weight) {
  switch (weight.format) {
    case WeightFormat::kInt8: return kernels_of<Int8>(weight);
    case WeightFormat::kInt3: return kernels_of<Int3>(weight);
    case WeightFormat::kQ4K: return kernels_of<Q4K, true>();
    case WeightFormat::kQ6K: return kernels_of<BiasedQ6K, false>();
    case WeightFormat::kMxfp4: return kernels_of<Mxfp4, false>();
    case WeightFormat::kBlocks: break;
    default: return kernels_of<Int4>(weight);
  }
  TileKernels found = {};
  blocks::with_format(weight.block_format, [&]<class Blocks>() {
    found = kernels_of<AsTheyAre<Blocks>, Blocks::kHasMinimum>();
  });
  return found;
}

}  // namespace

void linear_widened(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  const TileKernels tiles = find_tiles(weight);
  if (rows.count > kFewWidenedRows) {
    return multiply_floats(
        weight, row_begin, row_end, input, rows, out, out_stride,
        [&](int64_t tile, float* floats) { tiles.widen(weight, tile, floats); }, linear);
  }
  const Target target{rows.out_rows, nullptr, nullptr, out, out_stride};
  tiles.multiply(weight, row_begin, row_end, input, rows, target);
}

}  // namespace vitrine::kernels::avx2
