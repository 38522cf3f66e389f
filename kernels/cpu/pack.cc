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

}  // namespace

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
