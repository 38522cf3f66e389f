// Packed quantized matrix products: half a tile (8 rows) is one vector, lane = row.
//
// One template over how four-byte dots are made (kDot…) and how weights are unpacked (a Format).
// Every sum of products is exact, whatever the instructions: see each Format's limits.
#pragma once

#include "linear.h"

namespace vitrine::kernels::avx2 {
namespace {

/// Columns that are unpacked and multiplied together; every group size is a multiple of it.
constexpr int kUnit = 32;

/// Eight columns of eight rows: low holds the first four of each row, high the last four.
struct Step {
  __m256i low;
  __m256i high;
};

VITRINE_INLINE __m256i load_256(const void* data) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(data));
}

/// Unsigned nibbles, 0 … 15, that mean value + 8.
struct Int4Format {
  static constexpr int kBias = 8;
  static constexpr int kUnitBytes = kUnit * kTileRows / 2;
  /// How many products of two may be added in 16 bits: 8 * 2 * 15 * 127 < 2^15.
  static constexpr int kChain = 8;

  VITRINE_INLINE Step step(const uint8_t* unit, int half, int s) {
    const __m256i raw = load_256(unit + 64 * s + 32 * half);
    const __m256i nibble = _mm256_set1_epi8(15);
    return {_mm256_and_si256(raw, nibble), _mm256_and_si256(_mm256_srli_epi16(raw, 4), nibble)};
  }
};

/// Unsigned bytes that mean value + 128.
struct Int8Format {
  static constexpr int kBias = 128;
  static constexpr int kUnitBytes = kUnit * kTileRows;
  /// 2 * 255 * 127 does not fit 16 bits: the signed values are multiplied (2 * 128 * 127 does).
  static constexpr int kChain = 1;

  VITRINE_INLINE Step step(const uint8_t* unit, int half, int s) {
    return {load_256(unit + 128 * s + 32 * half), load_256(unit + 128 * s + 64 + 32 * half)};
  }
};

VITRINE_INLINE __m256i broadcast_bytes(const int8_t* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof(word));
  return _mm256_set1_epi32(word);
}

/// Dots in 16-bit pieces (vpmaddubsw), widened before they could overflow.
struct MaddubsDot {
  /// Does a sum begin with the bias taken out (as unsigned products need)?
  template <class Format>
  static constexpr bool kBiasFirst = Format::kChain > 1;

  template <class Format, int kTokens>
  VITRINE_INLINE void add_unit(const uint8_t* unit, int half, const int8_t* const* x,
                               __m256i* isum) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i chain[kTokens];
#pragma GCC unroll 4
    for (int s = 0; s < kUnit / 8; ++s) {
      Step step = Format::step(unit, half, s);
      if constexpr (Format::kChain > 1) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m256i low = _mm256_maddubs_epi16(step.low, broadcast_bytes(x[t] + 8 * s));
          const __m256i high = _mm256_maddubs_epi16(step.high, broadcast_bytes(x[t] + 8 * s + 4));
          const __m256i both = _mm256_add_epi16(low, high);
          chain[t] = 2 * s % Format::kChain == 0 ? both : _mm256_add_epi16(chain[t], both);
          if ((2 * s + 2) % Format::kChain == 0) {
            isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(chain[t], ones));
          }
        }
      } else {
        // |value| as the unsigned factor, 0 … 128; the activation takes its sign.
        const __m256i flip = _mm256_set1_epi8(-128);
        step = {_mm256_xor_si256(step.low, flip), _mm256_xor_si256(step.high, flip)};
        const Step magnitude = {_mm256_abs_epi8(step.low), _mm256_abs_epi8(step.high)};
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m256i a = _mm256_sign_epi8(broadcast_bytes(x[t] + 8 * s), step.low);
          const __m256i b = _mm256_sign_epi8(broadcast_bytes(x[t] + 8 * s + 4), step.high);
          const __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.low, a), ones);
          const __m256i high = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.high, b), ones);
          isum[t] = _mm256_add_epi32(isum[t], _mm256_add_epi32(low, high));
        }
      }
    }
  }
};

#if defined(__AVXVNNI__)
/// Dots with AVX-VNNI: four products are added in 32 bits.
struct VnniDot {
  template <class Format>
  static constexpr bool kBiasFirst = true;

  template <class Format, int kTokens>
  VITRINE_INLINE void add_unit(const uint8_t* unit, int half, const int8_t* const* x,
                               __m256i* isum) {
#pragma GCC unroll 4
    for (int s = 0; s < kUnit / 8; ++s) {
      const Step step = Format::step(unit, half, s);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        isum[t] = _mm256_dpbusd_avx_epi32(isum[t], step.low, broadcast_bytes(x[t] + 8 * s));
        isum[t] = _mm256_dpbusd_avx_epi32(isum[t], step.high, broadcast_bytes(x[t] + 8 * s + 4));
      }
    }
  }
};
#endif

VITRINE_INLINE int64_t scale_bytes(ScaleFormat format) {
  return format == ScaleFormat::kF32 ? 4 : 2;
}

VITRINE_INLINE __m256 load_scales(ScaleFormat format, const uint8_t* scales) {
  switch (format) {
    case ScaleFormat::kF16: return load_8<WeightFormat::kF16>(scales);
    case ScaleFormat::kBF16: return load_8<WeightFormat::kBF16>(scales);
    default: return load_8<WeightFormat::kF32>(scales);
  }
}

/// The quantized input rows of a block of tokens.
template <int kTokens>
struct Tokens {
  const int8_t* values[kTokens];
  const float* scales[kTokens];
  const int32_t* sums[kTokens];
};

/// dots[2 * t + half]: the dots of rows 8 * half … of one tile with token t.
template <class Dot, class Format, int kTokens>
__attribute__((noinline)) void tile_dots(const Weight& weight, int64_t tile,
                                         const Tokens<kTokens>& tokens, __m256* dots) {
  const int64_t groups = weight.cols / weight.group_size;
  const int64_t units = weight.group_size / kUnit;
  const int64_t step = scale_bytes(weight.scale_format);
  const auto* data =
      static_cast<const uint8_t*>(weight.data) + tile * groups * units * Format::kUnitBytes;
  const auto* scales =
      static_cast<const uint8_t*>(weight.scales) + tile * groups * kTileRows * step;
  __m256 acc[2 * kTokens];
#pragma GCC unroll 16
  for (int i = 0; i < 2 * kTokens; ++i) acc[i] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const int8_t* x[kTokens];
    for (int half = 0; half < 2; ++half) {
      __m256i isum[kTokens];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        x[t] = tokens.values[t] + g * weight.group_size;
        isum[t] = _mm256_set1_epi32(
            Dot::template kBiasFirst<Format> ? -Format::kBias * tokens.sums[t][g] : 0);
      }
      const uint8_t* unit = data;
      for (int64_t u = 0; u < units; ++u, unit += Format::kUnitBytes) {
        Dot::template add_unit<Format, kTokens>(unit, half, x, isum);
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) x[t] += kUnit;
      }
      const __m256 weight_scale = load_scales(weight.scale_format, scales + 8 * half * step);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256 scale = _mm256_mul_ps(weight_scale, _mm256_set1_ps(tokens.scales[t][g]));
        __m256& sum = acc[2 * t + half];
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[t]), scale, sum);
      }
    }
    data += units * Format::kUnitBytes;
    scales += kTileRows * step;
  }
#pragma GCC unroll 16
  for (int i = 0; i < 2 * kTokens; ++i) dots[i] = acc[i];
}

template <class Dot, int kTokens>
VITRINE_INLINE void dots_of(const Weight& weight, int64_t tile, const Tokens<kTokens>& tokens,
                            __m256* dots) {
  if (weight.format == WeightFormat::kInt4) {
    tile_dots<Dot, Int4Format, kTokens>(weight, tile, tokens, dots);
  } else {
    tile_dots<Dot, Int8Format, kTokens>(weight, tile, tokens, dots);
  }
}

/// One tile for the kTokens input rows from m on, of which the first `count` are wanted.
template <class Dot, int kTokens>
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
  __m256 dots[2 * kTokens];
  __m256 up_dots[2 * kTokens];
  dots_of<Dot, kTokens>(weight, row / kTileRows, tokens, dots);
  if (up != nullptr) dots_of<Dot, kTokens>(*up, row / kTileRows, tokens, up_dots);
  for (int t = 0; t < count; ++t) {
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
    for (int32_t m = 0; m < rows.count;) {
      const int32_t left = rows.count - m;
      int32_t count = 1;
      if (left >= 4) {
        count = 4;
        token_block<Dot, 4>(weight, up, row, row_end, input, rows, m, count, target);
      } else if (left >= 2) {
        count = 2;
        token_block<Dot, 2>(weight, up, row, row_end, input, rows, m, count, target);
      } else {
        token_block<Dot, 1>(weight, up, row, row_end, input, rows, m, count, target);
      }
      m += count;
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::avx2
