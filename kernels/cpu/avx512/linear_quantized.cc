// Packed int8 and int4 matrix products: a tile of 16 rows is one vector, lane = row.
//
// vpdpbusd adds four unsigned x signed byte products to each lane; the weights' offset (8 or 128)
// is taken out by starting the sum at -offset * (sum of the activations), which is exact.
#include "linear.h"

namespace vitrine::kernels::avx512 {
namespace {

/// How far ahead of a decode step's loads the weights are fetched.
constexpr int64_t kPrefetchBytes = 2048;

/// One tile (16 rows) of one packed matrix.
struct Tile {
  const uint8_t* data;
  const uint8_t* scales;
};

/// The quantized input rows of a block of tokens.
template <int kTokens>
struct Tokens {
  const int8_t* values[kTokens];
  const float* scales[kTokens];
  const int32_t* sums[kTokens];
};

VITRINE_INLINE __m512i broadcast_bytes(const int8_t* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof(word));
  return _mm512_set1_epi32(word);
}

VITRINE_INLINE int64_t scale_bytes(ScaleFormat format) {
  return format == ScaleFormat::kF32 ? 4 : 2;
}

VITRINE_INLINE __m512 load_scales(ScaleFormat format, const uint8_t* scales) {
  switch (format) {
    case ScaleFormat::kF16: return load_lanes<WeightFormat::kF16>(scales);
    case ScaleFormat::kBF16: return load_lanes<WeightFormat::kBF16>(scales);
    default: return load_lanes<WeightFormat::kF32>(scales);
  }
}

/// Eight columns of a tile: low holds the first four of each row, high the last four.
struct Step {
  __m512i low;
  __m512i high;
};

/// kShiftedHigh: the high nibbles stay in the upper half of their bytes, 16 times too large.
template <bool kInt4, bool kShiftedHigh>
VITRINE_INLINE Step load_step(const uint8_t* data) {
  const __m512i raw = _mm512_loadu_si512(data);
  if constexpr (!kInt4) return {raw, _mm512_loadu_si512(data + 64)};
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i low = _mm512_and_si512(raw, nibble);
  if constexpr (kShiftedHigh) return {low, _mm512_andnot_si512(nibble, raw)};
  return {low, _mm512_and_si512(_mm512_srli_epi16(raw, 4), nibble)};
}

/// Dots of kMatrices tiles with kTokens input rows, lane = weight row. The matrices share the loads
/// of the activations.
template <bool kInt4, int kMatrices, int kTokens>
VITRINE_INLINE void tile_dots(const Tile* tiles, ScaleFormat scale_format, int64_t groups,
                              int64_t group_size, const Tokens<kTokens>& tokens,
                              __m512 (*dots)[kTokens]) {
  // Few tokens: low and high columns are summed apart, for twice as many independent chains, and
  // high nibbles are shifted once a group, not once a step.
  constexpr bool kSplit = kTokens <= 2;
  constexpr int64_t kStepBytes = kInt4 ? 64 : 128;
  const int64_t scale_step = 16 * scale_bytes(scale_format);
  const uint8_t* data[kMatrices];
  __m512 acc[kMatrices][kTokens];
#pragma GCC unroll 2
  for (int m = 0; m < kMatrices; ++m) {
    data[m] = tiles[m].data;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) acc[m][t] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < groups; ++g) {
    __m512i isum[kMatrices][kTokens];
    __m512i isum_high[kMatrices][kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m512i start = _mm512_set1_epi32((kInt4 ? -8 : -128) * tokens.sums[t][g]);
#pragma GCC unroll 2
      for (int m = 0; m < kMatrices; ++m) {
        isum[m][t] = start;
        isum_high[m][t] = _mm512_setzero_si512();
      }
    }
    for (int64_t k = g * group_size; k < (g + 1) * group_size; k += 8) {
      Step step[kMatrices];
#pragma GCC unroll 2
      for (int m = 0; m < kMatrices; ++m) {
        // Measured: 20 -> 25 GB/s from the L3 cache for int4; nothing for int8.
        if constexpr (kInt4 && kSplit) _mm_prefetch(data[m] + kPrefetchBytes, _MM_HINT_T0);
        step[m] = load_step<kInt4, kSplit>(data[m]);
        data[m] += kStepBytes;
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m512i first = broadcast_bytes(tokens.values[t] + k);
#pragma GCC unroll 2
        for (int m = 0; m < kMatrices; ++m) {
          isum[m][t] = _mm512_dpbusd_epi32(isum[m][t], step[m].low, first);
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m512i second = broadcast_bytes(tokens.values[t] + k + 4);
#pragma GCC unroll 2
        for (int m = 0; m < kMatrices; ++m) {
          __m512i& sum = kSplit ? isum_high[m][t] : isum[m][t];
          sum = _mm512_dpbusd_epi32(sum, step[m].high, second);
        }
      }
    }
#pragma GCC unroll 2
    for (int m = 0; m < kMatrices; ++m) {
      const __m512 weight_scale = load_scales(scale_format, tiles[m].scales + g * scale_step);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        __m512i sum = isum[m][t];
        if constexpr (kSplit) {
          const __m512i high = isum_high[m][t];
          sum = _mm512_add_epi32(sum, kInt4 ? _mm512_srai_epi32(high, 4) : high);
        }
        const __m512 scale = _mm512_mul_ps(weight_scale, _mm512_set1_ps(tokens.scales[t][g]));
        acc[m][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[m][t]);
      }
    }
  }
#pragma GCC unroll 2
  for (int m = 0; m < kMatrices; ++m) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) dots[m][t] = acc[m][t];
  }
}

VITRINE_INLINE Tile find_tile(const Weight& weight, int64_t tile) {
  const int64_t bytes = kTileRows * weight.cols / (weight.format == WeightFormat::kInt4 ? 2 : 1);
  const int64_t scales = kTileRows * (weight.cols / weight.group_size);
  return {static_cast<const uint8_t*>(weight.data) + tile * bytes,
          static_cast<const uint8_t*>(weight.scales) +
              tile * scales * scale_bytes(weight.scale_format)};
}

/// One tile for the `count` (at most kTokens) input rows from m on.
template <int kTokens>
__attribute__((noinline)) void token_block(const Weight& weight, const Weight* up, int64_t row,
                                           int64_t row_end, const Activations& input,
                                           const RowMap& rows, int32_t m, int32_t count,
                                           const Target& target) {
  Tokens<kTokens> tokens;
  for (int t = 0; t < kTokens; ++t) {
    const int64_t in_row = mapped(rows.in_rows, t < count ? m + t : m);
    tokens.values[t] = input.quantized + in_row * input.quantized_stride;
    tokens.scales[t] = input.scales + in_row * input.group_stride;
    tokens.sums[t] = input.sums + in_row * input.group_stride;
  }
  const int64_t groups = weight.cols / weight.group_size;
  __m512 dots[2][kTokens];
  const bool paired = kTokens <= 4 && up != nullptr && up->format == weight.format &&
                      up->scale_format == weight.scale_format;
  Tile tiles[2];
  tiles[0] = find_tile(weight, row / kTileRows);
  if (up != nullptr) tiles[1] = find_tile(*up, row / kTileRows);
  if (paired) {
    if constexpr (kTokens <= 4) {
      if (weight.format == WeightFormat::kInt4) {
        tile_dots<true, 2, kTokens>(tiles, weight.scale_format, groups, weight.group_size, tokens,
                                    dots);
      } else {
        tile_dots<false, 2, kTokens>(tiles, weight.scale_format, groups, weight.group_size, tokens,
                                     dots);
      }
    }
  } else {
    for (int i = 0; i < (up != nullptr ? 2 : 1); ++i) {
      const Weight& matrix = i == 0 ? weight : *up;
      if (matrix.format == WeightFormat::kInt4) {
        tile_dots<true, 1, kTokens>(tiles + i, matrix.scale_format, groups, matrix.group_size,
                                    tokens, dots + i);
      } else {
        tile_dots<false, 1, kTokens>(tiles + i, matrix.scale_format, groups, matrix.group_size,
                                     tokens, dots + i);
      }
    }
  }
  const __mmask16 stored = first_lanes(row_end - row);
  for (int t = 0; t < count; ++t) {
    __m512 v = dots[0][t];
    if (up != nullptr) v = _mm512_mul_ps(silu_lanes(v), dots[1][t]);
    store_dots(target, m + t, row, stored, v);
  }
}

}  // namespace

void linear_quantized(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                      const Activations& input, const RowMap& rows, const Target& target) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    for (int32_t m = 0; m < rows.count;) {
      const int32_t left = rows.count - m;
      int32_t count;
      if (left >= 7) {  // a block of 8, the eighth repeated where it is missing
        count = left < 8 ? left : 8;
        token_block<8>(weight, up, row, row_end, input, rows, m, count, target);
      } else if (left >= 3) {
        count = left < 4 ? left : 4;
        token_block<4>(weight, up, row, row_end, input, rows, m, count, target);
      } else if (left == 2) {
        count = 2;
        token_block<2>(weight, up, row, row_end, input, rows, m, count, target);
      } else {
        count = 1;
        token_block<1>(weight, up, row, row_end, input, rows, m, count, target);
      }
      m += count;
    }
  }
}

}  // namespace vitrine::kernels::avx512
