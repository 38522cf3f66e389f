// One row of a packed matrix as float32, in the vectors of whichever instruction set the including
// file is compiled for. Internal linkage: each file has its own copy.
#pragma once

#include "packed.h"

namespace vitrine::kernels {

using UnitBytes = uint8_t __attribute__((vector_size(16)));
using UnitInts = int32_t __attribute__((vector_size(64)));
using UnitFloats = float __attribute__((vector_size(64)));

/// Columns 16 * half … 16 * half + 15 of row r of a unit.
template <WeightFormat kFormat>
static inline void load_half_unit(const uint8_t* unit, int r, int half, UnitInts* numbers) {
  uint32_t words[4];
  if constexpr (kFormat == WeightFormat::kInt8) {
    for (int i = 0; i < 4; ++i) memcpy(&words[i], unit + 64 * (4 * half + i) + 4 * r, 4);
  } else if constexpr (kFormat == WeightFormat::kQ2K) {
    uint32_t word;
    memcpy(&word, unit + 64 * half + 4 * r, 4);
    for (int i = 0; i < 4; ++i) words[i] = word >> (2 * i) & 0x03030303u;
  } else {
    for (int i = 0; i < 2; ++i) {
      uint32_t word;
      memcpy(&word, unit + 64 * (2 * half + i) + 4 * r, 4);
      words[2 * i] = word & 0x0f0f0f0fu;
      words[2 * i + 1] = word >> 4 & 0x0f0f0f0fu;
    }
  }
  if constexpr (kFormat == WeightFormat::kQ6K) {
    uint32_t high;
    memcpy(&high, unit + 256 + 64 * half + 4 * r, 4);
    for (int i = 0; i < 4; ++i) words[i] |= (high >> (2 * i) & 0x03030303u) << 4;
  }
  UnitBytes stored;
  memcpy(&stored, words, sizeof(stored));
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
  GroupMeaning meaning;
  for (int64_t col = 0; col < weight.cols; col += 16) {
    const int half = static_cast<int>(col % kUnitCols / 16);
    if (col % weight.group_size == 0) {
      meaning = group_meaning(weight, tile, col / weight.group_size, r);
    }
    // Only 32 columns have halves with scales of their own.
    const float scale = meaning.scale * static_cast<float>(meaning.part_scale[half]);
    const float minimum = meaning.minimum * static_cast<float>(meaning.part_minimum[half]);
    UnitInts numbers;
    load_half_unit<kFormat>(unit, r, half, &numbers);
    UnitFloats values = scale * __builtin_convertvector(numbers - meaning.bias, UnitFloats);
    if (meaning.has_minimum) values += minimum;
    values *= multiplier;
    if (weight.cols - col >= 16) {
      memcpy(out + col, &values, sizeof(values));
    } else {
      memcpy(out + col, &values, static_cast<size_t>(weight.cols - col) * sizeof(float));
    }
    if (half == 1) unit += unit_bytes(kFormat);
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
