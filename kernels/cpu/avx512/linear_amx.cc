// SPDX-License-Identifier: Apache-2.0
// Quantized matrix products of many input rows with AMX: 16 x 16 sums of 32 products at once.
//
// A tile of weights is unpacked once, to signed bytes, and multiplied with all input rows. Tile
// registers: rows of A are input rows, of B fours of columns as they lie in the packed layout, of C
// input rows with a sum for each of 16 weight rows. The sums are exact, as everywhere.
#include "../blocks/list.h"
#include "quantized.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int kBlock = 16;          // input rows of a tile register
constexpr int kMinRows = 9;         // fewer are left to vpdpbusd (measured)
constexpr int kMaxRows = 128;       // that meet a tile of weights once it is unpacked
constexpr int64_t kMaxCols = 4096;  // what the buffers hold; wider matrices go the other way
constexpr int64_t kGatherBytes = 128 << 10;  // of gathered input rows

/// The tile registers, by number (the intrinsics take literals): sums 0, 1, 6 and 7; input rows 2
/// and 4, weights 3 and 5 (neighbouring products use the one set and the other, so that they
/// overlap). A product is of 32 columns, or of 16 where a group's halves have sums of their own.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 32, 64, 32, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 8, 16, 8, 16, 16};
};

void configure_tiles(bool two_parts) {
  TileConfig config;
  if (two_parts) {
    config.row_bytes[2] = config.row_bytes[4] = 16;
    config.rows[3] = config.rows[5] = 4;
  }
  // g++ 12 takes the intrinsic to read eight bytes and may drop the stores to the others.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

/// One tile of weights, unpacked.
struct alignas(64) Unpacked {
  int8_t numbers[kMaxCols * kTileRows];
  Group groups[kMaxCols / kUnit];
};

/// What stands beside a group of 16 input rows, one after the other.
struct alignas(64) GroupRows {
  float scales[kBlock];
  float weighted[kBlock];
  int32_t words[kBlock];  // a GroupSum's sums, as they are multiplied with bias_words
};

/// 16 input rows: where their bytes lie, and what stands beside their groups.
struct Block {
  const int8_t* values;
  int64_t row_stride;
  int64_t unit_stride;
  const GroupRows* groups;
};

constexpr int kProducts = 4;                      // that are made before their sums are read
constexpr int kProductSums = kBlock * kTileRows;  // of one: [input row][weight row]
constexpr int kNumberBytes = kUnit * kTileRows;   // of a unit

/// Where the first product of a batch begins, and how far the next ones are.
struct Products {
  const int8_t* values;
  const int8_t* numbers;
  int64_t row_stride;   // of values
  int64_t unit_stride;  // of values
  int64_t value_step;   // of values: from group to group
  int64_t number_step;  // of numbers: from product to product
  int64_t units;        // of a product
  int64_t last_units;   // of the last one that is made
};

/// sums (a register) = product `index`.
#define VITRINE_PRODUCT(index, sums, input_rows, weights)                                          \
  {                                                                                                \
    const int8_t* values =                                                                         \
        products.values + (index) / kParts * products.value_step + (index) % kParts * (kUnit / 2); \
    const int8_t* numbers = products.numbers + (index)*products.number_step;                       \
    _tile_zero(sums);                                                                              \
    _tile_loadd(input_rows, values, products.row_stride);                                          \
    _tile_loadd(weights, numbers, 64);                                                             \
    _tile_dpbssd(sums, input_rows, weights);                                                       \
    if constexpr (kMoreUnits) {                                                                    \
      const int64_t units = (index) + 1 == count ? products.last_units : products.units;           \
      for (int64_t u = 1; u < units; ++u) {                                                        \
        _tile_loadd(input_rows, values + u * products.unit_stride, products.row_stride);           \
        _tile_loadd(weights, numbers + u * kNumberBytes, 64);                                      \
        _tile_dpbssd(sums, input_rows, weights);                                                   \
      }                                                                                            \
    }                                                                                              \
  }

/// Makes `count` products, 1 to 4. All come before the first store: a store between them waits.
template <int kParts, bool kMoreUnits>
VITRINE_INLINE void multiply(const Products& products, int64_t count, int32_t* sums) {
  if (count == kProducts) {
    VITRINE_PRODUCT(0, 0, 2, 3);
    VITRINE_PRODUCT(1, 1, 4, 5);
    VITRINE_PRODUCT(2, 6, 2, 3);
    VITRINE_PRODUCT(3, 7, 4, 5);
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kProductSums, 64);
    _tile_stored(6, sums + 2 * kProductSums, 64);
    _tile_stored(7, sums + 3 * kProductSums, 64);
    return;
  }
  VITRINE_PRODUCT(0, 0, 2, 3);
  _tile_stored(0, sums, 64);
  if (count > 1) {
    VITRINE_PRODUCT(1, 1, 4, 5);
    _tile_stored(1, sums + kProductSums, 64);
  }
  if (count > 2) {
    VITRINE_PRODUCT(2, 6, 2, 3);
    _tile_stored(6, sums + 2 * kProductSums, 64);
  }
}
#undef VITRINE_PRODUCT

/// Adds a group's sums, weighted, to the dots.
template <bool kTwoParts, bool kOffsets>
VITRINE_INLINE void add_group(const int32_t* sums, const Group& group, bool minimum,
                              const GroupRows& rows, __m512* acc) {
#pragma GCC unroll 16
  for (int t = 0; t < kBlock; ++t) {
    __m512i sum = _mm512_load_si512(sums + t * kTileRows);
    if constexpr (kTwoParts) {
      const __m512i second = _mm512_load_si512(sums + kProductSums + t * kTileRows);
      sum = _mm512_add_epi32(_mm512_mullo_epi32(sum, group.part_scale[0]),
                             _mm512_mullo_epi32(second, group.part_scale[1]));
    }
    if constexpr (kOffsets) {
      const __m512i words = _mm512_set1_epi32(rows.words[t]);
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(words, group.bias_words));
    }
    const __m512 scale = _mm512_mul_ps(group.scale, _mm512_set1_ps(rows.scales[t]));
    acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[t]);
  }
  if (!minimum) return;
  if constexpr (kTwoParts) {  // the halves have minimums of their own
#pragma GCC unroll 16
    for (int t = 0; t < kBlock; ++t) {
      const __m512i sum = _mm512_madd_epi16(_mm512_set1_epi32(rows.words[t]), group.bias_words);
      const __m512 scale = _mm512_mul_ps(group.minimum, _mm512_set1_ps(rows.scales[t]));
      acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[t]);
    }
  } else {
#pragma GCC unroll 16
    for (int t = 0; t < kBlock; ++t) {
      acc[t] = _mm512_fmadd_ps(group.minimum, _mm512_set1_ps(rows.weighted[t]), acc[t]);
    }
  }
}

/// dots[t]: of the tile with input row t of the block.
template <bool kTwoParts, bool kOffsets, bool kMoreUnits>
__attribute__((noinline)) void block_dots(const Weight& weight, const Unpacked& tile, bool minimum,
                                          const Block& block, __m512* dots) {
  constexpr int kParts = kTwoParts ? 2 : 1;
  constexpr int64_t kGroups = kProducts / kParts;
  const int64_t units = padded_cols(weight.cols) / kUnit;
  const int64_t group_units = kMoreUnits ? weight.group_size / kUnit : 1;
  const int64_t groups = group_count(weight.cols, weight.group_size);
  Products products{block.values,
                    tile.numbers,
                    block.row_stride,
                    block.unit_stride,
                    group_units * block.unit_stride,
                    group_units * kNumberBytes / kParts,
                    group_units,
                    group_units};
  __m512 acc[kBlock];
#pragma GCC unroll 16
  for (int t = 0; t < kBlock; ++t) acc[t] = _mm512_setzero_ps();
  alignas(64) int32_t sums[kProducts * kProductSums];
  for (int64_t begin = 0; begin < groups; begin += kGroups) {
    const int64_t count = groups - begin < kGroups ? groups - begin : kGroups;
    if (begin + count == groups) products.last_units = units - (groups - 1) * group_units;
    multiply<kParts, kMoreUnits>(products, count * kParts, sums);
    products.values += kGroups * group_units * block.unit_stride;
    products.numbers += kGroups * group_units * kNumberBytes;
    for (int64_t i = 0; i < count; ++i) {
      add_group<kTwoParts, kOffsets>(sums + i * kParts * kProductSums, tile.groups[begin + i],
                                     minimum, block.groups[begin + i], acc);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kBlock; ++t) dots[t] = acc[t];
}

/// The halves of a group have scales of their own.
bool has_two_parts(const Weight& weight) {
  return weight.format == WeightFormat::kQ2K || weight.format == WeightFormat::kQ6K ||
         blocks::shape_of(weight).has_two_parts;
}

void dots_of(const Weight& weight, const Unpacked& tile, const Block& block, __m512* dots) {
  const bool minimum = weight.format == WeightFormat::kQ2K || weight.format == WeightFormat::kQ4K ||
                       weight.offset_format > OffsetFormat::kZeroPoint ||
                       blocks::shape_of(weight).has_minimum;
  // Unsigned nibbles with a minimum are the same as signed bytes.
  const bool offsets =
      weight.offset_format == OffsetFormat::kZeroPoint ||
      (weight.offset_format != OffsetFormat::kNone && weight.format == WeightFormat::kInt8);
  const bool more_units = weight.group_size > kUnit;
  if (has_two_parts(weight)) {
    block_dots<true, false, false>(weight, tile, minimum, block, dots);
  } else if (offsets) {
    (more_units ? block_dots<false, true, true>
                : block_dots<false, true, false>)(weight, tile, minimum, block, dots);
  } else {
    (more_units ? block_dots<false, false, true>
                : block_dots<false, false, false>)(weight, tile, minimum, block, dots);
  }
}

/// Copies `count` input rows from m on as [unit][16 rows][32 columns]; rows that are missing stay
/// as they are, and nobody looks at their sums.
void gather(const Activations& input, const RowMap& rows, int32_t m, int count, int64_t units,
            int8_t* copy) {
  for (int t = 0; t < count; ++t) {
    const int8_t* row = input.quantized + mapped(rows.in_rows, m + t) * input.quantized_stride;
    for (int64_t u = 0; u < units; ++u) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + u * kUnit));
      _mm256_store_si256(reinterpret_cast<__m256i*>(copy + (u * kBlock + t) * kUnit), bytes);
    }
  }
}

Block make_block(const Activations& input, const RowMap& rows, int32_t m, int count, int64_t units,
                 int64_t groups, int8_t* copy, GroupRows* group_rows) {
  for (int t = 0; t < kBlock; ++t) {
    const int64_t row = mapped(rows.in_rows, t < count ? m + t : m);
    const float* scales = input.scales + row * input.group_stride;
    const GroupSum* sums = input.sums + row * input.group_stride;
    for (int64_t g = 0; g < groups; ++g) {
      group_rows[g].scales[t] = scales[g];
      group_rows[g].weighted[t] = sums[g].weighted;
      group_rows[g].words[t] = load_word(sums + g);
    }
  }
  if (rows.in_rows == nullptr && count == kBlock) {
    return {input.quantized + m * input.quantized_stride, input.quantized_stride, kUnit,
            group_rows};
  }
  gather(input, rows, m, count, units, copy);
  return {copy, kUnit, kUnit * kBlock, group_rows};
}

/// Rows [row_begin, row_end) for `count` input rows from m on.
__attribute__((noinline)) void multiply_rows(const Weight& weight, const Weight* up,
                                             int64_t row_begin, int64_t row_end,
                                             const Activations& input, const RowMap& rows,
                                             int32_t m, int32_t count, const Target& target) {
  alignas(64) int8_t copies[kGatherBytes];
  GroupRows group_rows[kMaxRows / kBlock * (kMaxCols / kUnit)];
  Unpacked unpacked;
  Block blocks[kMaxRows / kBlock];
  __m512 dots[kMaxRows];
  const int64_t units = padded_cols(weight.cols) / kUnit;
  const int64_t groups = group_count(weight.cols, weight.group_size);
  bool configured = has_two_parts(weight);
  configure_tiles(configured);
  for (int32_t first = 0; first < count; first += kBlock) {
    const int in_block = count - first < kBlock ? count - first : kBlock;
    int8_t* copy = copies + (rows.in_rows != nullptr ? first * units * kUnit : 0);
    blocks[first / kBlock] = make_block(input, rows, m + first, in_block, units, groups, copy,
                                        group_rows + first / kBlock * groups);
  }
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const __mmask16 stored = first_lanes(row_end - row);
    for (int i = 0; i < (up != nullptr ? 2 : 1); ++i) {
      const Weight& matrix = i == 0 ? weight : *up;
      const bool two_parts = has_two_parts(matrix);
      if (two_parts != configured) configure_tiles(configured = two_parts);
      find_format(matrix).unpack(matrix, row / kTileRows, unpacked.numbers, unpacked.groups);
      for (int32_t first = 0; first < count; first += kBlock) {
        __m512 v[kBlock];
        dots_of(matrix, unpacked, blocks[first / kBlock], v);
        for (int32_t t = 0; t < kBlock && first + t < count; ++t) {
          if (up == nullptr) {
            store_dots(target, m + first + t, row, stored, v[t]);
          } else if (i == 0) {
            dots[first + t] = silu_lanes(v[t]);
          } else {
            store_dots(target, m + first + t, row, stored, _mm512_mul_ps(dots[first + t], v[t]));
          }
        }
      }
    }
  }
}

/// The same arguments without the first `count` input rows.
RowMap from_row(const RowMap& rows, int32_t count) {
  return {rows.in_rows != nullptr ? rows.in_rows + count : nullptr,
          rows.out_rows != nullptr ? rows.out_rows + count : nullptr, rows.count - count};
}

Activations from_row(Activations input, const RowMap& rows, int32_t count) {
  if (rows.in_rows != nullptr) return input;
  input.quantized += count * input.quantized_stride;
  input.scales += count * input.group_stride;
  input.sums += count * input.group_stride;
  return input;
}

Target from_row(Target target, int32_t count) {
  if (target.out_rows != nullptr) {
    target.out_rows += count;
  } else {
    target.out += count * target.out_stride;
  }
  return target;
}

/// These go the other way: a product of tiles has integer scales for the halves of a group.
bool has_two_scales(const Weight& weight) { return blocks::shape_of(weight).has_two_scales; }

}  // namespace

void linear_quantized_amx(const Weight& weight, const Weight* up, int64_t row_begin,
                          int64_t row_end, const Activations& input, const RowMap& rows,
                          const Target& target) {
  const int64_t cols = padded_cols(weight.cols);
  if (has_two_scales(weight) || (up != nullptr && has_two_scales(*up)) || rows.count < kMinRows ||
      cols > kMaxCols || cols == 0) {
    linear_quantized(weight, up, row_begin, row_end, input, rows, target);
    return;
  }
  const int32_t rest = rows.count % kBlock;
  const int32_t count = rest < kMinRows ? rows.count - rest : rows.count;
  const int64_t fitting = kGatherBytes / cols / kBlock * kBlock;
  const int32_t at_once =
      rows.in_rows == nullptr || fitting > kMaxRows ? kMaxRows : static_cast<int32_t>(fitting);
  for (int32_t m = 0; m < count; m += at_once) {
    const int32_t left = count - m;
    multiply_rows(weight, up, row_begin, row_end, input, rows, m, left < at_once ? left : at_once,
                  target);
  }
  _tile_release();
  if (count < rows.count) {
    linear_quantized(weight, up, row_begin, row_end, from_row(input, rows, count),
                     from_row(rows, count), from_row(target, count));
  }
}

void linear_amx(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
                const RowMap& rows, const float* bias, const float* residual_scale, float* out,
                int64_t out_stride) {
  const Target target{rows.out_rows, bias, residual_scale, out, out_stride};
  const auto product = is_float_format(weight.format) ? linear_float : linear_quantized_amx;
  product(weight, nullptr, row_begin, row_end, input, rows, target);
}

void gate_up_amx(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
                 const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  const Target target{rows.out_rows, nullptr, nullptr, out, out_stride};
  const auto product = is_float_format(gate.format) ? linear_float : linear_quantized_amx;
  product(gate, &up, row_begin, row_end, input, rows, target);
}

}  // namespace vitrine::kernels::avx512
