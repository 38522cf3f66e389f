// Packed quantized matrix products, one template over how four-byte dots are made (a Dot) and how
// weights are unpacked (formats.h). Every sum of products is exact, whatever the instructions.
#pragma once

#include "formats.h"

namespace vitrine::kernels::avx2 {
namespace {

VITRINE_INLINE __m256i broadcast_word(const void* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof(word));
  return _mm256_set1_epi32(word);
}

/// Dots in 16-bit pieces (vpmaddubsw), widened before they could overflow.
struct MaddubsDot {
  template <class Format>
  static constexpr bool kSignedProducts = Format::kChain == 1;

  /// Adds the products of 32 columns to isum.
  template <class Format, int kTokens>
  VITRINE_INLINE void add_unit(const uint8_t* unit, int half, const Group& group,
                               const int8_t* const* x, __m256i* isum) {
    if constexpr (kSignedProducts<Format>) {
      add_signed<Format, kTokens>(unit, half, x, isum);
      return;
    }
    __m256i chain[kTokens];
#pragma GCC unroll 4
    for (int s = 0; s < kUnit / 8; ++s) {
      const Step step = Format::step(unit, half, s);
      // Of 16-bit pairs: both with the scale of their part of the group, where it has one.
      const __m256i factor =
          Format::kTwoParts ? words_of(group.part_scale[s / 2]) : _mm256_set1_epi16(1);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256i low = _mm256_maddubs_epi16(step.low, broadcast_word(x[t] + 8 * s));
        const __m256i high = _mm256_maddubs_epi16(step.high, broadcast_word(x[t] + 8 * s + 4));
        const __m256i both = _mm256_add_epi16(low, high);
        chain[t] = 2 * s % Format::kChain == 0 ? both : _mm256_add_epi16(chain[t], both);
        if ((2 * s + 2) % Format::kChain == 0) {
          isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(chain[t], factor));
        }
      }
    }
  }

  /// The low word of each lane in both of its words.
  VITRINE_INLINE __m256i words_of(__m256i lanes) {
    return _mm256_blend_epi16(lanes, _mm256_slli_epi32(lanes, 16), 0xaa);
  }

  /// The unsigned factor is |value|, 0 … 128; the activation takes the value's sign.
  template <class Format, int kTokens>
  VITRINE_INLINE void add_signed(const uint8_t* unit, int half, const int8_t* const* x,
                                 __m256i* isum) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i flip = _mm256_set1_epi8(-128);
#pragma GCC unroll 4
    for (int s = 0; s < kUnit / 8; ++s) {
      Step step = Format::step(unit, half, s);
      step = {_mm256_xor_si256(step.low, flip), _mm256_xor_si256(step.high, flip)};
      const Step magnitude = {_mm256_abs_epi8(step.low), _mm256_abs_epi8(step.high)};
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256i a = _mm256_sign_epi8(broadcast_word(x[t] + 8 * s), step.low);
        const __m256i b = _mm256_sign_epi8(broadcast_word(x[t] + 8 * s + 4), step.high);
        const __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.low, a), ones);
        const __m256i high = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.high, b), ones);
        isum[t] = _mm256_add_epi32(isum[t], _mm256_add_epi32(low, high));
      }
    }
  }
};

#if defined(__AVXVNNI__)
/// Dots with AVX-VNNI: four products are added in 32 bits.
struct VnniDot {
  template <class Format>
  static constexpr bool kSignedProducts = false;

  template <class Format, int kTokens>
  VITRINE_INLINE void add_unit(const uint8_t* unit, int half, const Group& group,
                               const int8_t* const* x, __m256i* isum) {
    // Two chains of sums: few tokens would leave the multipliers waiting, and halves of a group
    // may have scales of their own.
    constexpr bool kTwoChains = kTokens <= 2 || Format::kTwoParts;
    __m256i first[kTokens];
    __m256i second[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      first[t] = Format::kTwoParts ? _mm256_setzero_si256() : isum[t];
      second[t] = _mm256_setzero_si256();
    }
#pragma GCC unroll 4
    for (int s = 0; s < kUnit / 8; ++s) {
      const Step step = Format::step(unit, half, s);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        __m256i& low = kTwoChains && s >= 2 ? second[t] : first[t];
        low = _mm256_dpbusd_avx_epi32(low, step.low, broadcast_word(x[t] + 8 * s));
        low = _mm256_dpbusd_avx_epi32(low, step.high, broadcast_word(x[t] + 8 * s + 4));
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (Format::kTwoParts) {
        first[t] = _mm256_mullo_epi32(first[t], group.part_scale[0]);
        second[t] = _mm256_mullo_epi32(second[t], group.part_scale[1]);
        first[t] = _mm256_add_epi32(isum[t], first[t]);
      }
      isum[t] = kTwoChains ? _mm256_add_epi32(first[t], second[t]) : first[t];
    }
  }
};
#endif

/// The quantized input rows of a block of tokens.
template <int kTokens>
struct TokenRows {
  const int8_t* values[kTokens];
  const float* scales[kTokens];
  const GroupSum* sums[kTokens];
};

/// dots[2 * t + half]: the dots of rows 8 * half … of one tile with token t.
template <class Dot, class Format, int kTokens>
__attribute__((noinline)) void tile_dots(const Weight& weight, int64_t index,
                                         const TokenRows<kTokens>& tokens, __m256* dots) {
  const Tile tile = Format::tile(weight, index);
  const int64_t cols = padded_cols(weight.cols);
  const uint8_t* data = tile.data;
  __m256 acc[2 * kTokens];
#pragma GCC unroll 16
  for (int i = 0; i < 2 * kTokens; ++i) acc[i] = _mm256_setzero_ps();
  for (int64_t k = 0, g = 0; k < cols; k += weight.group_size, ++g) {
    const int64_t end = k + weight.group_size < cols ? k + weight.group_size : cols;
    for (int half = 0; half < 2; ++half) {
      const Group group =
          Format::template group<Dot::template kSignedProducts<Format>>(tile, g, half);
      const int8_t* x[kTokens];
      __m256i isum[kTokens];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        x[t] = tokens.values[t] + k;
        isum[t] = Format::kPartMinimums
                      ? _mm256_setzero_si256()
                      : _mm256_madd_epi16(broadcast_word(tokens.sums[t] + g), group.bias_words);
      }
      const uint8_t* unit = data;
      for (int64_t u = k; u < end; u += kUnit, unit += Format::kUnitBytes) {
        Dot::template add_unit<Format, kTokens>(unit, half, group, x, isum);
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) x[t] += kUnit;
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256 scale = _mm256_mul_ps(group.scale, _mm256_set1_ps(tokens.scales[t][g]));
        __m256& sum = acc[2 * t + half];
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[t]), scale, sum);
      }
      if constexpr (Format::kPartMinimums) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m256i sum =
              _mm256_madd_epi16(broadcast_word(tokens.sums[t] + g), group.bias_words);
          const __m256 scale = _mm256_mul_ps(group.minimum, _mm256_set1_ps(tokens.scales[t][g]));
          __m256& dot = acc[2 * t + half];
          dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, dot);
        }
      } else if (Format::has_minimum(tile)) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m256 sum = _mm256_set1_ps(tokens.sums[t][g].weighted);
          __m256& dot = acc[2 * t + half];
          dot = _mm256_fmadd_ps(group.minimum, sum, dot);
        }
      }
    }
    data += (end - k) / kUnit * Format::kUnitBytes;
  }
#pragma GCC unroll 16
  for (int i = 0; i < 2 * kTokens; ++i) dots[i] = acc[i];
}

template <class Dot, int kTokens>
VITRINE_INLINE void dots_of(const Weight& weight, int64_t tile, const TokenRows<kTokens>& tokens,
                            __m256* dots) {
  switch (weight.format) {
    case WeightFormat::kInt8: return tile_dots<Dot, Int8, kTokens>(weight, tile, tokens, dots);
    case WeightFormat::kQ2K: return tile_dots<Dot, Q2K, kTokens>(weight, tile, tokens, dots);
    case WeightFormat::kQ4K: return tile_dots<Dot, Q4K, kTokens>(weight, tile, tokens, dots);
    case WeightFormat::kQ6K: return tile_dots<Dot, Q6K, kTokens>(weight, tile, tokens, dots);
    case WeightFormat::kMxfp4: return tile_dots<Dot, Mxfp4, kTokens>(weight, tile, tokens, dots);
    default: return tile_dots<Dot, Int4, kTokens>(weight, tile, tokens, dots);
  }
}

/// One tile for the kTokens input rows from m on.
template <class Dot, int kTokens>
__attribute__((noinline)) void token_block(const Weight& weight, const Weight* up, int64_t row,
                                           int64_t row_end, const Activations& input,
                                           const RowMap& rows, int32_t m, const Target& target) {
  TokenRows<kTokens> tokens;
  for (int t = 0; t < kTokens; ++t) {
    const int64_t in_row = mapped(rows.in_rows, m + t);
    tokens.values[t] = input.quantized + in_row * input.quantized_stride;
    tokens.scales[t] = input.scales + in_row * input.group_stride;
    tokens.sums[t] = input.sums + in_row * input.group_stride;
  }
  __m256 dots[2 * kTokens];
  __m256 up_dots[2 * kTokens];
  dots_of<Dot, kTokens>(weight, row / kTileRows, tokens, dots);
  if (up != nullptr) dots_of<Dot, kTokens>(*up, row / kTileRows, tokens, up_dots);
  for (int t = 0; t < kTokens; ++t) {
    for (int half = 0; half < 2; ++half) {
      const int64_t first = row + 8 * half;
      if (first >= row_end) break;
      __m256 v = dots[2 * t + half];
      if (up != nullptr) v = _mm256_mul_ps(silu_8(v), up_dots[2 * t + half]);
      store_dots(target, m + t, first, row_end - first, v);
    }
  }
}

template <class Dot>
void quantized_product(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                       const Activations& input, const RowMap& rows, const Target& target) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    int32_t m = 0;
    for (; m + 4 <= rows.count; m += 4) {
      token_block<Dot, 4>(weight, up, row, row_end, input, rows, m, target);
    }
    for (; m + 2 <= rows.count; m += 2) {
      token_block<Dot, 2>(weight, up, row, row_end, input, rows, m, target);
    }
    if (m < rows.count) token_block<Dot, 1>(weight, up, row, row_end, input, rows, m, target);
  }
}

}  // namespace
}  // namespace vitrine::kernels::avx2
