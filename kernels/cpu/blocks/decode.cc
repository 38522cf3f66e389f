// SPDX-License-Identifier: Apache-2.0
// Units of blocks as numbers and what they mean, in plain C++: for single rows, for the portable
// table, and for whoever brings them into another layout.
#include "../packed.h"
#include "../portable/block_lanes.h"
#include "list.h"

namespace vitrine::kernels {
namespace {

template <class Format>
void decode(const Weight& weight, int64_t tile, int64_t unit, DecodedUnit* out) {
  using Lanes = portable::BlockLanes;
  const uint8_t* data = blocks::units_of<Format>(weight, tile);
  for (int s = 0; s < kUnitCols / 8; ++s) {
    const auto eight = Format::template step<Lanes>(data + unit * Format::kUnitBytes, unit, s, 0);
    for (int i = 0; i < 4 * kTileRows; ++i) {
      out->numbers[2 * s][i] = static_cast<int8_t>(eight.low.at[i] - Format::kBias);
      out->numbers[2 * s + 1][i] = static_cast<int8_t>(eight.high.at[i] - Format::kBias);
    }
  }
  const auto meaning =
      Format::template group<Lanes>(data, blocks::scales_of<Format>(weight, tile), unit, 0);
  const float multiplier = Format::kTwoScales ? weight.multiplier : 1.0f;
  for (int r = 0; r < kTileRows; ++r) {
    out->meanings[r] = {.scale = meaning.scale.at[r] * multiplier,
                        .part_scale = {meaning.part[0].at[r], meaning.part[1].at[r]},
                        .has_minimum = Format::kHasMinimum,
                        .minimum = meaning.minimum.at[r] * multiplier,
                        .has_two_scales = Format::kTwoScales};
  }
}

}  // namespace

void decode_unit(const Weight& weight, int64_t tile, int64_t unit, DecodedUnit* out) {
  blocks::with_format(weight.block_format,
                      [&]<class Format>() { decode<Format>(weight, tile, unit, out); });
}

}  // namespace vitrine::kernels
