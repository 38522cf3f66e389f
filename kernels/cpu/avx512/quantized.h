// SPDX-License-Identifier: Apache-2.0
// Packed quantized matrix products: a tile of 16 rows is one vector, lane = row.
//
// One template over how weights are unpacked (a Format), see formats_*.cc. vpdpbusd adds four
// unsigned x signed byte products to each lane; what the unsigned numbers are too large by is taken
// out with the sums of the activations, which is exact.
#pragma once

#include "linear.h"

namespace vitrine::kernels::avx512 {

constexpr int kUnit = 32;  // columns; every group is a multiple of it

/// One tile (16 rows) of a packed matrix.
struct Tile {
  const uint8_t* data;
  const uint8_t* scales;
  const uint8_t* offsets;
  ScaleFormat scale_format;
  OffsetFormat offset_format;
  __m512 super_scale[2];  // of the 256 columns that a group is in, where the format has such
  float multiplier = 1.0f;
};

/// The quantized input rows of a block of tokens.
struct TokenRows {
  const int8_t* values[8];
  const float* scales[8];
  const GroupSum* sums[8];
};

/// Makes dots[t] of one matrix's tile, and dots[kTokens + t] of the other's.
using DotsFunction = void (*)(const Weight* const* matrices, const int64_t* tiles,
                              const TokenRows& tokens, __m512* dots);

/// What a group's numbers mean: scale * (number - bias) + minimum. Where its halves have minimums
/// of their own, `minimum` is the scale of these, and bias_words make the sum of their products.
struct Group {
  __m512 scale;
  __m512i
      bias_words;  // 16-bit pairs to multiply with a GroupSum: what the sum of products begins at
  __m512 minimum;
  __m512i part_scale[2];  // where the group's halves have their own
};

/// Unpacks a tile: its signed numbers, unit by unit as [fours of columns][16 rows][4], and what its
/// groups mean; bias_words then hold what the signed numbers still leave.
using UnpackFunction = void (*)(const Weight& weight, int64_t tile, int8_t* numbers, Group* groups);

/// Which kernel takes a block of 1, 2, 3, 4 or 8 tokens.
constexpr int block_index(int tokens) { return tokens == 8 ? 4 : tokens - 1; }

struct FormatKernels {
  // By block_index(tokens).
  DotsFunction one_tile[5];
  // Dots with tiles of two matrices, or with two of one: what is loaded of a token serves both.
  // Null for 8 tokens where that takes many more registers than there are.
  DotsFunction two_tiles[5];
  UnpackFunction unpack;
  // These decode a tile once for many rows, of formats that take long to decode: its unsigned
  // numbers and its groups, and one_tile of a matrix that stands like that (Weight::data, scales).
  UnpackFunction decode = nullptr;
  const DotsFunction* decoded_tile = nullptr;
};

const FormatKernels& int3_format();
const FormatKernels& int4_format();
const FormatKernels& int8_format();
const FormatKernels& q2k_format();
const FormatKernels& q4k_format();
const FormatKernels& q6k_format();
const FormatKernels& mxfp4_format();
/// The kernels of a format of kBlocks, each from a file that has some of them; null: not there.
const FormatKernels* find_numbers(BlockFormat format);
const FormatKernels* find_books(BlockFormat format);
const FormatKernels* find_rare(BlockFormat format);
const FormatKernels& find_format(const Weight& weight);

namespace {

/// How far ahead of a decode step's loads its numbers are fetched, and its scales, of which there
/// are an eighth as many bytes: a stream as slow as theirs the processor itself fetches late.
constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kPrefetchGroups = 16;

/// Eight columns of a tile: low holds the first four of each row, high the last four.
struct Step {
  __m512i low;
  __m512i high;
};

VITRINE_INLINE int32_t load_word(const void* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof(word));
  return word;
}

VITRINE_INLINE __m512i broadcast_word(const void* four) {
  return _mm512_set1_epi32(load_word(four));
}

VITRINE_INLINE __m128i load_128(const uint8_t* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

VITRINE_INLINE Step nibbles(__m512i raw) {
  const __m512i nibble = _mm512_set1_epi8(15);
  return {_mm512_and_si512(raw, nibble), _mm512_and_si512(_mm512_srli_epi16(raw, 4), nibble)};
}

/// The low words of both, that of `high` above that of `low`.
VITRINE_INLINE __m512i words_of(__m512i low, __m512i high) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}

/// {-bias, 0} for every lane.
VITRINE_INLINE __m512i bias_words(int bias) { return _mm512_set1_epi32(-bias & 0xffff); }

VITRINE_INLINE void fetch(const uint8_t* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
}

/// The products of a group whose halves have a scale each: of the first, then of the last.
template <class Format>
VITRINE_INLINE __m512 add_two_scales(const __m512i* sums, const Group& group,
                                     const TokenRows& tokens, int t, int64_t g, __m512 dot) {
  const __m512i input = broadcast_word(tokens.sums[t] + g);
  // Pairs for whole and first_half: the bias of the first half, and of what is left.
  const __m512i first_bias = _mm512_set1_epi32(-Format::kBias * 0x10000);
  const __m512i last_bias = _mm512_set1_epi32((Format::kBias << 16) | (-Format::kBias & 0xffff));
  const __m512 scale = _mm512_set1_ps(tokens.scales[t][g]);
  const __m512i first = _mm512_add_epi32(sums[0], _mm512_madd_epi16(input, first_bias));
  const __m512i last = _mm512_add_epi32(sums[1], _mm512_madd_epi16(input, last_bias));
  dot = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), _mm512_mul_ps(group.scale, scale), dot);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(last), _mm512_mul_ps(group.minimum, scale), dot);
}

/// kSplit: the two halves of a step have sums of their own, which shortens the chains of dependent
/// additions where few tokens are multiplied.
template <class Format, int kMatrices, int kTokens>
__attribute__((noinline, aligned(64))) void tile_dots(const Weight* const* matrices,
                                                      const int64_t* tile_numbers,
                                                      const TokenRows& tokens, __m512* dots) {
  constexpr bool kTwoScales = Format::kTwoScales;
  constexpr bool kTwoParts = Format::kTwoParts || kTwoScales;
  constexpr bool kPartMinimums = Format::kPartMinimums;
  constexpr bool kSplit = kTokens <= 2 && !kTwoParts;
  // Measured: up to a quarter faster out of the caches for nibbles; nothing, or slower, for bytes,
  // and for the eight tokens, whose sums fill the registers.
  constexpr bool kPrefetch = kTokens <= 4 && Format::kPrefetch;
  constexpr bool kShifted = kSplit && Format::kHighShift != 0;
  constexpr int kSums = kSplit || kTwoParts ? 2 : 1;
  const int64_t cols = padded_cols(matrices[0]->cols);
  const int64_t group_size = matrices[0]->group_size;
  Tile tiles[kMatrices];
  const uint8_t* data[kMatrices];
  __m512 acc[kMatrices][kTokens];
#pragma GCC unroll 2
  for (int m = 0; m < kMatrices; ++m) {
    tiles[m] = Format::tile(*matrices[m], tile_numbers[m]);
    data[m] = tiles[m].data;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) acc[m][t] = _mm512_setzero_ps();
  }
  for (int64_t k = 0, g = 0; k < cols; ++g) {
    Group group[kMatrices];
    __m512i isum[kMatrices][kTokens][kSums];
#pragma GCC unroll 2
    for (int m = 0; m < kMatrices; ++m) {
      group[m] = Format::group(tiles[m], g);
      if constexpr (kPrefetch) {
        fetch(tiles[m].scales + (g + kPrefetchGroups) * Format::scale_bytes(tiles[m]));
        if (tiles[m].offsets != nullptr) {
          fetch(tiles[m].offsets + (g + kPrefetchGroups) * Format::offset_bytes(tiles[m]));
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        // Numbers with a minimum have no bias: a product with zeros for every token would be as
        // many as the minimums' own.
        if (kTwoParts || Format::has_minimum(tiles[m])) {
          isum[m][t][0] = _mm512_setzero_si512();
        } else if (tiles[m].offset_format == OffsetFormat::kNone) {
          isum[m][t][0] = _mm512_set1_epi32(-Format::kBias * tokens.sums[t][g].whole);
        } else {
          isum[m][t][0] =
              _mm512_madd_epi16(broadcast_word(tokens.sums[t] + g), group[m].bias_words);
        }
        if constexpr (kSums == 2) isum[m][t][1] = _mm512_setzero_si512();
      }
    }
    const int64_t end = k + group_size < cols ? k + group_size : cols;
    for (; k < end; k += kUnit) {
#pragma GCC unroll 4
      for (int s = 0; s < kUnit / 8; ++s) {
        Step step[kMatrices];
#pragma GCC unroll 2
        for (int m = 0; m < kMatrices; ++m) {
          if constexpr (kPrefetch) {
#pragma GCC unroll 4
            for (int line = s; 64 * line < Format::kUnitBytes; line += kUnit / 8) {
              fetch(data[m] + 64 * line + kPrefetchBytes);
            }
          }
          step[m] = Format::template step<kShifted>(data[m], g, s);
        }
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m512i first = broadcast_word(tokens.values[t] + k + 8 * s);
#pragma GCC unroll 2
          for (int m = 0; m < kMatrices; ++m) {
            __m512i& sum = isum[m][t][kTwoParts ? s / 2 : 0];
            sum = _mm512_dpbusd_epi32(sum, step[m].low, first);
          }
        }
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m512i second = broadcast_word(tokens.values[t] + k + 8 * s + 4);
#pragma GCC unroll 2
          for (int m = 0; m < kMatrices; ++m) {
            __m512i& sum = isum[m][t][kTwoParts ? s / 2 : kSplit];
            sum = _mm512_dpbusd_epi32(sum, step[m].high, second);
          }
        }
      }
#pragma GCC unroll 2
      for (int m = 0; m < kMatrices; ++m) data[m] += Format::kUnitBytes;
    }
#pragma GCC unroll 2
    for (int m = 0; m < kMatrices; ++m) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        __m512i sum = isum[m][t][0];
        if constexpr (kTwoScales) {
          acc[m][t] = add_two_scales<Format>(isum[m][t], group[m], tokens, t, g, acc[m][t]);
          continue;
        } else if constexpr (kTwoParts) {
          if constexpr (kPartMinimums) {
            // Numbers of two bits: the sums fit 16, and meet their scales at once.
            const __m512i both = words_of(sum, isum[m][t][1]);
            sum = _mm512_madd_epi16(both, words_of(group[m].part_scale[0], group[m].part_scale[1]));
          } else {
            const __m512i first = _mm512_mullo_epi32(sum, group[m].part_scale[0]);
            const __m512i second = _mm512_mullo_epi32(isum[m][t][1], group[m].part_scale[1]);
            const __m512i bias =
                _mm512_madd_epi16(broadcast_word(tokens.sums[t] + g), group[m].bias_words);
            sum = _mm512_add_epi32(_mm512_add_epi32(first, second), bias);
          }
        } else if constexpr (kSplit) {
          const __m512i high = isum[m][t][1];
          sum =
              _mm512_add_epi32(sum, kShifted ? _mm512_srai_epi32(high, Format::kHighShift) : high);
        }
        const __m512 scale = _mm512_mul_ps(group[m].scale, _mm512_set1_ps(tokens.scales[t][g]));
        acc[m][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[m][t]);
      }
      if constexpr (kPartMinimums) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m512i sum =
              _mm512_madd_epi16(broadcast_word(tokens.sums[t] + g), group[m].bias_words);
          const __m512 scale = _mm512_mul_ps(group[m].minimum, _mm512_set1_ps(tokens.scales[t][g]));
          acc[m][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[m][t]);
        }
      } else if (Format::has_minimum(tiles[m])) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const __m512 sum = _mm512_set1_ps(tokens.sums[t][g].weighted);
          acc[m][t] = _mm512_fmadd_ps(group[m].minimum, sum, acc[m][t]);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int m = 0; m < kMatrices; ++m) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) dots[m * kTokens + t] = acc[m][t];
  }
}

template <class Format>
void unpack_tile(const Weight& weight, int64_t index, int8_t* numbers, Group* groups) {
  const int64_t units = padded_cols(weight.cols) / kUnit;
  const int64_t group_count = kernels::group_count(weight.cols, weight.group_size);
  Tile tile = Format::tile(weight, index);
  // Nibbles with a minimum have no bias, and are signed bytes as they are.
  const bool is_plain = Format::kBias < 128 && Format::has_minimum(tile);
  const int8_t taken = is_plain ? 0 : static_cast<int8_t>(Format::kBias);
  const __m512i bias = _mm512_set1_epi8(taken);
  const __m512i bias_word = _mm512_set1_epi32(is_plain ? 0 : Format::kBias);
  for (int64_t g = 0; g < group_count; ++g) {
    groups[g] = Format::group(tile, g);
    groups[g].bias_words = _mm512_add_epi16(groups[g].bias_words, bias_word);
  }
  const uint8_t* data = tile.data;
  for (int64_t u = 0; u < units; ++u, data += Format::kUnitBytes) {
#pragma GCC unroll 4
    for (int s = 0; s < kUnit / 8; ++s, numbers += 128) {
      const Step step = Format::template step<false>(data, u, s);
      _mm512_storeu_si512(numbers, _mm512_sub_epi8(step.low, bias));
      _mm512_storeu_si512(numbers + 64, _mm512_sub_epi8(step.high, bias));
    }
  }
}

template <class Format>
constexpr FormatKernels format_kernels() {
  return {{tile_dots<Format, 1, 1>, tile_dots<Format, 1, 2>, tile_dots<Format, 1, 3>,
           tile_dots<Format, 1, 4>, tile_dots<Format, 1, 8>},
          {tile_dots<Format, 2, 1>, tile_dots<Format, 2, 2>, tile_dots<Format, 2, 3>,
           tile_dots<Format, 2, 4>, Format::kTwoParts ? nullptr : tile_dots<Format, 2, 8>},
          unpack_tile<Format>};
}

}  // namespace
}  // namespace vitrine::kernels::avx512
