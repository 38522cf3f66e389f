// SPDX-License-Identifier: Apache-2.0
// Packed quantized matrix products, one template over how four-byte dots are made (dots.h) and how
// weights are unpacked (formats.h).
#pragma once

#include "blocks.h"
#include "dots.h"

namespace vitrine::kernels::avx2 {
namespace {

/// A strip of tiles with a block of tokens: what of a token is broadcast serves all of a strip's
/// rows, and what of a tile is unpacked all of a block's tokens.
constexpr int32_t kStripTiles = 8;
constexpr int32_t kBlockTokens = 32;

/// How far ahead of a decode step's loads the weights are fetched.
constexpr int64_t kPrefetchBytes = 2048;

/// The quantized input rows of a block of tokens.
struct TokenRows {
  int32_t count = 0;
  const int8_t* values[kBlockTokens];
  const float* scales[kBlockTokens];
  const GroupSum* sums[kBlockTokens];
};

/// [half tile of a strip][token]: dots of eight rows.
struct StripDots {
  __m256 at[2 * kStripTiles][kBlockTokens];
};

/// What a token brings to a unit of columns, each in all lanes.
struct TokenUnit {
  __m256i words[kWords];
  // The members below belong to the unit's group.
  __m256i sums;
  __m256 scale;
  __m256 weighted;
  // Begins the sums of each half: minus the bias times what its columns add up to. It takes the
  // place of `sums` and `weighted` where halves have scales of their own.
  __m256i of_half[2];

  VITRINE_INLINE void load_values(TokenUnit& unit, const int8_t* x) {
#pragma GCC unroll 8
    for (int i = 0; i < kWords; ++i) unit.words[i] = broadcast_word(x + 4 * i);
  }
  template <class Format>
  VITRINE_INLINE void load_group(TokenUnit& unit, const float* scale, const GroupSum* sums) {
    unit.scale = _mm256_set1_ps(*scale);
    if constexpr (Format::kTwoScales) {
      const int32_t first = sums->first_half;
      unit.of_half[0] = _mm256_set1_epi32(-Format::kBias * first);
      unit.of_half[1] = _mm256_set1_epi32(-Format::kBias * (sums->whole - first));
    } else {
      unit.sums = broadcast_word(sums);
      unit.weighted = _mm256_set1_ps(sums->weighted);
    }
  }
};

/// What the rows of half a tile have in one group, and what becomes of a token's products there.
template <class Format>
struct GroupRows {
  Group group;
  bool has_minimum;

  /// What the products of a token are added to.
  VITRINE_INLINE __m256i begin(const GroupRows& rows, const TokenUnit& token) {
    if constexpr (Format::kPartMinimums) return _mm256_setzero_si256();
    return _mm256_madd_epi16(token.sums, rows.group.bias_words);
  }

  VITRINE_INLINE __m256 end(const GroupRows& rows, __m256i isum, const TokenUnit& token,
                            __m256 dot) {
    const __m256 scale = _mm256_mul_ps(rows.group.scale, token.scale);
    dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), scale, dot);
    if constexpr (Format::kPartMinimums) {
      const __m256i sum = _mm256_madd_epi16(token.sums, rows.group.bias_words);
      const __m256 minimum = _mm256_mul_ps(rows.group.minimum, token.scale);
      dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), minimum, dot);
    } else if (rows.has_minimum) {
      dot = _mm256_fmadd_ps(rows.group.minimum, token.weighted, dot);
    }
    return dot;
  }
};

/// A token's products with a unit whose halves have a scale each, of the first, then of the last.
template <class Dot, class Format, class Weights>
VITRINE_INLINE __m256 add_two_scales(const GroupRows<Format>& rows, const Weights& weights,
                                     const TokenUnit& token, __m256 dot) {
  const __m256i first = Dot::template add_half<Format>(weights, token.words, 0, token.of_half[0]);
  const __m256i last = Dot::template add_half<Format>(weights, token.words, 1, token.of_half[1]);
  dot =
      _mm256_fmadd_ps(_mm256_cvtepi32_ps(first), _mm256_mul_ps(rows.group.scale, token.scale), dot);
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(last), _mm256_mul_ps(rows.group.minimum, token.scale),
                         dot);
}

template <class Format>
VITRINE_INLINE void fetch_ahead(const uint8_t* unit, int half) {
  constexpr int kHalf = Format::kUnitBytes / 2;
#pragma GCC unroll 4
  for (int line = 0; line < kHalf; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(unit + half * kHalf + line + kPrefetchBytes),
                 _MM_HINT_T0);
  }
}

/// What is known of a matrix when a kernel is made. kPlain: groups of 32 columns without offsets,
/// with scales of format kScales, which is then not asked for in every group.
template <class MatrixFormat, bool kPlain, ScaleFormat kScales>
struct Kind {
  using Format = MatrixFormat;
  static constexpr bool kOneUnit = kPlain || Format::kShortGroups;

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return known(Format::tile(weight, index));
  }
  /// Where the group that begins at column k ends.
  VITRINE_INLINE int64_t group_end(const Weight& weight, int64_t k, int64_t cols) {
    if constexpr (kOneUnit) return k + kUnit;
    return k + weight.group_size < cols ? k + weight.group_size : cols;
  }
  VITRINE_INLINE Tile known(Tile tile) {
    if constexpr (kPlain) {
      tile.scale_format = kScales;
      tile.offset_format = OffsetFormat::kNone;
    }
    return tile;
  }
};

/// `count` tiles with one token, whose sums stay in registers.
template <class Dot, class MatrixKind>
__attribute__((noinline)) void one_token_dots(const Weight& weight, int64_t first_tile,
                                              int32_t count, const TokenRows& tokens,
                                              StripDots& dots) {
  using Format = typename MatrixKind::Format;
  constexpr bool kSigned = Dot::template kSignedProducts<Format>;
  constexpr bool kOneUnit = MatrixKind::kOneUnit;
  const int64_t cols = padded_cols(weight.cols);
  for (int32_t i = 0; i < count; ++i) {
    const Tile tile = MatrixKind::tile(weight, first_tile + i);
    const uint8_t* unit = tile.data;
    const int8_t* x = tokens.values[0];
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t k = 0, g = 0; k < cols; ++g) {
      const int64_t end = MatrixKind::group_end(weight, k, cols);
      TokenUnit token;
      TokenUnit::load_group<Format>(token, tokens.scales[0] + g, tokens.sums[0] + g);
      GroupRows<Format> rows[2];
      __m256i isum[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        rows[half] = {Format::template group<kSigned>(tile, g, half), Format::has_minimum(tile)};
        if constexpr (!Format::kTwoScales) {
          isum[half] = GroupRows<Format>::begin(rows[half], token);
        }
      }
      do {
        TokenUnit::load_values(token, x);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const auto weights = unpack<Dot, Format>(unit, g, half, rows[half].group);
          fetch_ahead<Format>(unit, half);
          if constexpr (Format::kTwoScales) {
            acc[half] = add_two_scales<Dot, Format>(rows[half], weights, token, acc[half]);
            continue;
          }
          isum[half] = Dot::template add<Format>(weights, token.words, isum[half]);
        }
        k += kUnit;
        x += kUnit;
        unit += Format::kUnitBytes;
      } while (!kOneUnit && k < end);
      if constexpr (Format::kTwoScales) continue;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        acc[half] = GroupRows<Format>::end(rows[half], isum[half], token, acc[half]);
      }
    }
    dots.at[2 * i][0] = acc[0];
    dots.at[2 * i + 1][0] = acc[1];
  }
}

/// Dots with two to four tokens: a step's columns meet all of them before the next is unpacked.
template <class Dot, class MatrixKind, int32_t kTokens>
__attribute__((noinline)) void few_token_dots(const Weight& weight, int64_t first_tile,
                                              int32_t count, const TokenRows& tokens,
                                              StripDots& dots) {
  using Format = typename MatrixKind::Format;
  constexpr bool kSigned = Dot::template kSignedProducts<Format>;
  const int64_t cols = padded_cols(weight.cols);
  for (int32_t i = 0; i < count; ++i) {
    const Tile tile = MatrixKind::tile(weight, first_tile + i);
    const uint8_t* unit = tile.data;
    __m256 acc[2][kTokens];
    for (int half = 0; half < 2; ++half) {
      for (int32_t t = 0; t < kTokens; ++t) acc[half][t] = _mm256_setzero_ps();
    }
    for (int64_t k = 0, g = 0; k < cols; ++g) {
      const int64_t end = MatrixKind::group_end(weight, k, cols);
      GroupRows<Format> rows[2];
      typename Dot::Factors factors[2];
      typename Dot::Sums sums[2][kTokens];
      TokenUnit token;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        rows[half] = {Format::template group<kSigned>(tile, g, half), Format::has_minimum(tile)};
        factors[half] = Dot::template factors_of<Format>(rows[half].group);
      }
#pragma GCC unroll 4
      for (int32_t t = 0; t < kTokens; ++t) {
        token.sums = broadcast_word(tokens.sums[t] + g);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          sums[half][t] = {GroupRows<Format>::begin(rows[half], token), _mm256_setzero_si256()};
        }
      }
      do {
#pragma GCC unroll 4
        for (int s = 0; s < kSteps; ++s) {
          const typename Dot::template StepWeights<Format> weights[2] = {
              Dot::template unpack_step<Format>(unit, g, 0, s),
              Dot::template unpack_step<Format>(unit, g, 1, s)};
#pragma GCC unroll 4
          for (int32_t t = 0; t < kTokens; ++t) {
            const int8_t* x = tokens.values[t] + k + 8 * s;
            const __m256i first = broadcast_word(x);
            const __m256i second = broadcast_word(x + 4);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
              Dot::template add_step<Format>(sums[half][t], weights[half], factors[half], s, first,
                                             second);
            }
          }
        }
        k += kUnit;
        unit += Format::kUnitBytes;
      } while (!MatrixKind::kOneUnit && k < end);
#pragma GCC unroll 4
      for (int32_t t = 0; t < kTokens; ++t) {
        TokenUnit::load_group<Format>(token, tokens.scales[t] + g, tokens.sums[t] + g);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          acc[half][t] =
              GroupRows<Format>::end(rows[half], sums[half][t].whole, token, acc[half][t]);
        }
      }
    }
    for (int32_t t = 0; t < kTokens; ++t) {
      dots.at[2 * i][t] = acc[0][t];
      dots.at[2 * i + 1][t] = acc[1][t];
    }
  }
}

/// `count` tiles, at most kStripTiles, with a block of tokens.
template <class Dot, class MatrixKind>
__attribute__((noinline)) void block_dots(const Weight& weight, int64_t first_tile, int32_t count,
                                          const TokenRows& tokens, StripDots& dots) {
  using Format = typename MatrixKind::Format;
  constexpr bool kSigned = Dot::template kSignedProducts<Format>;
  const int32_t num_tokens = tokens.count;
  const int64_t cols = padded_cols(weight.cols);
  TokenUnit panel[kBlockTokens];
  __m256i isum[2 * kStripTiles][kBlockTokens];
  Tile tiles[kStripTiles];
  for (int32_t i = 0; i < count; ++i) tiles[i] = Format::tile(weight, first_tile + i);
  for (int32_t h = 0; h < 2 * count; ++h) {
    for (int32_t t = 0; t < num_tokens; ++t) dots.at[h][t] = _mm256_setzero_ps();
  }
  int64_t unit = 0;
  for (int64_t k = 0, g = 0; k < cols; ++g) {
    const int64_t begin = k;
    const int64_t end = MatrixKind::group_end(weight, k, cols);
    for (int32_t t = 0; t < num_tokens; ++t) {
      TokenUnit::load_group<Format>(panel[t], tokens.scales[t] + g, tokens.sums[t] + g);
    }
    do {
      for (int32_t t = 0; t < num_tokens; ++t) {
        TokenUnit::load_values(panel[t], tokens.values[t] + k);
      }
      for (int32_t h = 0; h < 2 * count; ++h) {
        const Tile tile = MatrixKind::known(tiles[h / 2]);
        const GroupRows<Format> rows{Format::template group<kSigned>(tile, g, h % 2),
                                     Format::has_minimum(tile)};
        const auto weights = unpack<Dot, Format>(tile.data + unit, g, h % 2, rows.group);
        const auto take_some = [&]<int32_t kTokens>(int32_t t, bool is_first, bool is_last)
            __attribute__((always_inline)) {
          typename Dot::Sums sums[kTokens];
#pragma GCC unroll 4
          for (int32_t i = 0; i < kTokens; ++i) {
            const __m256i before =
                is_first ? GroupRows<Format>::begin(rows, panel[t + i]) : isum[h][t + i];
            sums[i] = {before, _mm256_setzero_si256()};
          }
#pragma GCC unroll 4
          for (int s = 0; s < kSteps; ++s) {
#pragma GCC unroll 4
            for (int32_t i = 0; i < kTokens; ++i) {
              const __m256i* x = panel[t + i].words;
              Dot::template add_step<Format>(sums[i], weights.steps[s], weights.factors, s,
                                             x[2 * s], x[2 * s + 1]);
            }
          }
#pragma GCC unroll 4
          for (int32_t i = 0; i < kTokens; ++i) {
            if (is_last) {
              dots.at[h][t + i] =
                  GroupRows<Format>::end(rows, sums[i].whole, panel[t + i], dots.at[h][t + i]);
            } else {
              isum[h][t + i] = sums[i].whole;
            }
          }
        };
        const auto take = [&](bool is_first, bool is_last) __attribute__((always_inline)) {
          int32_t t = 0;
          constexpr int32_t kAtOnce = Dot::template kTokensAtOnce<Format>;
          if constexpr (kAtOnce > 1) {
            for (; t + kAtOnce <= num_tokens; t += kAtOnce) {
              take_some.template operator()<kAtOnce>(t, is_first, is_last);
            }
          }
#pragma GCC unroll 4
          for (; t < num_tokens; ++t) take_some.template operator()<1>(t, is_first, is_last);
        };
        if constexpr (Format::kTwoScales) {
          for (int32_t t = 0; t < num_tokens; ++t) {
            dots.at[h][t] = add_two_scales<Dot, Format>(rows, weights, panel[t], dots.at[h][t]);
          }
        } else if (MatrixKind::kOneUnit || end - begin == kUnit) {
          take(true, true);
        } else if (k == begin) {
          take(true, false);
        } else {
          take(false, k + kUnit == end);
        }
      }
      k += kUnit;
      unit += Format::kUnitBytes;
    } while (!MatrixKind::kOneUnit && k < end);
  }
}

using DotsFunction = void (*)(const Weight& weight, int64_t first_tile, int32_t count,
                              const TokenRows& tokens, StripDots& dots);

template <class Dot, class MatrixKind>
DotsFunction dots_of_kind(int32_t tokens) {
  if constexpr (MatrixKind::Format::kTwoScales) {
    return tokens == 1 ? one_token_dots<Dot, MatrixKind> : block_dots<Dot, MatrixKind>;
  }
  switch (tokens) {
    case 1: return one_token_dots<Dot, MatrixKind>;
    case 2: return few_token_dots<Dot, MatrixKind, 2>;
    case 3: return few_token_dots<Dot, MatrixKind, 3>;
    case 4: return few_token_dots<Dot, MatrixKind, 4>;
    default: return block_dots<Dot, MatrixKind>;
  }
}

template <class Dot, class Format>
DotsFunction dots_of(const Weight& weight, int32_t tokens) {
  using General = Kind<Format, false, ScaleFormat::kF32>;
  if constexpr (Format::kShortGroups) {
    return dots_of_kind<Dot, General>(tokens);
  } else {
    const bool is_plain = weight.group_size == kUnit && weight.offset_format == OffsetFormat::kNone;
    if (is_plain && weight.scale_format == ScaleFormat::kF16) {
      return dots_of_kind<Dot, Kind<Format, true, ScaleFormat::kF16>>(tokens);
    }
    if (is_plain && weight.scale_format == ScaleFormat::kBF16) {
      return dots_of_kind<Dot, Kind<Format, true, ScaleFormat::kBF16>>(tokens);
    }
    return tokens == 1 ? one_token_dots<Dot, General> : block_dots<Dot, General>;
  }
}

/// find_dots of formats that are multiplied as they stand.
template <class Dot>
DotsFunction find_block_dots(const Weight& weight, int32_t tokens) {
  DotsFunction found = nullptr;
  blocks::with_format(weight.block_format, [&]<class Blocks>() {
    found = dots_of<Dot, AsTheyAre<Blocks>>(weight, tokens);
  });
  return found;
}

template <class Dot>
DotsFunction find_dots(const Weight& weight, int32_t tokens) {
  switch (weight.format) {
    case WeightFormat::kInt8: return dots_of<Dot, Int8>(weight, tokens);
    case WeightFormat::kInt3: return dots_of<Dot, Int3>(weight, tokens);
    case WeightFormat::kQ2K: return dots_of<Dot, Q2K>(weight, tokens);
    case WeightFormat::kQ4K: return dots_of<Dot, Q4K>(weight, tokens);
    case WeightFormat::kQ6K: return dots_of<Dot, Q6K>(weight, tokens);
    case WeightFormat::kMxfp4: return dots_of<Dot, Mxfp4>(weight, tokens);
    case WeightFormat::kBlocks: return find_block_dots<Dot>(weight, tokens);
    default: return dots_of<Dot, Int4>(weight, tokens);
  }
}

/// A strip's rows row … row_end for a block of tokens, the first of which is row m of the input.
template <class Dot>
void strip_product(const Weight& weight, const Weight* up, int64_t row, int64_t row_end,
                   const TokenRows& tokens, int32_t m, const Target& target) {
  const int64_t first_tile = row / kTileRows;
  const auto tiles = static_cast<int32_t>((row_end - row + kTileRows - 1) / kTileRows);
  StripDots dots;
  find_dots<Dot>(weight, tokens.count)(weight, first_tile, tiles, tokens, dots);
  if (up != nullptr) {
    StripDots up_dots;
    find_dots<Dot>(*up, tokens.count)(*up, first_tile, tiles, tokens, up_dots);
    for (int32_t h = 0; h < 2 * tiles; ++h) {
      for (int32_t t = 0; t < tokens.count; ++t) {
        dots.at[h][t] = _mm256_mul_ps(silu_8(dots.at[h][t]), up_dots.at[h][t]);
      }
    }
  }
  for (int32_t t = 0; t < tokens.count; ++t) {
    for (int64_t first = row; first < row_end; first += 8) {
      store_dots(target, m + t, first, row_end - first, dots.at[(first - row) / 8][t]);
    }
  }
}

template <class Dot>
void quantized_product(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                       const Activations& input, const RowMap& rows, const Target& target) {
  constexpr int64_t kStripRows = kStripTiles * kTileRows;
  for (int64_t row = row_begin; row < row_end; row += kStripRows) {
    const int64_t end = row + kStripRows < row_end ? row + kStripRows : row_end;
    for (int32_t m = 0; m < rows.count; m += kBlockTokens) {
      TokenRows tokens;
      tokens.count = rows.count - m < kBlockTokens ? rows.count - m : kBlockTokens;
      for (int32_t t = 0; t < tokens.count; ++t) {
        const int64_t in_row = mapped(rows.in_rows, m + t);
        tokens.values[t] = input.quantized + in_row * input.quantized_stride;
        tokens.scales[t] = input.scales + in_row * input.group_stride;
        tokens.sums[t] = input.sums + in_row * input.group_stride;
      }
      strip_product<Dot>(weight, up, row, end, tokens, m, target);
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::avx2
