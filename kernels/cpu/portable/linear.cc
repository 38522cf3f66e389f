// Matrix products of the portable table: float rows and packed int8 / int4 tiles.
#include <cstring>

#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {
namespace {

int64_t mapped(const int32_t* map, int64_t m) { return map != nullptr ? map[m] : m; }

/// Widens element i of a float-format array.
float load_element(WeightFormat format, const void* data, int64_t i) {
  switch (format) {
    case WeightFormat::kF16: return widen_f16(static_cast<const uint16_t*>(data)[i]);
    case WeightFormat::kBF16: return widen_bf16(static_cast<const uint16_t*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

float load_scale(ScaleFormat format, const void* data, int64_t i) {
  switch (format) {
    case ScaleFormat::kF16: return widen_f16(static_cast<const uint16_t*>(data)[i]);
    case ScaleFormat::kBF16: return widen_bf16(static_cast<const uint16_t*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

/// Dots of one tile's rows [0, count) with one float input row.
void float_tile(const Weight& weight, int64_t row, int count, const float* x, float* dots) {
  for (int r = 0; r < count; ++r) {
    const int64_t base = (row + r) * weight.cols;
    Lanes lanes;
    for (int64_t i = 0; i < weight.cols; ++i) {
      lanes.fma_at(i, load_element(weight.format, weight.data, base + i), x[i]);
    }
    dots[r] = lanes.sum();
  }
}

/// Integer dots of 16 packed rows with the `size` activations of one group, offset included.
void int8_group(const uint8_t* packed, const int8_t* a, int32_t size, int32_t* isum) {
  for (int32_t c = 0; c < size / 4; ++c) {
    for (int r = 0; r < kTileRows; ++r) {
      for (int j = 0; j < 4; ++j) isum[r] += packed[64 * c + 4 * r + j] * a[4 * c + j];
    }
  }
}

void int4_group(const uint8_t* packed, const int8_t* a, int32_t size, int32_t* isum) {
  for (int32_t c = 0; c < size / 8; ++c) {
    for (int r = 0; r < kTileRows; ++r) {
      for (int j = 0; j < 4; ++j) {
        const uint8_t byte = packed[64 * c + 4 * r + j];
        isum[r] += (byte & 15) * a[8 * c + j] + (byte >> 4) * a[8 * c + 4 + j];
      }
    }
  }
}

/// Dots of one packed tile with one quantized input row.
void quantized_tile(const Weight& weight, int64_t tile, const Activations& input, int64_t in_row,
                    float* dots) {
  const bool is_int4 = weight.format == WeightFormat::kInt4;
  const int32_t size = weight.group_size;
  const int64_t groups = weight.cols / size;
  const int64_t group_bytes = static_cast<int64_t>(kTileRows) * size / (is_int4 ? 2 : 1);
  const auto* packed = static_cast<const uint8_t*>(weight.data) + tile * groups * group_bytes;
  const int8_t* a = input.quantized + in_row * input.quantized_stride;
  const float* scales = input.scales + in_row * input.group_stride;
  const int32_t* sums = input.sums + in_row * input.group_stride;
  for (int r = 0; r < kTileRows; ++r) dots[r] = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    int32_t isum[kTileRows];
    for (int32_t& value : isum) value = (is_int4 ? -8 : -128) * sums[g];
    if (is_int4) {
      int4_group(packed + g * group_bytes, a + g * size, size, isum);
    } else {
      int8_group(packed + g * group_bytes, a + g * size, size, isum);
    }
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t index = (tile * groups + g) * kTileRows + r;
      const float scale = load_scale(weight.scale_format, weight.scales, index) * scales[g];
      dots[r] = std::fma(static_cast<float>(isum[r]), scale, dots[r]);
    }
  }
}

void tile_dots(const Weight& weight, int64_t row, int count, const Activations& input,
               int64_t in_row, float* dots) {
  if (weight.format == WeightFormat::kInt8 || weight.format == WeightFormat::kInt4) {
    quantized_tile(weight, row / kTileRows, input, in_row, dots);
  } else {
    float_tile(weight, row, count, input.values + in_row * input.value_stride, dots);
  }
}

int rows_in_tile(int64_t row, int64_t row_end) {
  return row_end - row < kTileRows ? static_cast<int>(row_end - row) : kTileRows;
}

}  // namespace

void linear(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
            const RowMap& rows, const float* bias, const float* residual_scale, float* out,
            int64_t out_stride) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const int count = rows_in_tile(row, row_end);
    for (int32_t m = 0; m < rows.count; ++m) {
      float dots[kTileRows];
      tile_dots(weight, row, count, input, mapped(rows.in_rows, m), dots);
      float* target = out + mapped(rows.out_rows, m) * out_stride + row;
      for (int r = 0; r < count; ++r) {
        float value = dots[r];
        if (bias != nullptr) value = value + bias[row + r];
        if (residual_scale != nullptr) value = target[r] + *residual_scale * value;
        target[r] = value;
      }
    }
  }
}

void gate_up(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
             const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    const int count = rows_in_tile(row, row_end);
    for (int32_t m = 0; m < rows.count; ++m) {
      float gate_dots[kTileRows];
      float up_dots[kTileRows];
      tile_dots(gate, row, count, input, mapped(rows.in_rows, m), gate_dots);
      tile_dots(up, row, count, input, mapped(rows.in_rows, m), up_dots);
      float* target = out + mapped(rows.out_rows, m) * out_stride + row;
      for (int r = 0; r < count; ++r) target[r] = silu(gate_dots[r]) * up_dots[r];
    }
  }
}

void embed_row(const Weight& table, int64_t row, float multiplier, float* out) {
  const int64_t base = row * table.cols;
  for (int64_t i = 0; i < table.cols; ++i) {
    out[i] = load_element(table.format, table.data, base + i) * multiplier;
  }
}

}  // namespace vitrine::kernels::portable
