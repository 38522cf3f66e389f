// SPDX-License-Identifier: Apache-2.0
// Products of quantized matrices with rows of floats, of the portable table.
#include "../widened.h"
#include "portable.h"

namespace vitrine::kernels::portable {
namespace {

/// Writes each row as embed_row does.
void widen_rows(const Weight& weight, int64_t tile, float* floats) {
  const int64_t left = weight.rows - tile * kTileRows;
  const int64_t count = left < kTileRows ? left : kTileRows;
  float row[kMaxWidenedCols];
  for (int64_t r = 0; r < count; ++r) {
    embed_row(weight, tile * kTileRows + r, 1.0f, row);
    for (int64_t i = 0; i < weight.cols; ++i) floats[i * kTileRows + r] = row[i];
  }
}

/// Writes the rows of kBlocks likewise: a unit is decoded once for its 16 rows.
void widen_blocks(const Weight& weight, int64_t tile, float* floats) {
  DecodedUnit unit;
  for (int64_t col = 0; col < weight.cols; ++col) {
    const int64_t c = col % kUnitCols;
    if (c == 0) decode_unit(weight, tile, col / kUnitCols, &unit);
    for (int64_t r = 0; r < kTileRows; ++r) {
      const GroupMeaning& meaning = unit.meanings[r];
      const float scale = scale_of_part(meaning, c / (kUnitCols / 2));
      float value = scale * static_cast<float>(unit.numbers[c / 4][4 * r + c % 4]);
      if (meaning.has_minimum) value += meaning.minimum;
      floats[col * kTileRows + r] = value;
    }
  }
}

}  // namespace

void linear_widened(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  const auto widen = weight.format == WeightFormat::kBlocks ? widen_blocks : widen_rows;
  multiply_floats(
      weight, row_begin, row_end, input, rows, out, out_stride,
      [&](int64_t tile, float* floats) { widen(weight, tile, floats); }, linear);
}

}  // namespace vitrine::kernels::portable
