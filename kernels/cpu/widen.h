// One row of a packed matrix as float32, in the vectors of whichever instruction set the including
// file is compiled for. Internal linkage: each file has its own copy.
#pragma once

#include "packed.h"

namespace vitrine::kernels {

using UnitBytes = uint8_t __attribute__((vector_size(16)));
using UnitWords = uint32_t __attribute__((vector_size(16)));
using UnitInts = int32_t __attribute__((vector_size(64)));
using UnitFloats = float __attribute__((vector_size(64)));

/// Columns 16 * half … 16 * half + 15 of row r of a unit.
template <WeightFormat kFormat>
static inline void load_half_unit(const uint8_t* unit, int r, int half, UnitInts* numbers) {
  // Not by way of memory: a load waits for several smaller stores.
  const auto word = [unit, r](int i) {
    uint32_t value;
    memcpy(&value, unit + 64 * i + 4 * r, 4);
    return value;
  };
  UnitWords words;
  if constexpr (kFormat == WeightFormat::kInt8) {
    words = UnitWords{word(4 * half), word(4 * half + 1), word(4 * half + 2), word(4 * half + 3)};
  } else if constexpr (kFormat == WeightFormat::kQ2K) {
    const uint32_t all = word(half);
    words = UnitWords{all, all >> 2, all >> 4, all >> 6} & 0x03030303u;
  } else {
    const uint32_t first = word(2 * half), second = word(2 * half + 1);
    words = UnitWords{first, first >> 4, second, second >> 4} & 0x0f0f0f0fu;
  }
  if constexpr (kFormat == WeightFormat::kQ6K) {
    const uint32_t high = word(4 + half);
    words |= (UnitWords{high, high >> 2, high >> 4, high >> 6} & 0x03030303u) << 4;
  }
  const auto stored = reinterpret_cast<UnitBytes>(words);
  if constexpr (kFormat == WeightFormat::kMxfp4) {
    for (int i = 0; i < 16; ++i) (*numbers)[i] = kMxfp4Values[stored[i]];
  } else {
    *numbers = __builtin_convertvector(stored, UnitInts);
  }
}

template <WeightFormat kFormat>
static void widen_packed_row_of(const Weight& weight, int64_t row, float multiplier, float* out) {
  const int64_t tile = row / kTileRows;
  const int r = static_cast<int>(row % kTileRows);
  const auto* unit = static_cast<const uint8_t*>(weight.data) +
                     tile * (padded_cols(weight.cols) / kUnitCols) * unit_bytes(kFormat);
  const int64_t groups = group_count(weight.cols, weight.group_size);
  for (int64_t group = 0, col = 0; group < groups; ++group) {
    const GroupMeaning meaning = group_meaning(weight, tile, group, groups, r);
    const int64_t left = weight.cols - col;
    const int64_t end = col + (left < weight.group_size ? left : weight.group_size);
    for (int half = 0; col < end; col += 16, half ^= 1) {
      // Only 32 columns have halves with scales of their own.
      const float scale = meaning.scale * static_cast<float>(meaning.part_scale[half]);
      const float minimum = meaning.minimum * static_cast<float>(meaning.part_minimum[half]);
      UnitInts numbers;
      load_half_unit<kFormat>(unit, r, half, &numbers);
      UnitFloats values = scale * __builtin_convertvector(numbers - meaning.bias, UnitFloats);
      if (meaning.has_minimum) values += minimum;
      values *= multiplier;
      const int64_t count = end - col < 16 ? end - col : 16;
      if (count == 16) {
        memcpy(out + col, &values, sizeof(values));
      } else {
        memcpy(out + col, &values, static_cast<size_t>(count) * sizeof(float));
      }
      if (half == 1) unit += unit_bytes(kFormat);
    }
  }
}

/// out[i] = weight[row][i] * multiplier: the product of number and scale rounded, then the sum with
/// a minimum, then the product.
static void widen_packed_row(const Weight& weight, int64_t row, float multiplier, float* out) {
  switch (weight.format) {
    case WeightFormat::kInt8:
      return widen_packed_row_of<WeightFormat::kInt8>(weight, row, multiplier, out);
    case WeightFormat::kQ2K:
      return widen_packed_row_of<WeightFormat::kQ2K>(weight, row, multiplier, out);
    case WeightFormat::kQ4K:
      return widen_packed_row_of<WeightFormat::kQ4K>(weight, row, multiplier, out);
    case WeightFormat::kQ6K:
      return widen_packed_row_of<WeightFormat::kQ6K>(weight, row, multiplier, out);
    case WeightFormat::kMxfp4:
      return widen_packed_row_of<WeightFormat::kMxfp4>(weight, row, multiplier, out);
    default: return widen_packed_row_of<WeightFormat::kInt4>(weight, row, multiplier, out);
  }
}

}  // namespace vitrine::kernels
