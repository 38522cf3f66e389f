// SPDX-License-Identifier: Apache-2.0
// Rows of a packed matrix in one piece; made once at load, on any instruction set.
#include "packed.h"

namespace vitrine::kernels {
namespace {

constexpr int64_t kRowAlignment = 64;

/// Two scales a unit, where halves of it have their own.
bool has_parts(WeightFormat format) { return format == WeightFormat::kQ6K; }

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
        scales[group * parts + part] = meaning.scale * static_cast<float>(meaning.part_scale[part]);
      }
    }
  }
}

}  // namespace

RowMajor row_major(const Weight& weight) {
  RowMajor rows;
  const bool has_place =
      weight.format == WeightFormat::kInt8 || weight.format == WeightFormat::kInt4 ||
      weight.format == WeightFormat::kQ6K || weight.format == WeightFormat::kMxfp4;
  if (!has_place || weight.offset_format != OffsetFormat::kNone) return rows;
  rows.cols = weight.cols;
  rows.group_size = weight.group_size / (has_parts(weight.format) ? 2 : 1);
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
    case WeightFormat::kQ6K: return make_rows<WeightFormat::kQ6K>(weight, shape, data);
    case WeightFormat::kMxfp4: return make_rows<WeightFormat::kMxfp4>(weight, shape, data);
    default: return;
  }
}

}  // namespace vitrine::kernels
