// SPDX-License-Identifier: Apache-2.0
// The packed layouts, one number at a time: what packing, single rows and the portable kernels
// share. Internal linkage: each file has its own copy.
#pragma once

#include "cpu_kernels.h"
#include "half.h"

namespace vitrine::kernels {

inline constexpr int kUnitCols = 32;
inline constexpr int kSuperCols = 256;      // of the formats with scales of scales
inline constexpr int kQ2KScaleBytes = 320;  // per tile and kSuperCols columns
inline constexpr int kQ4KScaleBytes = 256;
inline constexpr int kQ6KScaleBytes = 288;
inline constexpr int kInt3Run = 64;  // bytes: three bits of eight columns, and two more
inline constexpr int kMxfp4Bias = 12;
/// Twice the E2M1 values, by code.
inline constexpr int8_t kMxfp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

static inline int64_t tile_count(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

/// Columns of a float tile in memory.
static constexpr int64_t tiled_cols(int64_t cols) { return (cols + 1) / 2 * 2; }

/// Where an element of a `tiled` matrix lies, in elements.
static inline int64_t tiled_index(const Weight& weight, int64_t row, int64_t col) {
  const int64_t together = weight.format == WeightFormat::kBF16 ? 2 : 1;
  const int64_t tile = row / kTileRows * kTileRows * tiled_cols(weight.cols);
  return tile + (col / together * kTileRows + row % kTileRows) * together + col % together;
}

static constexpr int64_t unit_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8: return kUnitCols * kTileRows;
    case WeightFormat::kInt3: return kUnitCols * kTileRows * 3 / 8;
    case WeightFormat::kQ2K: return kUnitCols * kTileRows / 4;
    case WeightFormat::kQ6K: return kUnitCols * kTileRows * 6 / 8;
    default: return kUnitCols * kTileRows / 2;
  }
}

/// Says what the stored numbers of integers are too large by.
static constexpr int integer_bias(WeightFormat format) {
  return format == WeightFormat::kInt3 ? 4 : format == WeightFormat::kInt4 ? 8 : 128;
}

/// Four numbers of each row of a unit of kInt3, from the words of its three runs.
static inline uint32_t int3_four(uint32_t a, uint32_t b, uint32_t c, int four) {
  constexpr uint32_t kThree = 0x07070707u, kLow = 0x03030303u, kHigh = 0x04040404u;
  if (four == 6) return (a >> 6 & kLow) | (c >> 4 & kHigh);
  if (four == 7) return (b >> 6 & kLow) | (c >> 5 & kHigh);
  return (four < 2 ? a : four < 4 ? b : c) >> (3 * (four % 2)) & kThree;
}

/// Adds a number to a unit of kInt3 that holds zero there.
static inline void store_int3(uint8_t* unit, int r, int c, uint32_t number) {
  uint8_t* byte = unit + 4 * r + c % 4;
  const auto add = [byte](int run, uint32_t bits) {
    byte[kInt3Run * run] |= static_cast<uint8_t>(bits);
  };
  if (c < 24) return add(c / 8, number << (c % 8 < 4 ? 0 : 3));
  const int last = c >= 28 ? 1 : 0;
  add(last, (number & 3) << 6);
  add(2, number >> 2 << (6 + last));
}

/// Adds a number to a unit of integers that holds zero there.
static inline void store_number(WeightFormat format, uint8_t* unit, int r, int c, int number) {
  if (format == WeightFormat::kInt3) return store_int3(unit, r, c, static_cast<uint32_t>(number));
  if (format == WeightFormat::kInt8) {
    unit[64 * (c / 4) + 4 * r + c % 4] = static_cast<uint8_t>(number);
    return;
  }
  unit[64 * (c / 8) + 4 * r + c % 4] |= static_cast<uint8_t>((number & 15) << (c % 8 < 4 ? 0 : 4));
}

/// The numbers of row r of a unit in the order of their columns.
template <WeightFormat kFormat>
static inline void load_unit_row(const uint8_t* unit, int r, uint8_t* numbers) {
  const auto load = [unit, r](int i) {
    uint32_t word;
    memcpy(&word, unit + 64 * i + 4 * r, sizeof word);
    return word;
  };
  const auto store = [numbers](int i, uint32_t word) {
    memcpy(numbers + 4 * i, &word, sizeof word);
  };
  if constexpr (kFormat == WeightFormat::kInt8) {
    for (int i = 0; i < 8; ++i) store(i, load(i));
  } else if constexpr (kFormat == WeightFormat::kInt3) {
    const uint32_t a = load(0), b = load(1), c = load(2);
    for (int i = 0; i < 8; ++i) store(i, int3_four(a, b, c, i));
  } else if constexpr (kFormat == WeightFormat::kQ2K) {
    for (int i = 0; i < 8; ++i) store(i, load(i / 4) >> (2 * (i % 4)) & 0x03030303u);
  } else {
    for (int i = 0; i < 8; ++i) {
      uint32_t word = load(i / 2) >> (4 * (i % 2)) & 0x0f0f0f0fu;
      if constexpr (kFormat == WeightFormat::kQ6K) {
        word |= (load(4 + i / 4) >> (2 * (i % 4)) & 0x03030303u) << 4;
      }
      store(i, word);
    }
  }
}

/// Widens element i of a float-format array.
static inline float load_element(WeightFormat format, const void* data, int64_t i) {
  switch (format) {
    case WeightFormat::kF16: return widen_f16(static_cast<const uint16_t*>(data)[i]);
    case WeightFormat::kBF16: return widen_bf16(static_cast<const uint16_t*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

/// Rounds a value to element i of a float-format array.
static inline void store_element(WeightFormat format, void* data, int64_t i, float value) {
  switch (format) {
    case WeightFormat::kF16: static_cast<uint16_t*>(data)[i] = narrow_f16(value); break;
    case WeightFormat::kBF16: static_cast<uint16_t*>(data)[i] = narrow_bf16(value); break;
    default: static_cast<float*>(data)[i] = value;
  }
}

static inline float load_scale(ScaleFormat format, const void* scales, int64_t index) {
  switch (format) {
    case ScaleFormat::kF16: return widen_f16(static_cast<const uint16_t*>(scales)[index]);
    case ScaleFormat::kBF16: return widen_bf16(static_cast<const uint16_t*>(scales)[index]);
    default: return static_cast<const float*>(scales)[index];
  }
}

/// 2^(e-128).
static inline float half_of_e8m0(uint8_t e) {
  return float_from_bits(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

/// What the numbers of one row of a group mean: scale * part_scale[part] * (u - bias) +
/// minimum * part_minimum[part], where a part is half of the group.
struct GroupMeaning {
  float scale = 0.0f;
  int bias = 0;
  int part_scale[2] = {1, 1};
  bool has_minimum = false;
  float minimum = 0.0f;
  bool has_part_minimums = false;  // products of minimums are summed as integers
  int part_minimum[2] = {1, 1};
  bool has_two_scales = false;  // `scale` is the first part's, `minimum` the other's
};

/// What a number of that half of a group is multiplied with, the product rounded.
static inline float scale_of_part(const GroupMeaning& meaning, int64_t part) {
  if (meaning.has_two_scales && part == 1) return meaning.minimum;
  return meaning.scale * static_cast<float>(meaning.part_scale[part]);
}

/// 32 columns of a tile of kBlocks: signed numbers as [fours of columns][16 rows][4], and what they
/// mean in each row (their bias is taken off).
struct DecodedUnit {
  int8_t numbers[kUnitCols / 4][4 * kTileRows];
  GroupMeaning meanings[kTileRows];
};
void decode_unit(const Weight& weight, int64_t tile, int64_t unit, DecodedUnit* out);

static inline GroupMeaning q2k_meaning(const Weight& weight, int64_t tile, int64_t group, int r) {
  const int64_t block = (tile * (weight.cols / kSuperCols) + group / 8) * kQ2KScaleBytes;
  const uint8_t* scales = static_cast<const uint8_t*>(weight.scales) + block;
  const uint8_t* parts = scales + 64 + 32 * (group % 8) + r;
  uint16_t d[2];
  memcpy(&d[0], scales + 2 * r, 2);
  memcpy(&d[1], scales + 32 + 2 * r, 2);
  GroupMeaning meaning;
  meaning.scale = widen_f16(d[0]);
  meaning.minimum = widen_f16(d[1]);
  meaning.has_minimum = meaning.has_part_minimums = true;
  for (int part = 0; part < 2; ++part) {
    meaning.part_scale[part] = parts[16 * part] & 15;
    meaning.part_minimum[part] = -(parts[16 * part] >> 4);
  }
  return meaning;
}

static inline GroupMeaning q4k_meaning(const Weight& weight, int64_t tile, int64_t group, int r) {
  const int64_t block = (tile * (weight.cols / kSuperCols) + group / 8) * kQ4KScaleBytes;
  const uint8_t* scales = static_cast<const uint8_t*>(weight.scales) + block;
  const int g = static_cast<int>(group % 8);
  const uint8_t low = scales[64 + 16 * g + r];
  const int high = scales[192 + 16 * (g / 2) + r] >> (4 * (g % 2));
  uint16_t d[2];
  memcpy(&d[0], scales + 2 * r, 2);
  memcpy(&d[1], scales + 32 + 2 * r, 2);
  GroupMeaning meaning;
  meaning.scale = widen_f16(d[0]) * static_cast<float>((low & 15) | (high & 3) << 4);
  meaning.has_minimum = true;
  meaning.minimum = -(widen_f16(d[1]) * static_cast<float>((low >> 4) | (high >> 2 & 3) << 4));
  return meaning;
}

static inline GroupMeaning q6k_meaning(const Weight& weight, int64_t tile, int64_t group, int r) {
  const int64_t block = (tile * (weight.cols / kSuperCols) + group / 8) * kQ6KScaleBytes;
  const uint8_t* scales = static_cast<const uint8_t*>(weight.scales) + block;
  const auto* parts = reinterpret_cast<const int8_t*>(scales) + 32 + 32 * (group % 8) + r;
  uint16_t d;
  memcpy(&d, scales + 2 * r, 2);
  return {widen_f16(d), 32, {parts[0], parts[16]}};
}

static inline GroupMeaning group_meaning(const Weight& weight, int64_t tile, int64_t group,
                                         int64_t groups, int r) {
  const int64_t index = (tile * groups + group) * kTileRows + r;
  switch (weight.format) {
    case WeightFormat::kQ2K: return q2k_meaning(weight, tile, group, r);
    case WeightFormat::kQ4K: return q4k_meaning(weight, tile, group, r);
    case WeightFormat::kQ6K: return q6k_meaning(weight, tile, group, r);
    case WeightFormat::kMxfp4:
      return {half_of_e8m0(static_cast<const uint8_t*>(weight.scales)[index]), 0};
    default: break;
  }
  GroupMeaning meaning;
  meaning.scale = load_scale(weight.scale_format, weight.scales, index);
  meaning.bias = integer_bias(weight.format);
  switch (weight.offset_format) {
    case OffsetFormat::kNone: return meaning;
    case OffsetFormat::kZeroPoint:
      meaning.bias += static_cast<const int8_t*>(weight.offsets)[index];
      return meaning;
    default: break;
  }
  const ScaleFormat format = weight.offset_format == OffsetFormat::kF16    ? ScaleFormat::kF16
                             : weight.offset_format == OffsetFormat::kBF16 ? ScaleFormat::kBF16
                                                                           : ScaleFormat::kF32;
  meaning.bias = 0;
  meaning.has_minimum = true;
  meaning.minimum = load_scale(format, weight.offsets, index);
  return meaning;
}

/// The number before bias and scale: for E2M1 codes the value that they stand for.
static inline int decode_number(WeightFormat format, uint8_t number) {
  return format == WeightFormat::kMxfp4 ? kMxfp4Values[number] : number;
}

}  // namespace vitrine::kernels
