// Matrix products of the portable table: float rows and packed quantized tiles.
#include <cstring>

#include "../packed.h"
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

/// The numbers of a unit as [column][row], decoded.
template <WeightFormat kFormat>
void unpack_as(const uint8_t* unit, int16_t* numbers) {
  for (int c = 0; c < kUnitCols; ++c) {
    for (int r = 0; r < kTileRows; ++r) {
      numbers[c * kTileRows + r] =
          static_cast<int16_t>(decode_number(kFormat, load_number(kFormat, unit, r, c)));
    }
  }
}

void unpack_unit(WeightFormat format, const uint8_t* unit, int16_t* numbers) {
  switch (format) {
    case WeightFormat::kInt8: return unpack_as<WeightFormat::kInt8>(unit, numbers);
    case WeightFormat::kQ6K: return unpack_as<WeightFormat::kQ6K>(unit, numbers);
    case WeightFormat::kMxfp4: return unpack_as<WeightFormat::kMxfp4>(unit, numbers);
    default: return unpack_as<WeightFormat::kInt4>(unit, numbers);
  }
}

/// Adds columns [begin, end) of a unit, times the activations, to the sums of 16 rows.
void add_columns(const int16_t* numbers, const int8_t* a, int begin, int end, int32_t* sums) {
  for (int c = begin; c < end; ++c) {
    for (int r = 0; r < kTileRows; ++r) sums[r] += numbers[c * kTileRows + r] * a[c];
  }
}

/// Dots of one packed tile with one quantized input row.
void quantized_tile(const Weight& weight, int64_t tile, const Activations& input, int64_t in_row,
                    float* dots) {
  const int64_t bytes = unit_bytes(weight.format);
  const int64_t units = padded_cols(weight.cols) / kUnitCols;
  const int64_t group_units = weight.group_size / kUnitCols;
  const auto* packed = static_cast<const uint8_t*>(weight.data) + tile * units * bytes;
  const int8_t* a = input.quantized + in_row * input.quantized_stride;
  const float* scales = input.scales + in_row * input.group_stride;
  const GroupSum* sums = input.sums + in_row * input.group_stride;
  for (int r = 0; r < kTileRows; ++r) dots[r] = 0.0f;
  for (int64_t g = 0; g * group_units < units; ++g) {
    int32_t parts[2][kTileRows] = {};  // of the group's halves, where these have their own scales
    const int64_t end = (g + 1) * group_units < units ? (g + 1) * group_units : units;
    for (int64_t u = g * group_units; u < end; ++u) {
      int16_t numbers[kUnitCols * kTileRows];
      unpack_unit(weight.format, packed + u * bytes, numbers);
      const int split = group_units == 1 ? kUnitCols / 2 : kUnitCols;
      add_columns(numbers, a + u * kUnitCols, 0, split, parts[0]);
      add_columns(numbers, a + u * kUnitCols, split, kUnitCols, parts[1]);
    }
    for (int r = 0; r < kTileRows; ++r) {
      const GroupMeaning meaning = group_meaning(weight, tile, g, r);
      int32_t isum;
      if (group_units == 1) {
        const int32_t second_half = sums[g].whole - sums[g].first_half;
        isum = meaning.part_scale[0] * (parts[0][r] - meaning.bias * sums[g].first_half) +
               meaning.part_scale[1] * (parts[1][r] - meaning.bias * second_half);
      } else {
        isum = parts[0][r] - meaning.bias * sums[g].whole;
      }
      dots[r] = std::fma(static_cast<float>(isum), meaning.scale * scales[g], dots[r]);
      if (meaning.has_minimum) dots[r] = std::fma(meaning.minimum, sums[g].weighted, dots[r]);
    }
  }
}

void tile_dots(const Weight& weight, int64_t row, int count, const Activations& input,
               int64_t in_row, float* dots) {
  if (!is_float_format(weight.format)) {
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
