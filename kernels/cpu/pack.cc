// SPDX-License-Identifier: Apache-2.0
// Packing of quantized matrices; runs once at load, on any instruction set.
#include <cstring>

#include "blocks/list.h"
#include "packed.h"

namespace vitrine::kernels {
namespace {

void store_scale(ScaleFormat format, float scale, void* scales, int64_t index) {
  switch (format) {
    case ScaleFormat::kF32: static_cast<float*>(scales)[index] = scale; break;
    case ScaleFormat::kF16: static_cast<uint16_t*>(scales)[index] = narrow_f16(scale); break;
    case ScaleFormat::kBF16: static_cast<uint16_t*>(scales)[index] = narrow_bf16(scale); break;
  }
}

void store_offset(OffsetFormat format, float offset, void* offsets, int64_t index) {
  switch (format) {
    case OffsetFormat::kNone: break;
    case OffsetFormat::kZeroPoint:
      static_cast<int8_t*>(offsets)[index] = static_cast<int8_t>(offset);
      break;
    case OffsetFormat::kF32: store_scale(ScaleFormat::kF32, offset, offsets, index); break;
    case OffsetFormat::kF16: store_scale(ScaleFormat::kF16, offset, offsets, index); break;
    case OffsetFormat::kBF16: store_scale(ScaleFormat::kBF16, offset, offsets, index); break;
  }
}

/// One past the last tile that rows [.., row_end) touch.
int64_t tiles_end(int64_t rows, int64_t row_end) {
  return row_end == rows ? tile_count(rows) : row_end / kTileRows;
}

template <typename Element>
void tile_rows(const Weight& weight, Element* tiles) {
  const auto* rows = static_cast<const Element*>(weight.data);
  for (int64_t row = 0; row < weight.rows; ++row) {
    for (int64_t col = 0; col < weight.cols; ++col) {
      tiles[tiled_index(weight, row, col)] = rows[row * weight.cols + col];
    }
  }
}

}  // namespace

void tile_float_rows(const Weight& weight, void* tiles) {
  Weight tiled = weight;
  tiled.tiled = true;
  memset(tiles, 0, packed_bytes(tiled).data);
  if (weight.format == WeightFormat::kF32) {
    tile_rows(weight, static_cast<float*>(tiles));
  } else {
    tile_rows(weight, static_cast<uint16_t*>(tiles));
  }
}

size_t packed_data_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return static_cast<size_t>(tile_count(rows) * (padded_cols(cols) / kUnitCols) *
                             unit_bytes(format));
}

size_t packed_scale_bytes(ScaleFormat format, int64_t rows, int64_t cols, int32_t group_size) {
  const int64_t entries = tile_count(rows) * kTileRows * group_count(cols, group_size);
  return static_cast<size_t>(entries) * static_cast<size_t>(scale_size(format));
}

size_t packed_offset_bytes(OffsetFormat format, int64_t rows, int64_t cols, int32_t group_size) {
  const int64_t entries = tile_count(rows) * kTileRows * group_count(cols, group_size);
  switch (format) {
    case OffsetFormat::kNone: return 0;
    case OffsetFormat::kZeroPoint: return static_cast<size_t>(entries);
    case OffsetFormat::kF32: return static_cast<size_t>(entries) * 4;
    default: return static_cast<size_t>(entries) * 2;
  }
}

WeightBytes packed_bytes(const Weight& weight) {
  const int64_t rows = weight.tiled ? tile_count(weight.rows) * kTileRows : weight.rows;
  const int64_t cols = weight.tiled ? tiled_cols(weight.cols) : weight.cols;
  const size_t elements = static_cast<size_t>(rows) * static_cast<size_t>(cols);
  if (is_float_format(weight.format)) {
    const bool has_scales = weight.format == WeightFormat::kE4M3;
    const int64_t scales = has_scales ? weight.rows * group_count(weight.cols, kE4M3Group) : 0;
    return {elements * static_cast<size_t>(element_bytes(weight.format)),
            static_cast<size_t>(scales) * sizeof(float), 0};
  }
  if (weight.format == WeightFormat::kBlocks) {
    const blocks::Shape shape = blocks::find_shape(weight.block_format);
    const int64_t units = tile_count(weight.rows) * (weight.cols / kUnitCols);
    const int64_t block_rows = tile_count(weight.rows) * (weight.cols / shape.cols);
    return {static_cast<size_t>(units * shape.unit_bytes),
            static_cast<size_t>(block_rows * shape.scale_bytes), 0};
  }
  const size_t data = packed_data_bytes(weight.format, weight.rows, weight.cols);
  const size_t supers = static_cast<size_t>(tile_count(weight.rows) * (weight.cols / kSuperCols));
  switch (weight.format) {
    case WeightFormat::kQ2K: return {data, supers * kQ2KScaleBytes, 0};
    case WeightFormat::kQ4K: return {data, supers * kQ4KScaleBytes, 0};
    case WeightFormat::kQ6K: return {data, supers * kQ6KScaleBytes, 0};
    case WeightFormat::kMxfp4:
      return {data, packed_offset_bytes(OffsetFormat::kZeroPoint, weight.rows, weight.cols, 32), 0};
    default: break;
  }
  return {data,
          packed_scale_bytes(weight.scale_format, weight.rows, weight.cols, weight.group_size),
          packed_offset_bytes(weight.offset_format, weight.rows, weight.cols, weight.group_size)};
}

void pack_quantized(WeightFormat format, ScaleFormat scale_format, int32_t group_size, int64_t rows,
                    int64_t cols, int64_t row_begin, int64_t row_end, const int8_t* values,
                    const float* scales, void* data, void* packed_scales) {
  const int bias = integer_bias(format);
  const int64_t groups = group_count(cols, group_size);
  const int64_t bytes = unit_bytes(format);
  const int64_t tile_bytes = padded_cols(cols) / kUnitCols * bytes;
  for (int64_t tile = row_begin / kTileRows; tile < tiles_end(rows, row_end); ++tile) {
    auto* out = static_cast<uint8_t*>(data) + tile * tile_bytes;
    memset(out, 0, static_cast<size_t>(tile_bytes));
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t row = tile * kTileRows + r - row_begin;
      const bool valid = row_begin + row < row_end;
      for (int64_t g = 0; g < groups; ++g) {
        const float scale = valid ? scales[row * groups + g] : 0.0f;
        store_scale(scale_format, scale, packed_scales, (tile * groups + g) * kTileRows + r);
      }
      for (int64_t i = 0; i < padded_cols(cols); ++i) {
        const int value = valid && i < cols ? values[row * cols + i] : 0;
        store_number(format, out + i / kUnitCols * bytes, r, static_cast<int>(i % kUnitCols),
                     value + bias);
      }
    }
  }
}

void pack_offsets(OffsetFormat format, int32_t group_size, int64_t rows, int64_t cols,
                  int64_t row_begin, int64_t row_end, const float* offsets, void* packed) {
  if (format == OffsetFormat::kNone) return;
  const int64_t groups = group_count(cols, group_size);
  for (int64_t tile = row_begin / kTileRows; tile < tiles_end(rows, row_end); ++tile) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t row = tile * kTileRows + r;
        const float offset = row < row_end ? offsets[(row - row_begin) * groups + g] : 0.0f;
        store_offset(format, offset, packed, (tile * groups + g) * kTileRows + r);
      }
    }
  }
}

}  // namespace vitrine::kernels
