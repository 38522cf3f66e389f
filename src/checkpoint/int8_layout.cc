// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' `int-quantized`: {base}.weight I8 [rows, cols], .weight_scale for a row, a
// group or all, and of asymmetric ones .weight_zero_point I8 in its shape.
#include "module_layout.h"
#include "quant/pack.h"

namespace vitrine::checkpoint {
namespace {

class Int8Layout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".weight"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& numbers = place.numbers;
    if (!is_matrix(numbers, {DType::kI8})) place.refuse(numbers, "I8 [rows, columns]");
    QuantizedTensors tensors = place.tensors(numbers.shape[0], numbers.shape[1]);
    tensors.scales = &place.require(".weight_scale");
    check_shape(place, tensors, *tensors.scales, kFloatTypes);
    const TensorInfo* zeros = place.find(".weight_zero_point");
    if (!place.scheme.symmetric) {
      tensors.zero_points = &place.require(".weight_zero_point");
      check_shape(place, tensors, *tensors.zero_points, {DType::kI8});
    } else if (zeros != nullptr) {
      place.refuse(*zeros, "none, since quantization_config says 'symmetric'");
    }
    choose_reading(tensors);
    return tensors;
  }

  std::vector<int32_t> read_words(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                  int64_t row_begin, int64_t row_end) const override {
    const int64_t count = row_end - row_begin, cols = tensors.cols;
    return pack_int32(
        read_elements<int8_t>(checkpoint, *tensors.numbers, row_begin * cols, count * cols), count,
        cols, 8);
  }

  std::vector<float> read_scales(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    const int64_t count = row_end - row_begin, groups = tensors.stored_groups();
    if (!is_one(*tensors.scales)) {
      return read_finite(checkpoint, *tensors.scales, row_begin * groups, count * groups);
    }
    return std::vector<float>(static_cast<size_t>(count),
                              read_finite(checkpoint, *tensors.scales, 0, 1).front());
  }

  std::vector<int8_t> read_zero_points(const Checkpoint& checkpoint,
                                       const QuantizedTensors& tensors, int64_t row_begin,
                                       int64_t row_end) const override {
    if (tensors.zero_points == nullptr) return {};
    const int64_t count = row_end - row_begin, groups = tensors.stored_groups();
    if (!is_one(*tensors.zero_points)) {
      return read_elements<int8_t>(checkpoint, *tensors.zero_points, row_begin * groups,
                                   count * groups);
    }
    return std::vector<int8_t>(
        static_cast<size_t>(count),
        read_elements<int8_t>(checkpoint, *tensors.zero_points, 0, 1).front());
  }

 private:
  /// Says whether there is one number, of a whole matrix or of its only row.
  static bool is_one(const TensorInfo& info) {
    return info.shape.empty() || info.shape == std::vector<int64_t>{1};
  }

  static void check_shape(const ModulePlace& place, const QuantizedTensors& tensors,
                          const TensorInfo& info, std::initializer_list<DType> dtypes) {
    const int64_t groups = tensors.stored_groups();
    std::vector<int64_t> shape = {tensors.rows, groups};
    if (place.scheme.block_rows == 0) {
      shape.assign(info.shape.empty() ? 0 : 1, 1);
    } else if (groups == 1 && info.shape.size() == 1) {
      shape = {tensors.rows};
    }
    place.check(info, dtypes, shape);
  }
};

}  // namespace

const ModuleLayout& int8_layout() {
  static const Int8Layout layout;
  return layout;
}

}  // namespace vitrine::checkpoint
