// SPDX-License-Identifier: Apache-2.0
// AWQ's version "gemm": {base}.qweight I32 [cols, rows / 8] and .qzeros I32 [groups, rows / 8],
// packed along the rows; the rows of a word's eight have the
// nibbles 0, 4, 1, 5, 2, 6, 3, 7. .scales [groups,
// rows]. value = scale * (q - zero point).
#include "module_layout.h"

namespace vitrine::checkpoint {
namespace {

constexpr int64_t kRowsOfWord = 8;
/// Where the nibble of a word's row lies.
constexpr int kShiftOfRow[kRowsOfWord] = {0, 16, 4, 20, 8, 24, 12, 28};

class AwqLayout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".qweight"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& numbers = place.numbers;
    if (numbers.dtype != DType::kI32 || numbers.shape.size() != 2 || numbers.shape[0] < 1 ||
        numbers.shape[1] < 1) {
      place.refuse(numbers, "I32 [columns, rows / 8]");
    }
    const int64_t cols = numbers.shape[0], words = numbers.shape[1], rows = words * kRowsOfWord;
    QuantizedTensors tensors = place.tensors(rows, cols);
    tensors.scales = &place.require(".scales");
    tensors.scale_dtype = tensors.scales->dtype;
    const int64_t groups = tensors.stored_groups();
    place.check_floats(*tensors.scales, {groups, rows});
    tensors.zero_points = &place.require(".qzeros");
    place.check(*tensors.zero_points, {DType::kI32}, {groups, words});
    choose_reading(tensors);
    return tensors;
  }

  std::vector<int32_t> read_words(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                  int64_t row_begin, int64_t row_end) const override {
    const int64_t count = row_end - row_begin, cols = tensors.cols;
    const int64_t row_words = (cols + 7) / 8;
    const Words columns = read(checkpoint, *tensors.numbers, row_begin, row_end);
    std::vector<int32_t> words(static_cast<size_t>(count * row_words));
    for (int64_t row = 0; row < count; ++row) {
      int32_t* to = words.data() + row * row_words;
      for (int64_t col = 0; col < cols; ++to) {
        uint32_t packed = 0;
        for (int i = 0; i < 8 && col < cols; ++i, ++col) {
          packed |= columns.nibble(col, row_begin + row) << (4 * i);
        }
        *to = static_cast<int32_t>(packed);
      }
    }
    return words;
  }

  std::vector<float> read_scales(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    return read_finite_columns(checkpoint, *tensors.scales, row_begin, row_end);
  }

  std::vector<int8_t> read_zero_points(const Checkpoint& checkpoint,
                                       const QuantizedTensors& tensors, int64_t row_begin,
                                       int64_t row_end) const override {
    const int64_t groups = tensors.stored_groups();
    const Words zeros = read(checkpoint, *tensors.zero_points, row_begin, row_end);
    std::vector<int8_t> zero_points;
    zero_points.reserve(static_cast<size_t>((row_end - row_begin) * groups));
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t group = 0; group < groups; ++group) {
        zero_points.push_back(static_cast<int8_t>(static_cast<int>(zeros.nibble(group, row)) - 8));
      }
    }
    return zero_points;
  }

 private:
  /// Words of some rows, [lines, width].
  struct Words {
    std::vector<uint32_t> words;
    int64_t first = 0, width = 0;  ///< the first word of a line, and how many

    uint32_t nibble(int64_t line, int64_t row) const {
      const auto at = static_cast<size_t>(line * width + row / kRowsOfWord - first);
      return words[at] >> kShiftOfRow[row % kRowsOfWord] & 15;
    }
  };

  static Words read(const Checkpoint& checkpoint, const TensorInfo& info, int64_t row_begin,
                    int64_t row_end) {
    const int64_t first = row_begin / kRowsOfWord;
    const int64_t end = (row_end + kRowsOfWord - 1) / kRowsOfWord;
    return {read_word_columns(checkpoint, info, first, end), first, end - first};
  }
};

}  // namespace

const ModuleLayout& awq_layout() {
  static const AwqLayout layout;
  return layout;
}

}  // namespace vitrine::checkpoint
