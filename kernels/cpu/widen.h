// SPDX-License-Identifier: Apache-2.0
// One row of a packed matrix as float32, in the vectors of whichever instruction set the including
// file is compiled for. Internal linkage: each file has its own copy.
#pragma once

#include "float8.h"
#include "packed.h"

namespace vitrine::kernels {

/// Row r of a row-major matrix: its numbers, and its scales behind them.
struct RowMajorRow {
  const int8_t* numbers;
  const float* scales;
};
static inline RowMajorRow row_of(const RowMajor& matrix, int64_t row) {
  const std::byte* data = matrix.data + row * matrix.stride;
  return {reinterpret_cast<const int8_t*>(data),
          reinterpret_cast<const float*>(data + padded_cols(matrix.cols))};
}

template <WeightFormat kFormat>
static void widen_packed_row_of(const Weight& weight, int64_t row, float multiplier, float* out) {
  const int64_t tile = row / kTileRows;
  const int r = static_cast<int>(row % kTileRows);
  const int64_t units = padded_cols(weight.cols) / kUnitCols;
  const int64_t groups = group_count(weight.cols, weight.group_size);
  const int64_t group_units = weight.group_size / kUnitCols;
  const auto* unit = static_cast<const uint8_t*>(weight.data) + tile * units * unit_bytes(kFormat);
  constexpr int kHalf = kUnitCols / 2;
  // Halves of a unit with scales of their own.
  constexpr bool kHasParts = kFormat == WeightFormat::kQ2K || kFormat == WeightFormat::kQ6K;
  constexpr int kUnitsAtOnce = kSuperCols / kUnitCols;
  GroupMeaning meaning;
  int64_t group = 0;
  int64_t of_group = 0;  // units that follow
  for (int64_t u = 0; u < units; u += kUnitsAtOnce) {
    // All are stored before the first is loaded: a load waits for smaller stores just before it.
    uint8_t numbers[kSuperCols];
    const int64_t count = units - u < kUnitsAtOnce ? units - u : kUnitsAtOnce;
    for (int64_t i = 0; i < count; ++i, unit += unit_bytes(kFormat)) {
      load_unit_row<kFormat>(unit, r, numbers + i * kUnitCols);
    }
    for (int64_t i = 0; i < 2 * count; ++i) {
      const int64_t col = (u * 2 + i) * kHalf;
      const int half = static_cast<int>(i % 2);
      if (half == 0 && of_group-- == 0) {
        meaning = group_meaning(weight, tile, group++, groups, r);
        of_group = group_units - 1;
      }
      float scale = meaning.scale;
      float minimum = meaning.minimum;
      if constexpr (kHasParts) {
        scale *= static_cast<float>(meaning.part_scale[half]);
        minimum *= static_cast<float>(meaning.part_minimum[half]);
      }
      float values[kHalf];
      for (int j = 0; j < kHalf; ++j) {
        const int number = decode_number(kFormat, numbers[i * kHalf + j]);
        values[j] = scale * static_cast<float>(number - meaning.bias);
      }
      if (meaning.has_minimum) {
        for (float& value : values) value += minimum;
      }
      for (float& value : values) value *= multiplier;
      const int64_t left = weight.cols - col;
      if (left >= kHalf) {
        memcpy(out + col, values, sizeof values);
      } else if (left > 0) {
        memcpy(out + col, values, static_cast<size_t>(left) * sizeof(float));
      }
    }
  }
}

/// widen_packed_row of kBlocks.
static void widen_block_row(const Weight& weight, int64_t row, float multiplier, float* out) {
  DecodedUnit unit;
  const int64_t r = row % kTileRows;
  for (int64_t col = 0; col < weight.cols; ++col) {
    const int64_t c = col % kUnitCols;
    if (c == 0) decode_unit(weight, row / kTileRows, col / kUnitCols, &unit);
    const GroupMeaning& meaning = unit.meanings[r];
    const float scale = scale_of_part(meaning, c / (kUnitCols / 2));
    float value = scale * static_cast<float>(unit.numbers[c / 4][4 * r + c % 4]);
    if (meaning.has_minimum) value += meaning.minimum;
    out[col] = value * multiplier;
  }
}

/// out[i] = weight[row][i] * multiplier: the product of number and scale rounded, then the sum with
/// a minimum, then the product.
static void widen_packed_row(const Weight& weight, int64_t row, float multiplier, float* out) {
  switch (weight.format) {
    case WeightFormat::kInt8:
      return widen_packed_row_of<WeightFormat::kInt8>(weight, row, multiplier, out);
    case WeightFormat::kInt3:
      return widen_packed_row_of<WeightFormat::kInt3>(weight, row, multiplier, out);
    case WeightFormat::kQ2K:
      return widen_packed_row_of<WeightFormat::kQ2K>(weight, row, multiplier, out);
    case WeightFormat::kQ4K:
      return widen_packed_row_of<WeightFormat::kQ4K>(weight, row, multiplier, out);
    case WeightFormat::kQ6K:
      return widen_packed_row_of<WeightFormat::kQ6K>(weight, row, multiplier, out);
    case WeightFormat::kMxfp4:
      return widen_packed_row_of<WeightFormat::kMxfp4>(weight, row, multiplier, out);
    case WeightFormat::kBlocks: return widen_block_row(weight, row, multiplier, out);
    default: return widen_packed_row_of<WeightFormat::kInt4>(weight, row, multiplier, out);
  }
}

/// A row of kE4M3: (number * scale) * multiplier, each product rounded.
static inline void widen_e4m3_row(const Weight& table, int64_t row, float multiplier, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(table.data) + row * table.cols;
  const float* scales =
      static_cast<const float*>(table.scales) + row * group_count(table.cols, kE4M3Group);
  for (int64_t i = 0; i < table.cols; ++i) {
    out[i] = widen_e4m3(bytes[i]) * scales[i / kE4M3Group] * multiplier;
  }
}

}  // namespace vitrine::kernels
