// SPDX-License-Identifier: Apache-2.0
// Parts that linear_widened of every table shares. Internal linkage: each file has its own copy.
#pragma once

#include "blocks/list.h"
#include "packed.h"
#include "widened_products.h"

namespace vitrine::kernels {
namespace {

/// What the groups of a matrix have, beside scale and bias.
struct GroupParts {
  bool has_parts = false;  // halves have a scale each, and numbers no further bias
  bool has_minimum = false;
};

inline GroupParts parts_of(const Weight& weight) {
  const blocks::Shape shape = blocks::shape_of(weight);
  return {weight.format == WeightFormat::kQ6K || shape.has_two_parts || shape.has_two_scales,
          weight.format == WeightFormat::kQ4K || shape.has_minimum ||
              weight.offset_format > OffsetFormat::kZeroPoint};
}

/// More input rows than this make it worth while to write a tile as floats first.
constexpr int32_t kFewWidenedRows = 3;

/// linear_widened of many input rows, a tile at a time as floats: widen(tile, floats) writes it as
/// kF32 that is `tiled`, linear multiplies with such.
template <class Widen, class Linear>
inline void multiply_floats(const Weight& weight, int64_t row_begin, int64_t row_end,
                            const Activations& input, const RowMap& rows, float* out,
                            int64_t out_stride, const Widen& widen, const Linear& linear) {
  alignas(64) float values[kMaxWidenedCols * kTileRows];
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    Weight floats;
    floats.tiled = true;
    floats.rows = row + kTileRows < row_end ? kTileRows : row_end - row;
    floats.cols = weight.cols;
    floats.data = values;
    widen(row / kTileRows, values);
    linear(floats, 0, floats.rows, input, rows, nullptr, nullptr, out + row, out_stride);
  }
}

}  // namespace
}  // namespace vitrine::kernels
