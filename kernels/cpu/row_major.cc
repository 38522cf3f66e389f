// SPDX-License-Identifier: Apache-2.0
// Rows of a packed matrix in one piece; made once at load, on any instruction set.
#include "blocks/list.h"
#include "packed.h"

namespace vitrine::kernels {
namespace {

constexpr int64_t kRowAlignment = 64;

/// Two scales a unit, where halves of it have their own.
constexpr bool has_parts(WeightFormat format) { return format == WeightFormat::kQ6K; }
bool has_parts(const Weight& weight) {
  const blocks::Shape shape = blocks::shape_of(weight);
  return has_parts(weight.format) || shape.has_two_parts || shape.has_two_scales;
}

/// Formats with minimums, and of two bits, have none.
bool has_place(const Weight& weight) {
  switch (weight.format) {
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
    case WeightFormat::kInt3: return weight.offset_format == OffsetFormat::kNone;
    case WeightFormat::kQ6K:
    case WeightFormat::kMxfp4: return true;
    case WeightFormat::kBlocks: return !blocks::shape_of(weight).has_minimum;
    default: return false;
  }
}

template <WeightFormat kFormat>
void make_rows(const Weight& weight, const RowMajor& shape, std::byte* to) {
  const int64_t units = padded_cols(weight.cols) / kUnitCols;
  const int64_t groups = group_count(weight.cols, weight.group_size);
  const int parts = has_parts(kFormat) ? 2 : 1;
  const auto* tiles = static_cast<const uint8_t*>(weight.data);
  for (int64_t row = 0; row < weight.rows; ++row, to += shape.stride) {
    const int64_t tile = row / kTileRows;
    const int r = static_cast<int>(row % kTileRows);
    auto* numbers = reinterpret_cast<int8_t*>(to);
    auto* scales = reinterpret_cast<float*>(to + padded_cols(weight.cols));
    for (int64_t u = 0; u < units; ++u) {
      const int64_t group = u * kUnitCols / weight.group_size;
      const GroupMeaning meaning = group_meaning(weight, tile, group, groups, r);
      uint8_t stored[kUnitCols];
      load_unit_row<kFormat>(tiles + (tile * units + u) * unit_bytes(kFormat), r, stored);
      for (const uint8_t number : stored) {
        *numbers++ = static_cast<int8_t>(decode_number(kFormat, number) - meaning.bias);
      }
      for (int part = 0; part < parts; ++part) {
        scales[group * parts + part] = scale_of_part(meaning, part);
      }
    }
  }
}

/// make_rows of kBlocks.
void make_block_rows(const Weight& weight, const RowMajor& shape, std::byte* to) {
  const int64_t units = weight.cols / kUnitCols;
  const int parts = kUnitCols / shape.group_size;
  DecodedUnit decoded;
  for (int64_t tile = 0; tile < tile_count(weight.rows); ++tile) {
    for (int64_t u = 0; u < units; ++u) {
      decode_unit(weight, tile, u, &decoded);
      for (int64_t r = 0; r < kTileRows && tile * kTileRows + r < weight.rows; ++r) {
        std::byte* row = to + (tile * kTileRows + r) * shape.stride;
        auto* numbers = reinterpret_cast<int8_t*>(row) + u * kUnitCols;
        auto* scales = reinterpret_cast<float*>(row + weight.cols) + u * parts;
        const GroupMeaning& meaning = decoded.meanings[r];
        for (int c = 0; c < kUnitCols; ++c) numbers[c] = decoded.numbers[c / 4][4 * r + c % 4];
        for (int part = 0; part < parts; ++part) scales[part] = scale_of_part(meaning, part);
      }
    }
  }
}

}  // namespace

RowMajor row_major(const Weight& weight) {
  RowMajor rows;
  if (!has_place(weight)) return rows;
  rows.cols = weight.cols;
  rows.group_size = weight.group_size / (has_parts(weight) ? 2 : 1);
  const int64_t scales = group_count(padded_cols(weight.cols), rows.group_size);
  const int64_t bytes = padded_cols(weight.cols) + scales * static_cast<int64_t>(sizeof(float));
  rows.stride = (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  return rows;
}

void make_row_major(const Weight& weight, void* to) {
  const RowMajor shape = row_major(weight);
  auto* data = static_cast<std::byte*>(to);
  switch (weight.format) {
    case WeightFormat::kInt8: return make_rows<WeightFormat::kInt8>(weight, shape, data);
    case WeightFormat::kInt4: return make_rows<WeightFormat::kInt4>(weight, shape, data);
    case WeightFormat::kInt3: return make_rows<WeightFormat::kInt3>(weight, shape, data);
    case WeightFormat::kQ6K: return make_rows<WeightFormat::kQ6K>(weight, shape, data);
    case WeightFormat::kMxfp4: return make_rows<WeightFormat::kMxfp4>(weight, shape, data);
    case WeightFormat::kBlocks: return make_block_rows(weight, shape, data);
    default: return;
  }
}

}  // namespace vitrine::kernels
