// SPDX-License-Identifier: Apache-2.0
// Matrix products of the portable table: float rows and packed quantized tiles.
#include <cstring>

#include "../packed.h"
#include "../widen.h"
#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {
namespace {

int64_t mapped(const int32_t* map, int64_t m) { return map != nullptr ? map[m] : m; }

/// Dots of one tile's rows [0, count) with one float input row.
void float_tile(const Weight& weight, int64_t row, int count, const float* x, float* dots) {
  for (int r = 0; r < count; ++r) {
    const int64_t base = (row + r) * weight.cols;
    Lanes lanes;
    for (int64_t i = 0; i < weight.cols; ++i) {
      const int64_t at = weight.tiled ? tiled_index(weight, row + r, i) : base + i;
      lanes.fma_at(i, load_element(weight.format, weight.data, at), x[i]);
    }
    dots[r] = lanes.sum();
  }
}

/// Dots with a tile of E4M3: each group's lanes by themselves, then all of them times its scale.
void e4m3_tile(const Weight& weight, int64_t row, int count, const float* x, float* dots) {
  const int64_t groups = group_count(weight.cols, kE4M3Group);
  for (int r = 0; r < count; ++r) {
    const auto* bytes = static_cast<const uint8_t*>(weight.data) + (row + r) * weight.cols;
    const float* scales = static_cast<const float*>(weight.scales) + (row + r) * groups;
    Lanes lanes;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * kE4M3Group;
      const int64_t end = begin + kE4M3Group < weight.cols ? begin + kE4M3Group : weight.cols;
      Lanes part;
      for (int64_t i = begin; i < end; ++i) part.fma_at(i, widen_e4m3(bytes[i]), x[i]);
      for (int j = 0; j < 16; ++j) lanes.fma_at(j, part.lane[j], scales[g]);
    }
    dots[r] = lanes.sum();
  }
}

constexpr int kMaxTokens = 8;         // input rows that share an unpacked unit
constexpr int kFour = 4 * kTileRows;  // numbers of four columns, as they lie: [16 rows][4]

/// The numbers of a unit of two bits as [fours of columns][16 rows][4].
void unpack_two_bits(const uint8_t* unit, int8_t* numbers) {
  for (int f = 0; f < kUnitCols / 4; ++f) {
    const uint8_t* run = unit + kFour * (f / 4);
    for (int i = 0; i < kFour; ++i) {
      numbers[kFour * f + i] = static_cast<int8_t>(run[i] >> (2 * (f % 4)) & 3);
    }
  }
}

/// The numbers of a unit of three bits as [fours of columns][16 rows][4].
void unpack_three_bits(const uint8_t* unit, int8_t* numbers) {
  for (int i = 0; i < kFour; ++i) {
    for (int f = 0; f < kUnitCols / 4; ++f) {
      const uint32_t four = int3_four(unit[i], unit[kInt3Run + i], unit[2 * kInt3Run + i], f);
      numbers[kFour * f + i] = static_cast<int8_t>(four);
    }
  }
}

/// The numbers of a unit of nibbles as [fours of columns][16 rows][4], decoded.
template <WeightFormat kFormat>
void unpack_as(const uint8_t* unit, int8_t* numbers) {
  for (int s = 0; s < kUnitCols / 8; ++s) {
    const uint8_t* run = unit + kFour * s;
    const uint8_t* high = unit + 256 + kFour * (s / 2);  // of kQ6K
    int8_t* out = numbers + 2 * kFour * s;
    for (int i = 0; i < kFour; ++i) {
      int first = run[i] & 15;
      int second = run[i] >> 4;
      if constexpr (kFormat == WeightFormat::kQ6K) {
        first |= (high[i] >> (4 * (s % 2)) & 3) << 4;
        second |= (high[i] >> (4 * (s % 2) + 2) & 3) << 4;
      }
      if constexpr (kFormat == WeightFormat::kMxfp4) {
        first = kMxfp4Values[first];
        second = kMxfp4Values[second];
      }
      out[i] = static_cast<int8_t>(first);
      out[kFour + i] = static_cast<int8_t>(second);
    }
  }
}

void unpack_unit(WeightFormat format, const uint8_t* unit, int8_t* numbers) {
  switch (format) {
    case WeightFormat::kQ2K: return unpack_two_bits(unit, numbers);
    case WeightFormat::kInt3: return unpack_three_bits(unit, numbers);
    case WeightFormat::kQ6K: return unpack_as<WeightFormat::kQ6K>(unit, numbers);
    case WeightFormat::kMxfp4: return unpack_as<WeightFormat::kMxfp4>(unit, numbers);
    default: return unpack_as<WeightFormat::kInt4>(unit, numbers);
  }
}

/// Adds half a unit, times the activations, to the sums of 16 rows.
template <typename Number>
void add_half(const Number* numbers, const int8_t* a, int32_t* sums) {
  for (int f = 0; f < kUnitCols / 8; ++f) {
    for (int r = 0; r < kTileRows; ++r) {
      for (int j = 0; j < 4; ++j) sums[r] += numbers[kFour * f + 4 * r + j] * a[4 * f + j];
    }
  }
}

/// Adds a unit to the sums of its halves.
template <typename Number>
void add_unit(const Number* numbers, const int8_t* a, int32_t (*parts)[kTileRows]) {
  add_half(numbers, a, parts[0]);
  add_half(numbers + kUnitCols / 2 * kTileRows, a + kUnitCols / 2, parts[1]);
}

/// One quantized input row.
struct QuantizedRow {
  const int8_t* values;
  const float* scales;
  const GroupSum* sums;
};

/// Dots of one packed tile with `count` quantized input rows.
void quantized_tile(const Weight& weight, int64_t tile, const QuantizedRow* rows, int count,
                    float (*dots)[kTileRows]) {
  const int64_t bytes = unit_bytes(weight.format);
  const int64_t units = padded_cols(weight.cols) / kUnitCols;
  const int64_t group_units = weight.group_size / kUnitCols;
  const int64_t groups = group_count(weight.cols, weight.group_size);
  const auto* packed = static_cast<const uint8_t*>(weight.data) + tile * units * bytes;
  for (int t = 0; t < count; ++t) {
    for (int r = 0; r < kTileRows; ++r) dots[t][r] = 0.0f;
  }
  DecodedUnit unit;
  for (int64_t g = 0; g < groups; ++g) {
    int32_t parts[kMaxTokens][2][kTileRows] = {};  // of the units' halves
    const int64_t end = (g + 1) * group_units < units ? (g + 1) * group_units : units;
    for (int64_t u = g * group_units; u < end; ++u) {
      if (weight.format == WeightFormat::kInt8) {
        for (int t = 0; t < count; ++t) {
          add_unit(packed + u * bytes, rows[t].values + u * kUnitCols, parts[t]);
        }
        continue;
      }
      if (weight.format == WeightFormat::kBlocks) {
        decode_unit(weight, tile, u, &unit);
      } else {
        unpack_unit(weight.format, packed + u * bytes, unit.numbers[0]);
      }
      for (int t = 0; t < count; ++t) {
        add_unit(unit.numbers[0], rows[t].values + u * kUnitCols, parts[t]);
      }
    }
    for (int r = 0; r < kTileRows; ++r) {
      const GroupMeaning meaning = weight.format == WeightFormat::kBlocks
                                       ? unit.meanings[r]
                                       : group_meaning(weight, tile, g, groups, r);
      for (int t = 0; t < count; ++t) {
        const GroupSum& sum = rows[t].sums[g];
        // Only a group of one unit has scales for its halves.
        const int32_t first = group_units == 1 ? sum.first_half : 0;
        const int32_t isum =
            meaning.part_scale[0] * (parts[t][0][r] - meaning.bias * first) +
            meaning.part_scale[1] * (parts[t][1][r] - meaning.bias * (sum.whole - first));
        if (meaning.has_two_scales) {
          const int32_t inputs[2] = {first, sum.whole - first};
          for (int part = 0; part < 2; ++part) {
            const int32_t dot = parts[t][part][r] - meaning.bias * inputs[part];
            const float scale = scale_of_part(meaning, part) * rows[t].scales[g];
            dots[t][r] = std::fma(static_cast<float>(dot), scale, dots[t][r]);
          }
          continue;
        }
        const float scale = meaning.scale * rows[t].scales[g];
        dots[t][r] = std::fma(static_cast<float>(isum), scale, dots[t][r]);
        if (meaning.has_part_minimums) {
          const int32_t msum =
              meaning.part_minimum[0] * first + meaning.part_minimum[1] * (sum.whole - first);
          const float minimum_scale = meaning.minimum * rows[t].scales[g];
          dots[t][r] = std::fma(static_cast<float>(msum), minimum_scale, dots[t][r]);
        } else if (meaning.has_minimum) {
          dots[t][r] = std::fma(meaning.minimum, sum.weighted, dots[t][r]);
        }
      }
    }
  }
}

/// Dots of a tile with input rows m … of the map.
void tile_dots(const Weight& weight, int64_t row, int row_count, const Activations& input,
               const RowMap& rows, int32_t m, int count, float (*dots)[kTileRows]) {
  QuantizedRow quantized[kMaxTokens];
  for (int t = 0; t < count; ++t) {
    const int64_t in_row = mapped(rows.in_rows, m + t);
    if (weight.format == WeightFormat::kE4M3) {
      e4m3_tile(weight, row, row_count, input.values + in_row * input.value_stride, dots[t]);
    } else if (is_float_format(weight.format)) {
      float_tile(weight, row, row_count, input.values + in_row * input.value_stride, dots[t]);
    } else {
      quantized[t] = {input.quantized + in_row * input.quantized_stride,
                      input.scales + in_row * input.group_stride,
                      input.sums + in_row * input.group_stride};
    }
  }
  if (is_float_format(weight.format)) return;
  quantized_tile(weight, row / kTileRows, quantized, count, dots);
}

int rows_in_tile(int64_t row, int64_t row_end) {
  return row_end - row < kTileRows ? static_cast<int>(row_end - row) : kTileRows;
}

}  // namespace

void linear(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
            const RowMap& rows, const float* bias, const float* residual_scale, float* out,
            int64_t out_stride) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const int count = rows_in_tile(row, row_end);
    for (int32_t m = 0; m < rows.count; m += kMaxTokens) {
      const int tokens = rows.count - m < kMaxTokens ? rows.count - m : kMaxTokens;
      float dots[kMaxTokens][kTileRows];
      tile_dots(weight, row, count, input, rows, m, tokens, dots);
      for (int t = 0; t < tokens; ++t) {
        float* target = out + mapped(rows.out_rows, m + t) * out_stride + row;
        for (int r = 0; r < count; ++r) {
          float value = dots[t][r];
          if (bias != nullptr) value = value + bias[row + r];
          if (residual_scale != nullptr) value = target[r] + *residual_scale * value;
          target[r] = value;
        }
      }
    }
  }
}

void gate_up(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
             const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const int count = rows_in_tile(row, row_end);
    for (int32_t m = 0; m < rows.count; m += kMaxTokens) {
      const int tokens = rows.count - m < kMaxTokens ? rows.count - m : kMaxTokens;
      float gate_dots[kMaxTokens][kTileRows];
      float up_dots[kMaxTokens][kTileRows];
      tile_dots(gate, row, count, input, rows, m, tokens, gate_dots);
      tile_dots(up, row, count, input, rows, m, tokens, up_dots);
      for (int t = 0; t < tokens; ++t) {
        float* target = out + mapped(rows.out_rows, m + t) * out_stride + row;
        for (int r = 0; r < count; ++r) target[r] = silu(gate_dots[t][r]) * up_dots[t][r];
      }
    }
  }
}

void embed_row(const Weight& table, int64_t row, float multiplier, float* out) {
  if (!is_float_format(table.format)) return widen_packed_row(table, row, multiplier, out);
  if (table.format == WeightFormat::kE4M3) return widen_e4m3_row(table, row, multiplier, out);
  const int64_t base = row * table.cols;
  for (int64_t i = 0; i < table.cols; ++i) {
    out[i] = load_element(table.format, table.data, base + i) * multiplier;
  }
}

void widen_row(const RowMajor& matrix, int64_t row, const float* factors, float* out) {
  const RowMajorRow of = row_of(matrix, row);
  for (int64_t i = 0; i < matrix.cols; ++i) {
    out[i] = of.scales[i / matrix.group_size] * static_cast<float>(of.numbers[i]) * factors[i];
  }
}

}  // namespace vitrine::kernels::portable
