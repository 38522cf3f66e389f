// Reading `pack-quantized` modules: {base}.weight_packed, {base}.weight_scale, {base}.weight_shape,
// and of asymmetric ones {base}.weight_zero_point.
#include <cmath>

#include "checkpoint_impl.h"
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

/// [rows, groups] zero points: int8, or packed as the weights are, but along the rows.
std::vector<int8_t> read_zero_points(const Checkpoint& checkpoint, const TensorInfo& info, int bits,
                                     int64_t rows, int64_t groups, const std::string& file) {
  std::vector<int8_t> zero_points(static_cast<size_t>(rows * groups));
  if (info.dtype == DType::kI8) {
    check_shape(info, true, "I8", {rows, groups}, file);
    checkpoint.read(info, std::as_writable_bytes(std::span(zero_points)));
    const int limit = 1 << (bits - 1);
    for (size_t i = 0; i < zero_points.size(); ++i) {
      if (zero_points[i] >= -limit && zero_points[i] < limit) continue;
      throw_bad_file(file + ": element " + std::to_string(i) + " of tensor " +
                     quote_text(info.name) + " is " + std::to_string(zero_points[i]) +
                     "; expected " + std::to_string(-limit) + " to " + std::to_string(limit - 1));
    }
    return zero_points;
  }
  const int64_t words = packed_words(rows, bits);
  check_shape(info, info.dtype == DType::kI32, "I32 (or I8 unpacked)", {words, groups}, file);
  std::vector<int32_t> packed(static_cast<size_t>(words * groups));
  checkpoint.read(info, std::as_writable_bytes(std::span(packed)));
  return unpack_int32_rows(packed, rows, groups, bits);
}

}  // namespace

bool Checkpoint::is_quantized() const { return impl_->quantization.has_value(); }

std::optional<QuantizedModule> Checkpoint::quantized_module(std::string_view base_name) const {
  if (!impl_->quantization) return std::nullopt;
  return impl_->quantization->find(base_name);
}

std::optional<QuantizedMatrix> Checkpoint::read_quantized(std::string_view base_name) const {
  const std::string base(base_name);
  const TensorInfo* packed = find(base + ".weight_packed");
  if (packed == nullptr) return std::nullopt;
  const std::string& file = impl_->weight_paths[static_cast<size_t>(packed->file_index)];
  const std::optional<QuantizedModule> scheme = quantized_module(base_name);
  if (!scheme) {
    throw_bad_file(file + ": tensor " + quote_text(packed->name) +
                   " is packed, but quantization_config of " + impl_->config_path +
                   " leaves the module out; expected a group that targets it");
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
  QuantizedMatrix matrix;
  matrix.bits = scheme->bits;
  matrix.group_size = scheme->group_size;
  matrix.rows = rows;
  matrix.cols = cols;
  check_shape(
      scale,
      scale.dtype == DType::kF32 || scale.dtype == DType::kF16 || scale.dtype == DType::kBF16,
      "F32, F16 or BF16", {rows, matrix.groups()}, file);
  matrix.scale_dtype = scale.dtype;
  matrix.scales = read_f32(scale);
  for (size_t i = 0; i < matrix.scales.size(); ++i) {
    if (!std::isfinite(matrix.scales[i])) {
      throw_bad_file(file + ": element " + std::to_string(i) + " of tensor " +
                     quote_text(scale.name) + " is not finite; expected a number");
    }
  }
  std::vector<int32_t> words(static_cast<size_t>(packed->num_bytes) / sizeof(int32_t));
  read(*packed, std::as_writable_bytes(std::span(words)));
  matrix.values = unpack_int32(words, rows, cols, scheme->bits);
  if (!scheme->symmetric) {
    matrix.zero_points = read_zero_points(*this, require(base + ".weight_zero_point"), scheme->bits,
                                          rows, matrix.groups(), file);
  }
  return matrix;
}

}  // namespace vitrine
