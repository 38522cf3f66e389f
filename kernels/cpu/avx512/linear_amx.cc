// Quantized matrix products of many input rows with AMX: 16 x 16 sums of 32 products at once.
//
// A tile of weights is unpacked once, to signed bytes, and multiplied with all input rows. Tile
// registers: rows of A are input rows, of B fours of columns as they lie in the packed layout, of C
// input rows with a sum for each of 16 weight rows. The sums are exact, as everywhere.
#include "quantized.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int kBlock = 16;          // input rows of a tile register
constexpr int kMinRows = 12;        // fewer are left to vpdpbusd (measured)
constexpr int kMaxRows = 256;       // that meet a tile of weights once it is unpacked
constexpr int64_t kMaxCols = 4096;  // what the buffers hold; wider matrices go the other way
constexpr int64_t kGatherBytes = 128 << 10;  // of gathered input rows

/// The tile registers, by number (the intrinsics take literals): sums 0 and 1; input rows 2 and 4,
/// weights 3 and 5 (neighbouring groups use the one set and the other, so that they overlap); input
/// rows 6 and weights 7 of half a unit.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 32, 64, 32, 64, 16, 64};
  uint8_t rows[16] = {16, 16, 16, 8, 16, 8, 16, 4};
};

/// One tile of weights, unpacked.
struct alignas(64) Unpacked {
  int8_t numbers[kMaxCols * kTileRows];
  Group groups[kMaxCols / kUnit];
};

/// 16 input rows: where their bytes lie, and their scales and sums.
struct Block {
  const int8_t* values;
  int64_t row_stride;
  int64_t unit_stride;
  const float* scales[kBlock];
  const GroupSum* sums[kBlock];
};

struct alignas(64) Sums {
  int32_t parts[2][kBlock * kTileRows];
};

/// The sums of a group: `units` times 32 columns.
template <bool kTwoParts, bool kSecondSet>
VITRINE_INLINE void multiply(const int8_t* numbers, const int8_t* values, const Block& block,
                             int64_t units, Sums* sums) {
  constexpr int kNumberBytes = kUnit * kTileRows;
  const int64_t stride = block.row_stride;
  if constexpr (kTwoParts) {  // 16 columns each
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(6, values, stride);
    _tile_loadd(7, numbers, 64);
    _tile_dpbssd(0, 6, 7);
    _tile_loadd(6, values + 16, stride);
    _tile_loadd(7, numbers + kNumberBytes / 2, 64);
    _tile_dpbssd(1, 6, 7);
    _tile_stored(0, sums->parts[0], 64);
    _tile_stored(1, sums->parts[1], 64);
  } else if constexpr (kSecondSet) {
    _tile_zero(1);
    for (int64_t u = 0; u < units; ++u) {
      _tile_loadd(4, values + u * block.unit_stride, stride);
      _tile_loadd(5, numbers + u * kNumberBytes, 64);
      _tile_dpbssd(1, 4, 5);
    }
    _tile_stored(1, sums->parts[0], 64);
  } else {
    _tile_zero(0);
    for (int64_t u = 0; u < units; ++u) {
      _tile_loadd(2, values + u * block.unit_stride, stride);
      _tile_loadd(3, numbers + u * kNumberBytes, 64);
      _tile_dpbssd(0, 2, 3);
    }
    _tile_stored(0, sums->parts[0], 64);
  }
}

/// Adds a group's sums, weighted, to the dots.
template <bool kTwoParts, bool kOffsets>
VITRINE_INLINE void add_group(const Sums& sums, const Group& group, bool minimum, int64_t g,
                              const Block& block, __m512* acc) {
#pragma GCC unroll 16
  for (int t = 0; t < kBlock; ++t) {
    __m512i sum = _mm512_load_si512(sums.parts[0] + t * kTileRows);
    if constexpr (kTwoParts) {
      const __m512i second = _mm512_load_si512(sums.parts[1] + t * kTileRows);
      sum = _mm512_add_epi32(_mm512_mullo_epi32(sum, group.part_scale[0]),
                             _mm512_mullo_epi32(second, group.part_scale[1]));
    }
    if constexpr (kOffsets) {
      const __m512i offset = _mm512_madd_epi16(broadcast_word(block.sums[t] + g), group.bias_words);
      sum = _mm512_add_epi32(sum, offset);
    }
    const __m512 scale = _mm512_mul_ps(group.scale, _mm512_set1_ps(block.scales[t][g]));
    acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[t]);
  }
  if (minimum) {
#pragma GCC unroll 16
    for (int t = 0; t < kBlock; ++t) {
      acc[t] = _mm512_fmadd_ps(group.minimum, _mm512_set1_ps(block.sums[t][g].weighted), acc[t]);
    }
  }
}

/// dots[t]: of the tile with input row t of the block.
template <bool kTwoParts, bool kOffsets>
__attribute__((noinline)) void block_dots(const Weight& weight, const Unpacked& tile, bool minimum,
                                          const Block& block, __m512* dots) {
  const int64_t units = padded_cols(weight.cols) / kUnit;
  const int64_t group_units = weight.group_size / kUnit;
  const int64_t groups = group_count(weight.cols, weight.group_size);
  __m512 acc[kBlock];
#pragma GCC unroll 16
  for (int t = 0; t < kBlock; ++t) acc[t] = _mm512_setzero_ps();
  Sums sums[2];
  const auto multiply_group = [&](int64_t g) __attribute__((always_inline)) {
    const int64_t first = g * group_units;
    const int64_t count = units - first < group_units ? units - first : group_units;
    const int8_t* numbers = tile.numbers + first * kUnit * kTileRows;
    const int8_t* values = block.values + first * block.unit_stride;
    if (g % 2 == 0) {
      multiply<kTwoParts, false>(numbers, values, block, count, &sums[0]);
    } else {
      multiply<kTwoParts, true>(numbers, values, block, count, &sums[1]);
    }
  };
  multiply_group(0);
  for (int64_t g = 0; g < groups; ++g) {  // the next group's products run beside this one's sums
    if (g + 1 < groups) multiply_group(g + 1);
    add_group<kTwoParts, kOffsets>(sums[g % 2], tile.groups[g], minimum, g, block, acc);
  }
#pragma GCC unroll 16
  for (int t = 0; t < kBlock; ++t) dots[t] = acc[t];
}

void dots_of(const Weight& weight, const Unpacked& tile, const Block& block, __m512* dots) {
  const bool minimum =
      weight.format == WeightFormat::kQ4K || weight.offset_format > OffsetFormat::kZeroPoint;
  if (weight.format == WeightFormat::kQ6K) {
    block_dots<true, false>(weight, tile, minimum, block, dots);
  } else if (weight.offset_format != OffsetFormat::kNone) {
    block_dots<false, true>(weight, tile, minimum, block, dots);
  } else {
    block_dots<false, false>(weight, tile, minimum, block, dots);
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
                 int8_t* copy) {
  Block block;
  for (int t = 0; t < kBlock; ++t) {
    const int64_t row = mapped(rows.in_rows, t < count ? m + t : m);
    block.scales[t] = input.scales + row * input.group_stride;
    block.sums[t] = input.sums + row * input.group_stride;
  }
  if (rows.in_rows == nullptr && count == kBlock) {
    block.values = input.quantized + m * input.quantized_stride;
    block.row_stride = input.quantized_stride;
    block.unit_stride = kUnit;
  } else {
    gather(input, rows, m, count, units, copy);
    block.values = copy;
    block.row_stride = kUnit;
    block.unit_stride = kUnit * kBlock;
  }
  return block;
}

/// Rows [row_begin, row_end) for `count` input rows from m on.
__attribute__((noinline)) void multiply_rows(const Weight& weight, const Weight* up,
                                             int64_t row_begin, int64_t row_end,
                                             const Activations& input, const RowMap& rows,
                                             int32_t m, int32_t count, const Target& target) {
  alignas(64) int8_t copies[kGatherBytes];
  Unpacked unpacked;
  Block blocks[kMaxRows / kBlock];
  __m512 dots[kMaxRows];
  const int64_t units = padded_cols(weight.cols) / kUnit;
  for (int32_t first = 0; first < count; first += kBlock) {
    const int in_block = count - first < kBlock ? count - first : kBlock;
    int8_t* copy = copies + (rows.in_rows != nullptr ? first * units * kUnit : 0);
    blocks[first / kBlock] = make_block(input, rows, m + first, in_block, units, copy);
  }
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const __mmask16 stored = first_lanes(row_end - row);
    for (int i = 0; i < (up != nullptr ? 2 : 1); ++i) {
      const Weight& matrix = i == 0 ? weight : *up;
      find_format(matrix.format).unpack(matrix, row / kTileRows, unpacked.numbers, unpacked.groups);
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

}  // namespace

void linear_quantized_amx(const Weight& weight, const Weight* up, int64_t row_begin,
                          int64_t row_end, const Activations& input, const RowMap& rows,
                          const Target& target) {
  const int64_t cols = padded_cols(weight.cols);
  if (rows.count < kMinRows || cols > kMaxCols || cols == 0) {
    linear_quantized(weight, up, row_begin, row_end, input, rows, target);
    return;
  }
  const int32_t rest = rows.count % kBlock;
  const int32_t count = rest < kMinRows ? rows.count - rest : rows.count;
  const TileConfig config;
  _tile_loadconfig(&config);
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
