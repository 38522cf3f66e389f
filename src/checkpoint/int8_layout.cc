// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' `int-quantized`: {base}.weight I8 [rows, cols], .weight_scale for a row, a
// group or all, and of asymmetric ones .weight_zero_point I8 in its shape.
#include "module_layout.h"

namespace vitrine::checkpoint {
namespace {

class Int8Layout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".weight"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& numbers = place.numbers;
    if (numbers.dtype != DType::kI8 || numbers.shape.size() != 2 || numbers.shape[0] < 1 ||
        numbers.shape[1] < 1) {
      place.refuse(numbers, "I8 [rows, columns]");
    }
    QuantizedTensors tensors = place.tensors(numbers.shape[0], numbers.shape[1]);
    tensors.scales = &place.require(".weight_scale");
    tensors.scale_dtype = tensors.scales->dtype;
    check_shape(place, tensors, *tensors.scales, {DType::kF32, DType::kF16, DType::kBF16});
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
    std::vector<uint8_t> numbers(static_cast<size_t>(count * cols));
    checkpoint.read(*tensors.numbers, static_cast<uint64_t>(row_begin * cols),
                    std::as_writable_bytes(std::span(numbers)));
    for (uint8_t& number : numbers) number ^= 0x80;  // plus 128
    return pack_numbers(numbers, count, cols, 8);
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
    const bool one = is_one(*tensors.zero_points);
    std::vector<int8_t> zero_points(static_cast<size_t>(one ? 1 : count * groups));
    checkpoint.read(*tensors.zero_points, static_cast<uint64_t>(one ? 0 : row_begin * groups),
                    std::as_writable_bytes(std::span(zero_points)));
    if (one) zero_points.resize(static_cast<size_t>(count), zero_points.front());
    return zero_points;
  }

 private:
  /// Whether there is one number, of a whole matrix or of its only row.
  static bool is_one(const TensorInfo& info) {
    return info.shape.empty() || info.shape == std::vector<int64_t>{1};
  }

  static void check_shape(const ModulePlace& place, const QuantizedTensors& tensors,
                          const TensorInfo& info, std::initializer_list<DType> dtypes) {
    const int64_t groups = tensors.stored_groups();
    std::vector<int64_t> shape = {tensors.rows, groups};
    if (place.scheme.block_rows == 0) shape = info.shape.empty() ? info.shape : std::vector{1L};
    if (groups == 1 && info.shape.size() == 1 && place.scheme.block_rows != 0) {
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
