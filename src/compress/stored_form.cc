// SPDX-License-Identifier: Apache-2.0
#include "stored_form.h"

#include <cstring>

#include "quant/pack.h"

namespace vitrine::compress {
namespace {

bool is_float(const QuantMethod& method) { return method.number_format == NumberFormat::kE4M3; }

/// The scales that are stored: every `step`-th, since floats repeat a row's for each group.
std::vector<float> stored_scales(const QuantizedMatrix& matrix, size_t step) {
  std::vector<float> scales;
  scales.reserve(matrix.scales.size() / step);
  for (size_t i = 0; i < matrix.scales.size(); i += step) scales.push_back(matrix.scales[i]);
  return scales;
}

}  // namespace

std::vector<std::byte> narrow(std::span<const float> values, DType dtype) {
  const size_t size = dtype_size(dtype);
  std::vector<std::byte> bytes(values.size() * size);
  if (dtype == DType::kF32) {
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = dtype == DType::kF16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

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
    writer.declare(planned.module + ".weight_scale", planned.dtype, {rows, 1});
    return;
  }
  writer.declare(planned.module + ".weight_packed", DType::kI32,
                 {rows, packed_words(cols, planned.method->bits)});
  writer.declare(planned.module + ".weight_scale", planned.dtype, {rows, cols / group_size});
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
                 narrow(stored_scales(rows, static_cast<size_t>(rows.groups())), planned.dtype));
    return;
  }
  const std::vector<int32_t> packed = pack_int32(rows.values, rows.rows, rows.cols, rows.bits);
  writer.write(planned.module + ".weight_packed", std::as_bytes(std::span(packed)));
  writer.write(planned.module + ".weight_scale", narrow(rows.scales, planned.dtype));
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
  const uint64_t scale_size = dtype_size(planned.dtype);
  if (is_float(*planned.method)) return rows * cols + rows * scale_size;
  const uint64_t groups = cols / static_cast<uint64_t>(group_size);
  const int bits = planned.method->bits;
  const auto zero_point_words = static_cast<uint64_t>(
      planned.method->symmetric ? 0 : packed_words(planned.source->shape[0], bits));
  return rows * static_cast<uint64_t>(packed_words(planned.source->shape[1], bits)) * 4 +
         rows * groups * scale_size + zero_point_words * groups * 4 + 16;
}

}  // namespace vitrine::compress
