// SPDX-License-Identifier: Apache-2.0
// Reading quantized modules. `pack-quantized`: {base}.weight_packed, {base}.weight_scale,
// {base}.weight_shape, and of asymmetric ones {base}.weight_zero_point. 8-bit floats: {base}.weight
// and {base}.weight_scale or {base}.weight_scale_inv.
#include <algorithm>
#include <cmath>

#include "checkpoint_impl.h"
#include "quant/pack.h"
#include "text.h"

namespace vitrine {
namespace {

using checkpoint::shape_text;
using checkpoint::throw_bad_file;

/// [rows, cols] of `{base}.weight_shape`.
std::pair<int64_t, int64_t> read_weight_shape(const Checkpoint& checkpoint, const TensorInfo& info,
                                              const std::string& file) {
  const bool is_wide = info.dtype == DType::kI64;
  if ((!is_wide && info.dtype != DType::kI32) || info.shape != std::vector<int64_t>{2}) {
    throw_bad_file(file + ": tensor " + quote_text(info.name) + " is " +
                   std::string(dtype_name(info.dtype)) + " " + shape_text(info.shape) +
                   "; expected I64 [2]");
  }
  int64_t extents[2] = {0, 0};
  if (is_wide) {
    checkpoint.read(info, std::as_writable_bytes(std::span(extents)));
  } else {
    int32_t narrow[2] = {0, 0};
    checkpoint.read(info, std::as_writable_bytes(std::span(narrow)));
    extents[0] = narrow[0];
    extents[1] = narrow[1];
  }
  constexpr int64_t kMaxExtent = int64_t{1} << 30;
  if (extents[0] < 1 || extents[1] < 1 || extents[0] > kMaxExtent || extents[1] > kMaxExtent) {
    throw_bad_file(file + ": tensor " + quote_text(info.name) + " holds [" +
                   std::to_string(extents[0]) + ", " + std::to_string(extents[1]) +
                   "]; expected two sizes of 1 to 2^30");
  }
  return {extents[0], extents[1]};
}

void check_shape(const TensorInfo& info, bool dtype_fits, const char* dtypes,
                 const std::vector<int64_t>& shape, const std::string& file) {
  if (dtype_fits && info.shape == shape) return;
  throw_bad_file(file + ": tensor " + quote_text(info.name) + " is " +
                 std::string(dtype_name(info.dtype)) + " " + shape_text(info.shape) +
                 "; expected " + dtypes + " " + shape_text(shape) +
                 " from weight_shape and quantization_config");
}

void check_zero_points(const TensorInfo& info, int bits, int64_t rows, int64_t groups,
                       const std::string& file) {
  if (info.dtype == DType::kI8) return check_shape(info, true, "I8", {rows, groups}, file);
  check_shape(info, info.dtype == DType::kI32, "I32 (or I8 unpacked)",
              {packed_words(rows, bits), groups}, file);
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

constexpr int kFloatGroup = 128;  // columns that share a scale in memory

/// Columns of the scale tensor, or its rows: of so many elements, `block` sharing one (0: all).
int64_t num_blocks(int64_t elements, int64_t block) {
  return block == 0 ? 1 : (elements + block - 1) / block;
}

/// `scales`: of whole rows of blocks, the one of `row_begin` first. A scale for each row and group.
std::vector<float> spread_scales(const std::vector<float>& scales, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) {
  const int64_t per_row = num_blocks(tensors.cols, tensors.block_cols);
  const auto block_row = [&](int64_t row) {
    return tensors.block_rows == 0 ? 0 : row / tensors.block_rows;
  };
  std::vector<float> spread;
  spread.reserve(static_cast<size_t>((row_end - row_begin) * tensors.groups()));
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t first = (block_row(row) - block_row(row_begin)) * per_row;
    for (int64_t group = 0; group < tensors.groups(); ++group) {
      const int64_t block = tensors.block_cols == 0 ? 0 : group * kFloatGroup / tensors.block_cols;
      spread.push_back(scales[static_cast<size_t>(first + block)]);
    }
  }
  return spread;
}

/// Elements [first, first + count) of a tensor of floats, all of which must be finite.
std::vector<float> read_finite(const Checkpoint& checkpoint, const TensorInfo& info, int64_t first,
                               int64_t count, const std::string& file) {
  const auto size = static_cast<int64_t>(dtype_size(info.dtype));
  std::vector<std::byte> stored(static_cast<size_t>(count * size));
  checkpoint.read(info, static_cast<uint64_t>(first * size), stored);
  std::vector<float> values(static_cast<size_t>(count));
  widen_to_f32(stored.data(), info.dtype, count, values.data());
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[static_cast<size_t>(i)])) continue;
    throw_bad_file(file + ": element " + std::to_string(first + i) + " of tensor " +
                   quote_text(info.name) + " is not finite; expected a number");
  }
  return values;
}

void check_rows(const QuantizedTensors& tensors, int64_t row_begin, int64_t row_end) {
  if (row_begin >= 0 && row_begin <= row_end && row_end <= tensors.rows) return;
  throw Error(ErrorKind::kInvalidArgument,
              "rows " + std::to_string(row_begin) + " to " + std::to_string(row_end) +
                  " of tensor " + quote_text(tensors.numbers->name) +
                  " are asked for; expected some of its " + std::to_string(tensors.rows));
}

/// A matrix of 8-bit floats.
QuantizedTensors find_floats(const TensorInfo& info, const TensorInfo& scale,
                             const QuantizedModule& scheme, const std::string& file) {
  if (info.shape.size() != 2 || info.shape[0] < 1 || info.shape[1] < 1) {
    throw_bad_file(file + ": tensor " + quote_text(info.name) + " has shape " +
                   shape_text(info.shape) + "; expected a matrix");
  }
  const QuantizedTensors tensors = {.number_format = NumberFormat::kE4M3,
                                    .group_size = kFloatGroup,
                                    .rows = info.shape[0],
                                    .cols = info.shape[1],
                                    .block_rows = scheme.block_rows,
                                    .block_cols = scheme.group_size,
                                    .numbers = &info,
                                    .scales = &scale};
  const int64_t block_rows = num_blocks(tensors.rows, scheme.block_rows);
  const int64_t block_cols = num_blocks(tensors.cols, scheme.group_size);
  // One scale, or one a row, may stand without the extents of 1.
  std::vector<int64_t> shape = {block_rows, block_cols};
  const bool is_whole = scheme.block_rows == 0 && (scale.shape.empty() || scale.shape.size() == 1);
  if (is_whole && scale.shape.empty()) shape = {};
  if ((is_whole || scheme.group_size == 0) && scale.shape.size() == 1) shape = {block_rows};
  check_shape(scale, is_float(scale.dtype), "F32, F16 or BF16", shape, file);
  return tensors;
}

}  // namespace

const TensorInfo* Checkpoint::find_quantized(std::string_view base_name) const {
  const std::string base(base_name);
  if (const TensorInfo* packed = find(base + ".weight_packed")) return packed;
  const TensorInfo* weight = find(base + ".weight");
  return weight != nullptr && weight->dtype == DType::kF8E4M3 ? weight : nullptr;
}

bool Checkpoint::is_quantized() const { return impl_->quantization.has_value(); }

std::optional<QuantizedModule> Checkpoint::quantized_module(std::string_view base_name) const {
  if (!impl_->quantization) return std::nullopt;
  return impl_->quantization->find(base_name);
}

std::optional<QuantizedTensors> Checkpoint::find_quantized_tensors(
    std::string_view base_name) const {
  const std::string base(base_name);
  const TensorInfo* packed = find_quantized(base_name);
  if (packed == nullptr) return std::nullopt;
  const bool is_float8 = packed->dtype == DType::kF8E4M3;
  const std::string& file = impl_->weight_paths[static_cast<size_t>(packed->file_index)];
  const std::optional<QuantizedModule> scheme = quantized_module(base_name);
  if (!scheme) {
    throw_bad_file(file + ": tensor " + quote_text(packed->name) + " is " +
                   (is_float8 ? "F8_E4M3" : "packed") + ", but quantization_config of " +
                   impl_->config_path + " leaves the module out; expected a group that targets it");
  }
  if (is_float8 != (scheme->number_format == NumberFormat::kE4M3)) {
    throw_bad_file(file + ": tensor " + quote_text(packed->name) + " is " +
                   (is_float8 ? "F8_E4M3" : "packed") + ", but quantization_config of " +
                   impl_->config_path + " says otherwise; expected what its format says");
  }
  if (is_float8) {
    const std::vector<std::string>& suffixes = impl_->quantization->float_scale_suffixes();
    const auto own = std::ranges::find_if(
        suffixes, [&](const std::string& suffix) { return find(base + suffix) != nullptr; });
    const TensorInfo& scale = require(base + (own == suffixes.end() ? suffixes.front() : *own));
    return find_floats(*packed, scale, *scheme, file);
  }
  for (const char* suffix : {".weight_zero_point", ".weight_g_idx", ".weight_global_scale"}) {
    if (!scheme->symmetric && std::string_view(suffix) == ".weight_zero_point") continue;
    if (find(base + suffix) != nullptr) {
      checkpoint::throw_unsupported(file + ": tensor " + quote_text(base + suffix) +
                                    " is not supported; expected symmetric groups of columns in "
                                    "their order");
    }
  }
  if (find(base + ".weight") != nullptr) {
    throw_bad_file(file + ": holds both " + quote_text(base + ".weight") + " and " +
                   quote_text(packed->name) + "; expected one of them");
  }
  const TensorInfo& scale = require(base + ".weight_scale");
  const auto [rows, cols] = read_weight_shape(*this, require(base + ".weight_shape"), file);
  check_shape(*packed, packed->dtype == DType::kI32, "I32",
              {rows, packed_words(cols, scheme->bits)}, file);
  QuantizedTensors tensors = {.bits = scheme->bits,
                              .group_size = scheme->group_size,
                              .rows = rows,
                              .cols = cols,
                              .numbers = packed,
                              .scales = &scale};
  check_shape(scale, is_float(scale.dtype), "F32, F16 or BF16", {rows, tensors.groups()}, file);
  if (!scheme->symmetric) {
    tensors.zero_points = &require(base + ".weight_zero_point");
    check_zero_points(*tensors.zero_points, scheme->bits, rows, tensors.groups(), file);
  }
  return tensors;
}

std::vector<float> Checkpoint::read_quantized_scales(const QuantizedTensors& tensors,
                                                     int64_t row_begin, int64_t row_end) const {
  check_rows(tensors, row_begin, row_end);
  const std::string& file = impl_->weight_paths[static_cast<size_t>(tensors.scales->file_index)];
  if (tensors.number_format == NumberFormat::kInteger) {
    const int64_t groups = tensors.groups();
    return read_finite(*this, *tensors.scales, row_begin * groups, (row_end - row_begin) * groups,
                       file);
  }
  const int64_t per_row = num_blocks(tensors.cols, tensors.block_cols);
  const int64_t first = tensors.block_rows == 0 ? 0 : row_begin / tensors.block_rows;
  const int64_t end = num_blocks(row_end, tensors.block_rows);
  return spread_scales(
      read_finite(*this, *tensors.scales, first * per_row, (end - first) * per_row, file), tensors,
      row_begin, row_end);
}

std::vector<int8_t> Checkpoint::read_quantized_zero_points(const QuantizedTensors& tensors,
                                                           int64_t row_begin,
                                                           int64_t row_end) const {
  check_rows(tensors, row_begin, row_end);
  if (tensors.zero_points == nullptr) return {};
  const TensorInfo& info = *tensors.zero_points;
  const int64_t groups = tensors.groups();
  if (info.dtype == DType::kI32) {
    const int64_t per_word = 32 / tensors.bits, first = row_begin / per_word;
    const int64_t words = packed_words(row_end, tensors.bits) - first;
    std::vector<int32_t> packed(static_cast<size_t>(words * groups));
    read(info, static_cast<uint64_t>(first * groups) * sizeof(int32_t),
         std::as_writable_bytes(std::span(packed)));
    std::vector<int8_t> rows =
        unpack_int32_rows(packed, row_end - first * per_word, groups, tensors.bits);
    rows.erase(rows.begin(), rows.begin() + (row_begin - first * per_word) * groups);
    return rows;
  }
  std::vector<int8_t> zero_points(static_cast<size_t>((row_end - row_begin) * groups));
  read(info, static_cast<uint64_t>(row_begin * groups),
       std::as_writable_bytes(std::span(zero_points)));
  const int limit = 1 << (tensors.bits - 1);
  for (size_t i = 0; i < zero_points.size(); ++i) {
    if (zero_points[i] >= -limit && zero_points[i] < limit) continue;
    throw_bad_file(impl_->weight_paths[static_cast<size_t>(info.file_index)] + ": element " +
                   std::to_string(static_cast<size_t>(row_begin * groups) + i) + " of tensor " +
                   quote_text(info.name) + " is " + std::to_string(zero_points[i]) + "; expected " +
                   std::to_string(-limit) + " to " + std::to_string(limit - 1));
  }
  return zero_points;
}

std::optional<QuantizedMatrix> Checkpoint::read_quantized(std::string_view base_name) const {
  const std::optional<QuantizedTensors> tensors = find_quantized_tensors(base_name);
  if (!tensors) return std::nullopt;
  const TensorInfo& numbers = *tensors->numbers;
  const std::string& file = impl_->weight_paths[static_cast<size_t>(numbers.file_index)];
  QuantizedMatrix matrix;
  matrix.number_format = tensors->number_format;
  matrix.bits = tensors->bits;
  matrix.group_size = tensors->group_size;
  matrix.rows = tensors->rows;
  matrix.cols = tensors->cols;
  matrix.scale_dtype = tensors->scales->dtype;
  matrix.scales = read_quantized_scales(*tensors, 0, tensors->rows);
  if (tensors->number_format == NumberFormat::kE4M3) {
    matrix.values.resize(static_cast<size_t>(numbers.num_bytes));
    read(numbers, std::as_writable_bytes(std::span(matrix.values)));
    for (size_t i = 0; i < matrix.values.size(); ++i) {
      if ((matrix.values[i] & 0x7f) != 0x7f) continue;
      throw_bad_file(file + ": element " + std::to_string(i) + " of tensor " +
                     quote_text(numbers.name) + " is NaN; expected a number");
    }
    return matrix;
  }
  std::vector<int32_t> words(static_cast<size_t>(numbers.num_bytes) / sizeof(int32_t));
  read(numbers, std::as_writable_bytes(std::span(words)));
  matrix.values = unpack_int32(words, matrix.rows, matrix.cols, matrix.bits);
  matrix.zero_points = read_quantized_zero_points(*tensors, 0, matrix.rows);
  return matrix;
}

}  // namespace vitrine
