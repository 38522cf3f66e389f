// SPDX-License-Identifier: Apache-2.0
#include "model/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "checkpoint/column_order.h"
#include "checkpoint/module_layout.h"
#include "ops/weight_lines.h"

namespace vitrine::model {
namespace {

using ops::whole_lines;

bool has_kernel_blocks(const TensorInfo& info) {
  return info.block_format != nullptr && kernels::has_block_format(info.block_format->ggml_type);
}

const TensorInfo* find_blocks(const Checkpoint& checkpoint, const std::string& module) {
  const TensorInfo* info = checkpoint.find(module + ".weight");
  const bool fits = info != nullptr && info->shape.size() == 2 && has_kernel_blocks(*info);
  return fits ? info : nullptr;
}

/// A tensor's name in its file; of one of a stack its own behind it.
std::string name_of(const Checkpoint& checkpoint, const TensorInfo& info) {
  const std::string name = checkpoint.name_in_file(info.name);
  return "'" + name + "'" + (name == info.name ? "" : " (" + info.name + ")");
}

kernels::BlockFormat format_of(const TensorInfo& info) {
  return static_cast<kernels::BlockFormat>(info.block_format->ggml_type);
}

std::optional<kernels::WeightFormat> float_format(DType dtype) {
  switch (dtype) {
    case DType::kF32: return kernels::WeightFormat::kF32;
    case DType::kF16: return kernels::WeightFormat::kF16;
    case DType::kBF16: return kernels::WeightFormat::kBF16;
    default: return std::nullopt;
  }
}

kernels::WeightFormat float_format(const Checkpoint& checkpoint, const TensorInfo& info) {
  if (const auto format = float_format(info.dtype)) return *format;
  throw Error(ErrorKind::kUnsupported, checkpoint.path() + ": tensor " + name_of(checkpoint, info) +
                                           " has dtype " + std::string(dtype_name(info.dtype)) +
                                           "; expected F32, F16 or BF16");
}

kernels::Weight quantized_weight(const QuantizedTensors& tensors) {
  kernels::Weight weight = {
      .group_size = tensors.group_size, .rows = tensors.rows, .cols = tensors.cols};
  if (tensors.floats) {
    weight.group_size = 0;
    weight.format = float_format(*tensors.floats).value();
    return weight;
  }
  if (tensors.number_format == NumberFormat::kE4M3) {
    weight.format = kernels::WeightFormat::kE4M3;
    return weight;
  }
  weight.format = tensors.bits == 3   ? kernels::WeightFormat::kInt3
                  : tensors.bits == 4 ? kernels::WeightFormat::kInt4
                                      : kernels::WeightFormat::kInt8;
  weight.scale_format = tensors.scale_dtype == DType::kBF16  ? kernels::ScaleFormat::kBF16
                        : tensors.scale_dtype == DType::kF16 ? kernels::ScaleFormat::kF16
                                                             : kernels::ScaleFormat::kF32;
  if (tensors.zero_points != nullptr) weight.offset_format = kernels::OffsetFormat::kZeroPoint;
  return weight;
}

/// Rows of 8-bit floats, as read_stored_rows.
void read_float8_rows(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t row_begin,
                      int64_t row_end) {
  const QuantizedTensors& tensors = *matrix.quantized;
  const int64_t first = matrix.first_row + row_begin, end = matrix.first_row + row_end;
  const std::span<std::byte> rows(
      matrix.data + row_begin * matrix.stored_row_bytes,
      static_cast<size_t>((row_end - row_begin) * matrix.stored_row_bytes));
  checkpoint.read(*matrix.info, static_cast<uint64_t>(first * matrix.stored_row_bytes), rows);
  if (kernels::has_nan(rows.data(), rows.size())) {
    const auto row_bytes = static_cast<size_t>(matrix.stored_row_bytes);
    size_t row = 0;
    while (!kernels::has_nan(&rows[row * row_bytes], row_bytes)) ++row;
    throw bad_number_error(checkpoint, matrix, first + static_cast<int64_t>(row));
  }
  const std::vector<float> scales = checkpoint.read_quantized_scales(tensors, first, end);
  std::memcpy(matrix.scales + row_begin * tensors.groups() * int64_t{sizeof(float)}, scales.data(),
              scales.size() * sizeof(float));
}

/// Writes floats in a type of floats.
void narrow_floats(const std::vector<float>& values, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, values.data(), values.size() * sizeof(float));
    return;
  }
  for (const float value : values) {
    const uint16_t bits = dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
    std::memcpy(to, &bits, sizeof(bits));
    to += sizeof(bits);
  }
}

/// Reads rows of a quantized module as floats, as read_stored_rows.
void read_widened_rows(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t row_begin,
                       int64_t row_end) {
  const std::vector<float> rows = checkpoint.read_quantized_floats(
      *matrix.quantized, matrix.first_row + row_begin, matrix.first_row + row_end);
  narrow_floats(rows, *matrix.quantized->floats, matrix.data + row_begin * matrix.stored_row_bytes);
}

/// Reads rows of a quantized module as blocks, as read_stored_rows.
void read_block_rows(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                     const StoredMatrix& matrix, int64_t row_begin, int64_t row_end) {
  const std::vector<std::byte> blocks = checkpoint.read_quantized_blocks(
      *matrix.quantized, matrix.first_row + row_begin, matrix.first_row + row_end);
  const int64_t bad_row =
      kernel.pack_blocks(matrix.weight.block_format, matrix.weight, row_begin, row_end,
                         blocks.data(), matrix.data, matrix.scales, matrix.offsets);
  if (bad_row >= 0) throw bad_number_error(checkpoint, matrix, matrix.first_row + bad_row);
}

/// Reads rows of integers whatever the file's layout, as read_stored_rows.
void read_integer_rows(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                       const StoredMatrix& matrix, int64_t row_begin, int64_t row_end) {
  const QuantizedTensors& tensors = *matrix.quantized;
  const QuantizedRows rows = checkpoint.read_quantized_rows(tensors, matrix.first_row + row_begin,
                                                            matrix.first_row + row_end);
  // The file's own type holds the scales exactly.
  std::vector<std::byte> scales(rows.scales.size() * dtype_size(tensors.scale_dtype));
  narrow_floats(rows.scales, tensors.scale_dtype, scales.data());
  kernel.pack_words(matrix.weight, row_begin, row_end,
                    {rows.words.data(), scales.data(), rows.zero_points.data()}, matrix.data,
                    matrix.scales, matrix.offsets);
}

/// Puts whole rows of `from` in an order; none where there are none.
template <typename T>
std::vector<T> pick_rows(const std::vector<T>& from, int64_t all_rows,
                         std::span<const int32_t> order) {
  const auto width = static_cast<int64_t>(from.size()) / all_rows;
  std::vector<T> rows;
  rows.reserve(order.size() * static_cast<size_t>(width));
  for (const int32_t row : order) {
    const auto first = from.begin() + row * width;
    rows.insert(rows.end(), first, first + width);
  }
  return rows;
}

/// Reads all rows of integers, and puts them in the matrix's order. The file's own may lie side by
/// side, so that one is not read without the others.
void read_ordered_rows(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                       const StoredMatrix& matrix) {
  const QuantizedTensors& tensors = *matrix.quantized;
  const int64_t all = matrix.weight.rows;
  constexpr int64_t kStrip = 256;
  const QuantizedRows rows = checkpoint.read_quantized_rows(tensors, 0, all);
  for (int64_t begin = 0; begin < all; begin += kStrip) {
    const int64_t end = std::min(all, begin + kStrip);
    const std::span order(matrix.row_order + begin, static_cast<size_t>(end - begin));
    const std::vector<int32_t> words = pick_rows(rows.words, all, order);
    const std::vector<float> wide = pick_rows(rows.scales, all, order);
    const std::vector<int8_t> zero_points = pick_rows(rows.zero_points, all, order);
    std::vector<std::byte> scales(wide.size() * dtype_size(tensors.scale_dtype));
    narrow_floats(wide, tensors.scale_dtype, scales.data());
    kernel.pack_words(matrix.weight, begin, end, {words.data(), scales.data(), zero_points.data()},
                      matrix.data, matrix.scales, matrix.offsets);
  }
}

/// Reads rows of integers that stand in the file in words, as read_stored_rows.
void read_word_rows(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                    const StoredMatrix& matrix, int64_t row_begin, int64_t row_end,
                    std::vector<std::byte>& buffer) {
  const QuantizedTensors& tensors = *matrix.quantized;
  const auto scale_row_bytes =
      tensors.groups() * static_cast<int64_t>(dtype_size(tensors.scales->dtype));
  const int64_t count = row_end - row_begin, first = matrix.first_row + row_begin;
  buffer.resize(static_cast<size_t>(count * (matrix.stored_row_bytes + scale_row_bytes)));
  const auto words = std::span(buffer).first(static_cast<size_t>(count * matrix.stored_row_bytes));
  const auto scales = std::span(buffer).subspan(words.size());
  checkpoint.read(*matrix.info, static_cast<uint64_t>(first * matrix.stored_row_bytes), words);
  checkpoint.read(*tensors.scales, static_cast<uint64_t>(first * scale_row_bytes), scales);
  const std::vector<int8_t> zero_points =
      checkpoint.read_quantized_zero_points(tensors, first, first + count);
  const int64_t bad_row = kernel.pack_words(matrix.weight, row_begin, row_end,
                                            {words.data(), scales.data(), zero_points.data()},
                                            matrix.data, matrix.scales, matrix.offsets);
  if (bad_row >= 0) throw bad_number_error(checkpoint, matrix, matrix.first_row + bad_row);
}

}  // namespace

void check_matrix_shape(const Checkpoint& checkpoint, const std::string& module, int64_t found_rows,
                        int64_t found_cols, int64_t rows, int64_t cols) {
  if (found_rows == rows && found_cols == cols) return;
  throw Error(ErrorKind::kBadFile, checkpoint.path() + ": tensor '" + module + "' is [" +
                                       std::to_string(found_rows) + ", " +
                                       std::to_string(found_cols) + "], but the config makes it [" +
                                       std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

const TensorInfo* find_packed_blocks(const Checkpoint& checkpoint, const std::string& module) {
  const TensorInfo* info = find_blocks(checkpoint, module);
  if (info == nullptr) return nullptr;
  const std::string partner = checkpoint::partner_of(module);
  return partner.empty() || find_blocks(checkpoint, partner) != nullptr ? info : nullptr;
}

size_t StoredMatrix::num_bytes() const { return whole_lines(bytes); }

void StoredMatrix::keep_rows(int64_t begin, int64_t end) {
  first_row += begin;
  weight.rows = end - begin;
  bytes = kernels::packed_bytes(weight);
}

void StoredMatrix::place(std::byte* memory) {
  weight.data = data = memory;
  if (bytes.scales != 0) weight.scales = scales = data + whole_lines(bytes.data);
  if (bytes.offsets != 0) weight.offsets = offsets = scales + whole_lines(bytes.scales);
}

uint64_t StoredMatrix::file_bytes() const {
  return quantized ? quantized->file_bytes() : info->stored_bytes;
}

size_t StoredMatrix::bytes_beside_map() const {
  if (!quantized || !quantized->is_in_place) return 0;
  const auto groups = static_cast<size_t>(weight.rows * quantized->groups());
  if (weight.format == kernels::WeightFormat::kE4M3) return groups * sizeof(float);
  return quantized->zero_points == nullptr ? 0 : groups;
}

bool StoredMatrix::map(const Checkpoint& checkpoint, std::byte* beside) {
  if (quantized && !quantized->is_in_place) return false;
  std::span<const std::byte> mapped = checkpoint.map(*info, quantized.has_value());
  if (mapped.empty()) return false;
  const int64_t end = first_row + weight.rows;
  mapped = mapped.subspan(static_cast<size_t>(first_row * stored_row_bytes));
  if (quantized) {
    weight.blocks = mapped.data();
    if (weight.format == kernels::WeightFormat::kE4M3) {
      const std::vector<float> all = checkpoint.read_quantized_scales(*quantized, first_row, end);
      std::memcpy(beside, all.data(), all.size() * sizeof(float));
      weight.row_scales = beside;
      return true;
    }
    const auto scale_row_bytes =
        quantized->groups() * static_cast<int64_t>(dtype_size(quantized->scales->dtype));
    weight.row_scales =
        checkpoint.map(*quantized->scales, true).data() + first_row * scale_row_bytes;
    if (quantized->zero_points != nullptr) {
      const std::vector<int8_t> all =
          checkpoint.read_quantized_zero_points(*quantized, first_row, end);
      std::memcpy(beside, all.data(), all.size());
      weight.row_zero_points = reinterpret_cast<const int8_t*>(beside);
    }
    return true;
  }
  if (kernels::is_float_format(weight.format)) {
    if (info->block_format != nullptr) return false;  // blocks that no kernel reads, as float32
    weight.data = mapped.data();
  } else {
    weight.blocks = mapped.data();
    weight.block_format = format_of(*info);
  }
  return true;
}

StoredMatrix find_stored_matrix(const Checkpoint& checkpoint, const std::string& module,
                                int64_t rows, int64_t cols, bool takes_blocks, bool takes_form) {
  const std::array<int64_t, 2> shape = {rows, cols};
  StoredMatrix matrix;
  matrix.quantized = checkpoint.find_quantized_tensors(module);
  if (matrix.quantized) {
    checkpoint::drop_filling(*matrix.quantized, rows);
    if (takes_form && checkpoint::is_sortable(*matrix.quantized)) {
      matrix.column_order =
          std::make_shared<const std::vector<int32_t>>(checkpoint::column_order(*matrix.quantized));
      matrix.quantized = checkpoint::sorted(*matrix.quantized);
    }
    const QuantizedTensors& tensors = *matrix.quantized;
    check_matrix_shape(checkpoint, module, tensors.rows, tensors.cols, rows, cols);
    matrix.info = tensors.numbers;
    if (takes_blocks && tensors.blocks != nullptr &&
        kernels::has_block_format(tensors.blocks->ggml_type)) {
      const auto format = static_cast<kernels::BlockFormat>(tensors.blocks->ggml_type);
      matrix.weight = kernels::block_weight(format, rows, cols);
      matrix.weight.multiplier = tensors.multiplier;
      matrix.stored_row_bytes = kernels::block_row_bytes(format, cols);
      matrix.bytes = kernels::packed_bytes(matrix.weight);
      return matrix;
    }
    matrix.weight = quantized_weight(tensors);
    matrix.stored_row_bytes = tensors.floats
                                  ? cols * static_cast<int64_t>(dtype_size(*tensors.floats))
                                  : kernels::quantized_row_bytes(matrix.weight.format, cols);
    matrix.bytes = kernels::packed_bytes(matrix.weight);
    const bool is_integer = !kernels::is_float_format(matrix.weight.format);
    if (is_integer && tensors.activations != ActivationUse::kFloat) {
      matrix.row_scale = tensors.input_scale;
    }
    return matrix;
  }
  matrix.info = &checkpoint.require(module + ".weight", shape);
  if (find_packed_blocks(checkpoint, module) != nullptr) {
    return find_block_matrix(*matrix.info, rows, cols).value();
  }
  matrix.weight.format = float_format(checkpoint, *matrix.info);
  matrix.weight.rows = rows;
  matrix.weight.cols = cols;
  matrix.stored_row_bytes = cols * static_cast<int64_t>(dtype_size(matrix.info->dtype));
  matrix.bytes = kernels::packed_bytes(matrix.weight);
  return matrix;
}

std::optional<StoredMatrix> find_block_matrix(const TensorInfo& info, int64_t rows, int64_t cols) {
  if (!has_kernel_blocks(info) || cols % info.block_format->block_size != 0) return std::nullopt;
  StoredMatrix matrix;
  matrix.info = &info;
  matrix.weight = kernels::block_weight(format_of(info), rows, cols);
  matrix.weight.multiplier = info.multiplier;
  matrix.stored_row_bytes = kernels::block_row_bytes(format_of(info), cols);
  matrix.bytes = kernels::packed_bytes(matrix.weight);
  return matrix;
}

Error bad_number_error(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t row) {
  const bool is_float8 = matrix.weight.format == kernels::WeightFormat::kE4M3;
  const TensorInfo& info =
      matrix.quantized && !is_float8 ? *matrix.quantized->scales : *matrix.info;
  return {ErrorKind::kBadFile,
          checkpoint.weight_files()[static_cast<size_t>(info.file_index)] + ": tensor " +
              name_of(checkpoint, info) + " has " +
              (is_float8 ? "an element that is NaN" : "a scale that is infinite or no number") +
              (row >= 0 ? " in row " + std::to_string(row) : "") + "; expected finite numbers"};
}

void read_stored_rows(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                      const StoredMatrix& matrix, int64_t row_begin, int64_t row_end,
                      std::vector<std::byte>& buffer) {
  if (matrix.quantized && matrix.weight.format == kernels::WeightFormat::kBlocks) {
    return read_block_rows(kernel, checkpoint, matrix, row_begin, row_end);
  }
  if (matrix.quantized && matrix.quantized->floats) {
    return read_widened_rows(checkpoint, matrix, row_begin, row_end);
  }
  if (matrix.weight.format == kernels::WeightFormat::kE4M3) {
    return read_float8_rows(checkpoint, matrix, row_begin, row_end);
  }
  if (matrix.row_order != nullptr) return read_ordered_rows(kernel, checkpoint, matrix);
  if (matrix.quantized && !matrix.quantized->is_in_place) {
    return read_integer_rows(kernel, checkpoint, matrix, row_begin, row_end);
  }
  if (matrix.quantized) {
    return read_word_rows(kernel, checkpoint, matrix, row_begin, row_end, buffer);
  }
  const TensorInfo& info = *matrix.info;
  const auto size = static_cast<size_t>((row_end - row_begin) * matrix.stored_row_bytes);
  const int64_t first = matrix.first_row + row_begin;
  if (kernels::is_float_format(matrix.weight.format)) {
    const std::span rows(matrix.data + row_begin * matrix.stored_row_bytes, size);
    checkpoint.read(info, static_cast<uint64_t>(first * matrix.stored_row_bytes), rows);
    return;
  }
  buffer.resize(size);
  checkpoint.read_blocks(info, first, buffer);
  const int64_t bad_row =
      kernel.pack_blocks(format_of(info), matrix.weight, row_begin, row_end, buffer.data(),
                         matrix.data, matrix.scales, matrix.offsets);
  if (bad_row >= 0) throw bad_number_error(checkpoint, matrix, matrix.first_row + bad_row);
}

}  // namespace vitrine::model
