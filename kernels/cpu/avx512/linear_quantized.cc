// SPDX-License-Identifier: Apache-2.0
// Quantized matrix products of the AVX-512 table: tile by tile, in blocks of up to 8 input rows.
#include <algorithm>

#include "quantized.h"

namespace vitrine::kernels::avx512 {

const FormatKernels& find_format(const Weight& weight) {
  switch (weight.format) {
    case WeightFormat::kInt8: return int8_format();
    case WeightFormat::kInt3: return int3_format();
    case WeightFormat::kQ2K: return q2k_format();
    case WeightFormat::kQ4K: return q4k_format();
    case WeightFormat::kQ6K: return q6k_format();
    case WeightFormat::kMxfp4: return mxfp4_format();
    case WeightFormat::kBlocks: break;
    default: return int4_format();
  }
  for (const auto find : {find_numbers, find_books, find_rare}) {
    if (const FormatKernels* kernels = find(weight.block_format)) return *kernels;
  }
  __builtin_unreachable();
}

namespace {

bool same_storage(const Weight& a, const Weight& b) {
  return a.format == b.format && a.scale_format == b.scale_format &&
         a.offset_format == b.offset_format && a.block_format == b.block_format;
}

/// A block of input rows: `count` from m on, computed as `tokens` rows (the first is repeated where
/// one is missing).
struct TokenBlock {
  int32_t m = 0, count = 0, tokens = 0;
};

TokenRows rows_of(const TokenBlock& block, const Activations& input, const RowMap& rows) {
  TokenRows token_rows;
  for (int t = 0; t < block.tokens; ++t) {
    const int64_t in_row = mapped(rows.in_rows, t < block.count ? block.m + t : block.m);
    token_rows.values[t] = input.quantized + in_row * input.quantized_stride;
    token_rows.scales[t] = input.scales + in_row * input.group_stride;
    token_rows.sums[t] = input.sums + in_row * input.group_stride;
  }
  return token_rows;
}

/// A matrix, or a pair of them, with their kernels.
struct Matrices {
  const Weight& weight;
  const Weight* up;
  const FormatKernels& format = find_format(weight);
  const FormatKernels* up_format = up != nullptr ? &find_format(*up) : nullptr;
};

void one_tile(const Matrices& of, int64_t row, int64_t row_end, const TokenBlock& block,
              const TokenRows& tokens, const Target& target) {
  const auto& [weight, up, format, up_format] = of;
  const Weight* matrices[2] = {&weight, up};
  const int64_t tiles[2] = {row / kTileRows, row / kTileRows};
  __m512 dots[16];
  const int index = block_index(block.tokens);
  if (up == nullptr) {
    format.one_tile[index](matrices, tiles, tokens, dots);
  } else if (format.two_tiles[index] != nullptr && same_storage(weight, *up)) {
    format.two_tiles[index](matrices, tiles, tokens, dots);
  } else {
    format.one_tile[index](matrices, tiles, tokens, dots);
    up_format->one_tile[index](matrices + 1, tiles, tokens, dots + block.tokens);
  }
  const __mmask16 stored = first_lanes(row_end - row);
  for (int t = 0; t < block.count; ++t) {
    __m512 v = dots[t];
    if (up != nullptr) v = _mm512_mul_ps(silu_lanes(v), dots[block.tokens + t]);
    store_dots(target, block.m + t, row, stored, v);
  }
}

void two_tiles(DotsFunction make_dots, const Weight& weight, int64_t row, int64_t row_end,
               const TokenBlock& block, const TokenRows& tokens, const Target& target) {
  const Weight* matrices[2] = {&weight, &weight};
  const int64_t tiles[2] = {row / kTileRows, row / kTileRows + 1};
  __m512 dots[16];
  make_dots(matrices, tiles, tokens, dots);
  const __mmask16 stored = first_lanes(row_end - row - kTileRows);
  for (int t = 0; t < block.count; ++t) {
    store_dots(target, block.m + t, row, first_lanes(kTileRows), dots[t]);
    store_dots(target, block.m + t, row + kTileRows, stored, dots[block.tokens + t]);
  }
}

/// Blocks of input rows that meet each tile of weights, one after the other.
struct TokenBlocks {
  static constexpr int kMax = 16;
  int count = 0;
  TokenBlock blocks[kMax];
  TokenRows rows[kMax];

  /// The next ones, from input row `first` on; returns where they end.
  int32_t take(int32_t first, const Activations& input, const RowMap& map) {
    for (count = 0; count < kMax && first < map.count; ++count) {
      const int32_t left = map.count - first;
      const int32_t tokens = tokens_of(first, left);
      blocks[count] = {first, std::min(left, tokens), tokens};
      rows[count] = rows_of(blocks[count], input, map);
      first += blocks[count].count;
    }
    return first;
  }

  /// The first block of all fetches the weights, and one of at most 4 rows does so while it
  /// computes; those behind it find them in the cache. 5 and 6 are 3 and the rest.
  static int32_t tokens_of(int32_t first, int32_t left) {
    if (left == 5 || left == 6) return 3;
    if (first == 0) return std::min(left, 4);
    return left >= kFewRows ? 8 : left;
  }

  // From here on a block of 8 is worth it.
  static constexpr int32_t kFewRows = 7;
};

/// A tile of a block format, decoded for all input rows.
struct alignas(64) DecodedTile {
  static constexpr int64_t kMaxCols = 4096;
  int8_t numbers[kMaxCols * kTileRows];
  Group groups[kMaxCols / kUnit];
};

bool can_decode_once(const Weight& weight) {
  return weight.cols <= DecodedTile::kMaxCols && find_format(weight).decode != nullptr;
}

/// Dots of one tile with all blocks, [block][8].
void dots_of_all(const Weight& weight, int64_t tile, const TokenBlocks& all, DecodedTile* decoded,
                 __m512 (*dots)[8]) {
  const FormatKernels& format = find_format(weight);
  Weight whole = weight;
  const Weight* matrix = &weight;
  const DotsFunction* make_dots = format.one_tile;
  if (can_decode_once(weight)) {
    format.decode(weight, tile, decoded->numbers, decoded->groups);
    whole.data = decoded->numbers;
    whole.scales = decoded->groups;
    matrix = &whole;
    make_dots = format.decoded_tile;
  }
  for (int i = 0; i < all.count; ++i) {
    make_dots[block_index(all.blocks[i].tokens)](&matrix, &tile, all.rows[i], dots[i]);
  }
}

/// linear_quantized of block formats with many rows: each tile is decoded once for all of them.
__attribute__((noinline)) void linear_decoded(const Weight& weight, const Weight* up,
                                              int64_t row_begin, int64_t row_end,
                                              const Activations& input, const RowMap& rows,
                                              const Target& target) {
  DecodedTile decoded;
  TokenBlocks all;
  __m512 dots[TokenBlocks::kMax][8], up_dots[TokenBlocks::kMax][8];
  for (int32_t first = 0; first < rows.count;) {
    first = all.take(first, input, rows);
    for (int64_t row = row_begin; row < row_end; row += kTileRows) {
      const __mmask16 stored = first_lanes(row_end - row);
      dots_of_all(weight, row / kTileRows, all, &decoded, dots);
      if (up != nullptr) dots_of_all(*up, row / kTileRows, all, &decoded, up_dots);
      for (int i = 0; i < all.count; ++i) {
        for (int t = 0; t < all.blocks[i].count; ++t) {
          __m512 v = dots[i][t];
          if (up != nullptr) v = _mm512_mul_ps(silu_lanes(v), up_dots[i][t]);
          store_dots(target, all.blocks[i].m + t, row, stored, v);
        }
      }
    }
  }
}

}  // namespace

void linear_quantized(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                      const Activations& input, const RowMap& rows, const Target& target) {
  const bool has_many = rows.count >= TokenBlocks::kFewRows;
  if (has_many && (can_decode_once(weight) || (up != nullptr && can_decode_once(*up)))) {
    return linear_decoded(weight, up, row_begin, row_end, input, rows, target);
  }
  const Matrices matrices = {weight, up};
  const DotsFunction side_by_side = matrices.format.two_tiles[block_index(8)];
  const bool may_pair =
      up == nullptr && side_by_side != nullptr && rows.count >= 4 + TokenBlocks::kFewRows;
  TokenBlocks all;
  for (int32_t first = 0; first < rows.count;) {
    first = all.take(first, input, rows);
    for (int64_t row = row_begin; row < row_end;) {
      const bool is_pair = may_pair && row_end - row > kTileRows;
      for (int i = 0; i < all.count; ++i) {
        const TokenBlock& block = all.blocks[i];
        if (is_pair && block.tokens == 8) {
          two_tiles(side_by_side, weight, row, row_end, block, all.rows[i], target);
          continue;
        }
        one_tile(matrices, row, row_end, block, all.rows[i], target);
        if (is_pair) {
          one_tile(matrices, row + kTileRows, row_end, block, all.rows[i], target);
        }
      }
      row += is_pair ? 2 * kTileRows : kTileRows;
    }
  }
}

}  // namespace vitrine::kernels::avx512
