// SPDX-License-Identifier: Apache-2.0
// 8-bit floats: {base}.weight F8_E4M3 [rows, cols] and .weight_scale, .weight_scale_inv or, as
// transformers 5 saves some models of 8-bit floats, .scale: one for each block. `mxfp8-quantized`:
// E8M0 scales U8 [rows, cols / 32], read as bfloat16, which holds the products exactly.
#include <cmath>

#include "module_layout.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr int kFloatGroup = 128;  // columns that share a scale in memory

void require_matrix(const ModulePlace& place) {
  const TensorInfo& info = place.numbers;
  if (is_matrix(info, {info.dtype})) return;
  throw_bad_file(file_of(place.checkpoint, info) + ": tensor " + quote_text(info.name) +
                 " has shape " + shape_text(info.shape) + "; expected a matrix");
}

/// Returns the columns of the scale tensor, or its rows: of so many elements `block` share one
/// (0: all).
int64_t num_blocks(int64_t elements, int64_t block) {
  return block == 0 ? 1 : (elements + block - 1) / block;
}

/// Reads the floats of rows that bytes of E4M3 stand for, none of which may be a NaN.
std::vector<float> read_bytes(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                              int64_t row_begin, int64_t row_end) {
  const TensorInfo& info = *tensors.numbers;
  const int64_t first = row_begin * tensors.cols, count = row_end * tensors.cols - first;
  const auto bytes = read_elements<uint8_t>(checkpoint, info, first, count);
  std::vector<float> values(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    values[i] = e4m3_to_float(bytes[i]);
    if (std::isnan(values[i])) {
      refuse_element(checkpoint, info, first + static_cast<int64_t>(i),
                     "is NaN; expected a number");
    }
  }
  return values;
}

/// Multiplies rows by a scale for each row and group of the file.
void multiply_groups(const std::vector<float>& scales, const QuantizedTensors& tensors,
                     std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / tensors.cols;
    const auto group = static_cast<int64_t>(i) % tensors.cols / tensors.stored_group;
    values[i] *= scales[static_cast<size_t>(row * tensors.stored_groups() + group)];
  }
}

class Float8Layout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".weight"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    require_matrix(place);
    const QuantizedModule& scheme = place.scheme;
    const TensorInfo& scale = find_scale(place);
    QuantizedTensors tensors = place.tensors(place.numbers.shape[0], place.numbers.shape[1]);
    const bool fits = scheme.group_size % kFloatGroup == 0;
    tensors.group_size = fits ? kFloatGroup : scheme.group_size;
    tensors.block_rows = scheme.block_rows;
    tensors.block_cols = scheme.group_size;
    tensors.scales = &scale;
    tensors.is_in_place = fits;
    if (!fits) {
      tensors.floats = DType::kF32;
      tensors.widened_for = "its scales of blocks that are no multiple of 128 columns";
    }
    const int64_t block_rows = num_blocks(tensors.rows, scheme.block_rows);
    const int64_t block_cols = num_blocks(tensors.cols, scheme.group_size);
    // Scales may stand without an extent of 1: one, one a row, or one row or column of blocks.
    std::vector<int64_t> shape = {block_rows, block_cols};
    const bool is_line = block_rows == 1 || block_cols == 1;
    if (scale.shape.empty() && scheme.block_rows == 0) shape = {};
    if (scale.shape.size() == 1 && is_line) shape = {block_rows * block_cols};
    place.check(scale, kFloatTypes, shape);
    return tensors;
  }

  std::vector<float> read_scales(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    const auto block_row = [&](int64_t row) {
      return tensors.block_rows == 0 ? 0 : row / tensors.block_rows;
    };
    const int64_t per_row = tensors.stored_groups();
    const int64_t first = block_row(row_begin), end = num_blocks(row_end, tensors.block_rows);
    const std::vector<float> stored =
        read_finite(checkpoint, *tensors.scales, first * per_row, (end - first) * per_row);
    std::vector<float> scales;
    scales.reserve(static_cast<size_t>((row_end - row_begin) * per_row));
    for (int64_t row = row_begin; row < row_end; ++row) {
      const auto of_row = stored.begin() + (block_row(row) - first) * per_row;
      scales.insert(scales.end(), of_row, of_row + per_row);
    }
    return scales;
  }

  std::vector<float> read_floats(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    std::vector<float> values = read_bytes(checkpoint, tensors, row_begin, row_end);
    multiply_groups(read_scales(checkpoint, tensors, row_begin, row_end), tensors, values);
    return values;
  }

 private:
  /// The layout "fp8" of published folders has scales of its own name.
  static const TensorInfo& find_scale(const ModulePlace& place) {
    if (place.scheme.format != "fp8") return place.require(".weight_scale");
    for (const char* name : {".weight_scale_inv", ".scale"}) {
      if (const TensorInfo* info = place.find(name)) return *info;
    }
    const TensorInfo* plain = place.find(".weight_scale");
    const bool is_whole = place.scheme.group_size == 0;
    return plain != nullptr && is_whole ? *plain : place.require(".weight_scale_inv");
  }
};

class Mxfp8Layout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".weight"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    require_matrix(place);
    QuantizedTensors tensors = place.tensors(place.numbers.shape[0], place.numbers.shape[1]);
    tensors.scales = &place.require(".weight_scale");
    place.check(place.numbers, {DType::kF8E4M3}, place.numbers.shape);
    place.check(*tensors.scales, {DType::kU8}, {tensors.rows, tensors.stored_groups()});
    tensors.group_size = place.scheme.group_size;
    tensors.floats = DType::kBF16;
    tensors.widened_for = "its 8-bit floats with a power of two for 32 columns";
    return tensors;
  }

  std::vector<float> read_floats(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    std::vector<float> values = read_bytes(checkpoint, tensors, row_begin, row_end);
    const int64_t groups = tensors.stored_groups();
    multiply_groups(read_powers(checkpoint, *tensors.scales, row_begin * groups, row_end * groups),
                    tensors, values);
    return values;
  }

 private:
  static std::vector<float> read_powers(const Checkpoint& checkpoint, const TensorInfo& info,
                                        int64_t begin, int64_t end) {
    const auto exponents = read_elements<uint8_t>(checkpoint, info, begin, end - begin);
    std::vector<float> powers;
    powers.reserve(exponents.size());
    for (const uint8_t exponent : exponents) {
      constexpr int kNotANumber = 255, kBias = 127;
      if (exponent == kNotANumber) {
        refuse_element(checkpoint, info, begin + std::ssize(powers),
                       "is 255, which is NaN; expected an exponent");
      }
      powers.push_back(std::ldexp(1.0f, exponent - kBias));
    }
    return powers;
  }
};

}  // namespace

const ModuleLayout& float8_layout() {
  static const Float8Layout layout;
  return layout;
}
const ModuleLayout& mxfp8_layout() {
  static const Mxfp8Layout layout;
  return layout;
}

}  // namespace vitrine::checkpoint
