// SPDX-License-Identifier: Apache-2.0
// AWQ's version "gemm": {base}.qweight I32 [cols, rows / 8] and .qzeros I32 [groups, rows / 8],
// packed along the rows; the rows of a word's eight have the nibbles 0, 4, 1, 5, 2, 6, 3, 7.
// .scales [groups, rows]. value = scale * (q - zero point).
#include "module_layout.h"
#include "quant/pack.h"

namespace vitrine::checkpoint {
namespace {

constexpr int kAwqBits = 4;
constexpr int64_t kRowsOfWord = 8;
/// The bit where the nibble of a word's row begins.
constexpr int kShiftOfRow[kRowsOfWord] = {0, 16, 4, 20, 8, 24, 12, 28};

class AwqLayout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".qweight"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& numbers = place.numbers;
    if (!is_matrix(numbers, {DType::kI32})) place.refuse(numbers, "I32 [columns, rows / 8]");
    const int64_t cols = numbers.shape[0], words = numbers.shape[1], rows = words * kRowsOfWord;
    QuantizedTensors tensors = place.tensors(rows, cols);
    tensors.scales = &place.require(".scales");
    const int64_t groups = tensors.stored_groups();
    place.check(*tensors.scales, kFloatTypes, {groups, rows});
    tensors.zero_points = &place.require(".qzeros");
    place.check(*tensors.zero_points, {DType::kI32}, {groups, words});
    choose_reading(tensors);
    return tensors;
  }

  std::vector<int32_t> read_words(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                  int64_t row_begin, int64_t row_end) const override {
    const std::vector<int8_t> numbers =
        read_lines(checkpoint, *tensors.numbers, tensors.cols, row_begin, row_end);
    return pack_int32(numbers, row_end - row_begin, tensors.cols, kAwqBits);
  }

  std::vector<float> read_scales(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    return read_finite_columns(checkpoint, *tensors.scales, row_begin, row_end);
  }

  std::vector<int8_t> read_zero_points(const Checkpoint& checkpoint,
                                       const QuantizedTensors& tensors, int64_t row_begin,
                                       int64_t row_end) const override {
    return read_lines(checkpoint, *tensors.zero_points, tensors.stored_groups(), row_begin,
                      row_end);
  }

 private:
  /// Reads the nibbles of some rows, less 8, from a matrix of `lines` lines: [rows, lines].
  static std::vector<int8_t> read_lines(const Checkpoint& checkpoint, const TensorInfo& info,
                                        int64_t lines, int64_t row_begin, int64_t row_end) {
    const int64_t first = row_begin / kRowsOfWord;
    const int64_t end = (row_end + kRowsOfWord - 1) / kRowsOfWord;
    const std::vector<uint32_t> words = read_word_columns(checkpoint, info, first, end);
    std::vector<int8_t> values;
    values.reserve(static_cast<size_t>((row_end - row_begin) * lines));
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t word = row / kRowsOfWord - first;
      const int shift = kShiftOfRow[row % kRowsOfWord];
      for (int64_t line = 0; line < lines; ++line) {
        const uint32_t packed = words[static_cast<size_t>(line * (end - first) + word)];
        values.push_back(static_cast<int8_t>(static_cast<int>(packed >> shift & 15) - 8));
      }
    }
    return values;
  }
};

}  // namespace

const ModuleLayout& awq_layout() {
  static const AwqLayout layout;
  return layout;
}

}  // namespace vitrine::checkpoint
