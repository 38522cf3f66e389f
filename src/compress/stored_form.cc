#include "stored_form.h"

#include <cstring>

namespace vitrine::compress {
namespace {

bool is_float(const QuantMethod& method) { return method.number_format == NumberFormat::kE4M3; }

/// Scales in the bytes of their dtype: every `step`-th, since floats repeat a row's for each group.
std::vector<std::byte> scale_bytes(const QuantizedMatrix& matrix, size_t step) {
  const size_t size = dtype_size(matrix.scale_dtype);
  std::vector<std::byte> bytes(matrix.scales.size() / step * size);
  for (size_t i = 0; i < matrix.scales.size() / step; ++i) {
    const float scale = matrix.scales[i * step];
    if (matrix.scale_dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * size, &scale, size);
    } else {
      const uint16_t bits =
          matrix.scale_dtype == DType::kF16 ? float_to_f16(scale) : float_to_bf16(scale);
      std::memcpy(bytes.data() + i * size, &bits, size);
    }
  }
  return bytes;
}

}  // namespace

int stored_group_size(const QuantMethod& method, int group_size) {
  return is_float(method) ? 0 : group_size;
}

const char* stored_format(const QuantMethod& method) {
  return is_float(method) ? "float-quantized" : "pack-quantized";
}

void declare_matrix(SafetensorsWriter& writer, const PlannedTensor& planned, int group_size) {
  const TensorInfo& source = *planned.source;
  const int64_t rows = source.shape[0];
  const int64_t cols = source.shape[1];
  if (is_float(*planned.method)) {
    writer.declare(planned.module + ".weight", DType::kF8E4M3, {rows, cols});
    writer.declare(planned.module + ".weight_scale", source.dtype, {rows, 1});
    return;
  }
  writer.declare(planned.module + ".weight_packed", DType::kI32,
                 {rows, packed_words(cols, planned.method->bits)});
  writer.declare(planned.module + ".weight_scale", source.dtype, {rows, cols / group_size});
  writer.declare(planned.module + ".weight_shape", DType::kI64, {2});
  if (planned.method->symmetric) return;
  writer.declare(planned.module + ".weight_zero_point", DType::kI32,
                 {packed_words(rows, planned.method->bits), cols / group_size});
}

void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                const QuantizedMatrix& rows) {
  if (is_float(*planned.method)) {
    writer.write(planned.module + ".weight", std::as_bytes(std::span(rows.values)));
    writer.write(planned.module + ".weight_scale",
                 scale_bytes(rows, static_cast<size_t>(rows.groups())));
    return;
  }
  const std::vector<int32_t> packed = pack_int32(rows.values, rows.rows, rows.cols, rows.bits);
  writer.write(planned.module + ".weight_packed", std::as_bytes(std::span(packed)));
  writer.write(planned.module + ".weight_scale", scale_bytes(rows, 1));
  if (planned.method->symmetric) return;
  const std::vector<int32_t> zero_points =
      pack_int32_rows(rows.zero_points, rows.rows, rows.groups(), rows.bits);
  writer.write(planned.module + ".weight_zero_point", std::as_bytes(std::span(zero_points)));
}

void write_shape(SafetensorsWriter& writer, const PlannedTensor& planned) {
  if (is_float(*planned.method)) return;
  const int64_t shape[2] = {planned.source->shape[0], planned.source->shape[1]};
  writer.write(planned.module + ".weight_shape", std::as_bytes(std::span(shape)));
}

uint64_t matrix_bytes(const PlannedTensor& planned, int group_size) {
  const auto rows = static_cast<uint64_t>(planned.source->shape[0]);
  const auto cols = static_cast<uint64_t>(planned.source->shape[1]);
  const uint64_t scale_size = dtype_size(planned.source->dtype);
  if (is_float(*planned.method)) return rows * cols + rows * scale_size;
  const uint64_t groups = cols / static_cast<uint64_t>(group_size);
  const int bits = planned.method->bits;
  const auto zero_point_words = static_cast<uint64_t>(
      planned.method->symmetric ? 0 : packed_words(planned.source->shape[0], bits));
  return rows * static_cast<uint64_t>(packed_words(planned.source->shape[1], bits)) * 4 +
         rows * groups * scale_size + zero_point_words * groups * 4 + 16;
}

}  // namespace vitrine::compress
