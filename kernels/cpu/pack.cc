// Packing of quantized matrices; runs once at load, on any instruction set.
#include <cstring>

#include "cpu_kernels.h"
#include "half.h"

namespace vitrine::kernels {
namespace {

int64_t tile_count(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

void store_scale(ScaleFormat format, float scale, void* scales, int64_t index) {
  switch (format) {
    case ScaleFormat::kF32: static_cast<float*>(scales)[index] = scale; break;
    case ScaleFormat::kF16: static_cast<uint16_t*>(scales)[index] = narrow_f16(scale); break;
    case ScaleFormat::kBF16: static_cast<uint16_t*>(scales)[index] = narrow_bf16(scale); break;
  }
}

float load_scale(ScaleFormat format, const void* scales, int64_t index) {
  switch (format) {
    case ScaleFormat::kF32: return static_cast<const float*>(scales)[index];
    case ScaleFormat::kF16: return widen_f16(static_cast<const uint16_t*>(scales)[index]);
    case ScaleFormat::kBF16: return widen_bf16(static_cast<const uint16_t*>(scales)[index]);
  }
  return 0;
}

/// Columns of one row of a packed matrix, four at a time from one run of a tile.
void widen_packed_row(const Weight& weight, int64_t row, float* out) {
  const bool is_int4 = weight.format == WeightFormat::kInt4;
  const int64_t run_cols = is_int4 ? 8 : 4;
  const int64_t tile = row / kTileRows;
  const int64_t r = row % kTileRows;
  const int64_t groups = weight.cols / weight.group_size;
  const auto* data = static_cast<const uint8_t*>(weight.data) +
                     tile * kTileRows * weight.cols / (is_int4 ? 2 : 1) + 4 * r;
  const int64_t group_runs = weight.group_size / run_cols;
  for (int64_t group = 0; group < groups; ++group) {
    const float scale =
        load_scale(weight.scale_format, weight.scales, (tile * groups + group) * kTileRows + r);
    for (int64_t run = 0; run < group_runs; ++run, data += 64, out += run_cols) {
      for (int j = 0; j < 4; ++j) {
        if (is_int4) {
          out[j] = static_cast<float>((data[j] & 15) - 8) * scale;
          out[4 + j] = static_cast<float>((data[j] >> 4) - 8) * scale;
        } else {
          out[j] = static_cast<float>(data[j] - 128) * scale;
        }
      }
    }
  }
}

}  // namespace

void widen_row(const Weight& weight, int64_t row, float* out) {
  const int64_t first = row * weight.cols;
  switch (weight.format) {
    case WeightFormat::kF32:
      memcpy(out, static_cast<const float*>(weight.data) + first,
             static_cast<size_t>(weight.cols) * sizeof(float));
      return;
    case WeightFormat::kF16:
      for (int64_t i = 0; i < weight.cols; ++i) {
        out[i] = widen_f16(static_cast<const uint16_t*>(weight.data)[first + i]);
      }
      return;
    case WeightFormat::kBF16:
      for (int64_t i = 0; i < weight.cols; ++i) {
        out[i] = widen_bf16(static_cast<const uint16_t*>(weight.data)[first + i]);
      }
      return;
    case WeightFormat::kInt8:
    case WeightFormat::kInt4: widen_packed_row(weight, row, out); return;
  }
}

size_t packed_data_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  const size_t elements = static_cast<size_t>(tile_count(rows)) * kTileRows * cols;
  return format == WeightFormat::kInt4 ? elements / 2 : elements;
}

size_t packed_scale_bytes(ScaleFormat format, int64_t rows, int64_t cols, int32_t group_size) {
  const size_t entries = static_cast<size_t>(tile_count(rows)) * kTileRows * (cols / group_size);
  return entries * (format == ScaleFormat::kF32 ? 4 : 2);
}

void pack_quantized(WeightFormat format, ScaleFormat scale_format, int32_t group_size, int64_t rows,
                    int64_t cols, int64_t row_begin, int64_t row_end, const int8_t* values,
                    const float* scales, void* data, void* packed_scales) {
  const bool is_int4 = format == WeightFormat::kInt4;
  const int64_t groups = cols / group_size;
  const int64_t tile_bytes = kTileRows * cols / (is_int4 ? 2 : 1);
  const int64_t last_tile = row_end == rows ? tile_count(rows) : row_end / kTileRows;
  for (int64_t tile = row_begin / kTileRows; tile < last_tile; ++tile) {
    auto* out = static_cast<uint8_t*>(data) + tile * tile_bytes;
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t row = tile * kTileRows + r;
      const bool valid = row < row_end;
      const int8_t* source = valid ? values + (row - row_begin) * cols : nullptr;
      for (int64_t g = 0; g < groups; ++g) {
        const float scale = valid ? scales[(row - row_begin) * groups + g] : 0.0f;
        store_scale(scale_format, scale, packed_scales, (tile * groups + g) * kTileRows + r);
      }
      if (is_int4) {
        for (int64_t k = 0; k < cols; k += 8) {
          for (int j = 0; j < 4; ++j) {
            const int low = (valid ? source[k + j] : 0) + 8;
            const int high = (valid ? source[k + 4 + j] : 0) + 8;
            out[k / 8 * 64 + 4 * r + j] = static_cast<uint8_t>((low & 15) | (high << 4));
          }
        }
      } else {
        for (int64_t k = 0; k < cols; ++k) {
          const int value = (valid ? source[k] : 0) + 128;
          out[k / 4 * 64 + 4 * r + k % 4] = static_cast<uint8_t>(value);
        }
      }
    }
  }
}

}  // namespace vitrine::kernels
