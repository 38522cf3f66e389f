// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' `sparse-24-bitmask` (up to version 0.14): {base}.compressed [rows, cols / 2],
// the two of four columns that are not zero, .bitmask U8 [rows, cols / 8] (the first column in the
// lowest bit) and .shape I64 [2] or [2, 1]. It is expanded when it is loaded.
#include "module_layout.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

class Sparse24Layout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".compressed"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& numbers = place.numbers;
    if (!is_matrix(numbers, kFloatTypes)) {
      place.refuse(numbers, "F32, F16 or BF16 [rows, columns / 2] (of floats alone)");
    }
    const int64_t rows = numbers.shape[0], cols = 2 * numbers.shape[1];
    QuantizedTensors tensors = place.tensors(rows, cols);
    tensors.scales = &place.require(".bitmask");
    place.check(*tensors.scales, {DType::kU8}, {rows, (cols + 7) / 8}, "the numbers beside it");
    const TensorInfo& shape = place.require(".shape");
    const bool is_column = shape.shape == std::vector<int64_t>{2, 1};
    place.check(shape, {DType::kI64},
                is_column ? std::vector<int64_t>{2, 1} : std::vector<int64_t>{2},
                "sparse-24-bitmask");
    const auto extents = read_elements<int64_t>(place.checkpoint, shape, 0, 2);
    if (extents[0] != rows || extents[1] != cols) {
      throw_bad_file(file_of(place.checkpoint, shape) + ": tensor " + quote_text(shape.name) +
                     " holds " + shape_text(extents) + "; expected " + shape_text({rows, cols}) +
                     " from the numbers beside it");
    }
    tensors.others.push_back(&shape);
    tensors.group_size = static_cast<int>(cols);
    tensors.floats = numbers.dtype;
    return tensors;
  }

  std::vector<float> read_floats(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    const int64_t count = row_end - row_begin, cols = tensors.cols, half = cols / 2;
    const int64_t mask_bytes = (cols + 7) / 8;
    const std::vector<float> kept =
        read_finite(checkpoint, *tensors.numbers, row_begin * half, count * half);
    const auto masks = read_elements<uint8_t>(checkpoint, *tensors.scales, row_begin * mask_bytes,
                                              count * mask_bytes);
    std::vector<float> values(static_cast<size_t>(count * cols));
    for (int64_t row = 0; row < count; ++row) {
      const uint8_t* const mask = masks.data() + row * mask_bytes;
      int64_t taken = 0;
      for (int64_t col = 0; col < cols; ++col) {
        if ((mask[col / 8] >> (col % 8) & 1) == 0) continue;
        if (taken < half) {
          values[static_cast<size_t>(row * cols + col)] =
              kept[static_cast<size_t>(row * half + taken)];
        }
        ++taken;
      }
      if (taken == half) continue;
      throw_bad_file(file_of(checkpoint, *tensors.scales) + ": row " +
                     std::to_string(row_begin + row) + " of tensor " +
                     quote_text(tensors.scales->name) + " has " + std::to_string(taken) +
                     " bits set; expected " + std::to_string(half) + ", two of four");
    }
    return values;
  }
};

}  // namespace

const ModuleLayout& sparse24_layout() {
  static const Sparse24Layout layout;
  return layout;
}

}  // namespace vitrine::checkpoint
