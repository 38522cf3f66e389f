// SPDX-License-Identifier: Apache-2.0
// GPTQ: {base}.qweight I32 [cols * bits / 32, rows], packed along the columns; .qzeros I32
// [groups, rows * bits / 32], packed along the rows; .scales [groups, rows]; .g_idx I32 [cols].
// value = scale * (q - zero point). Version 1 stores zero points less one: one is added to each
// field, which keeps its bits. GPTQModel takes ones from whole words, though, so that a zero point
// of 0 borrows from its neighbour: of its files ones are added to whole words, as it does itself
// (bits 3 excepted). `gptq_p` splits numbers into planes of bits.
#include <algorithm>

#include "module_layout.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

/// Says what makes zero points of those that are stored.
enum class ZeroPoints : uint8_t { kAsStored, kFieldsPlusOne, kWordsPlusOnes };

class GptqLayout final : public ModuleLayout {
 public:
  explicit GptqLayout(ZeroPoints zero_points, bool has_planes = false)
      : zero_points_(zero_points), has_planes_(has_planes) {}

  std::string_view suffix() const override { return ".qweight"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& numbers = place.numbers;
    const int bits = place.scheme.bits;
    const BitPacking packing = packing_of(bits);
    if (!is_matrix(numbers, {DType::kI32}) || numbers.shape[0] * 32 % bits != 0) {
      place.refuse(numbers, "I32 [columns * " + std::to_string(bits) +
                                " / 32, rows] from quantization_config's bits");
    }
    const int64_t cols = numbers.shape[0] * 32 / bits, rows = numbers.shape[1];
    if (packed_word_count(cols, bits, packing) != numbers.shape[0]) {
      place.refuse(numbers, "whole blocks of 32 columns in " + std::to_string(bits) + " words");
    }
    QuantizedTensors tensors = place.tensors(rows, cols);
    tensors.scales = &place.require(".scales");
    const int64_t groups = tensors.stored_groups();
    place.check(*tensors.scales, kFloatTypes, {groups, rows});
    const TensorInfo& zeros = place.require(".qzeros");
    place.check(zeros, {DType::kI32}, {groups, packed_word_count(rows, bits, packing)});
    // A symmetric module's are read too, first among the others: they must say so.
    if (place.scheme.symmetric) {
      tensors.others.push_back(&zeros);
    } else {
      tensors.zero_points = &zeros;
    }
    place.read_column_groups(".g_idx", tensors);
    choose_reading(tensors);
    return tensors;
  }

  std::vector<int32_t> read_words(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                  int64_t row_begin, int64_t row_end) const override {
    const int64_t count = row_end - row_begin, cols = tensors.cols;
    const int bits = tensors.stored_bits;
    const std::vector<uint32_t> columns =
        read_word_columns(checkpoint, *tensors.numbers, row_begin, row_end);
    if (bits == tensors.bits && 32 % bits == 0) {
      // A word holds the numbers that a word of a row does.
      const int64_t row_words = tensors.numbers->shape[0];
      std::vector<int32_t> words(columns.size());
      for (int64_t word = 0; word < row_words; ++word) {
        for (int64_t row = 0; row < count; ++row) {
          words[static_cast<size_t>(row * row_words + word)] =
              static_cast<int32_t>(columns[static_cast<size_t>(word * count + row)]);
        }
      }
      return words;
    }
    std::vector<uint8_t> numbers(static_cast<size_t>(count * cols));
    for (int64_t row = 0; row < count; ++row) {
      unpack_numbers(columns.data() + row, count, 0, cols, bits, packing_of(bits),
                     numbers.data() + row * cols);
    }
    return pack_wider_numbers(numbers, count, tensors);
  }

  std::vector<float> read_scales(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    return read_finite_columns(checkpoint, *tensors.scales, row_begin, row_end);
  }

  std::vector<int8_t> read_zero_points(const Checkpoint& checkpoint,
                                       const QuantizedTensors& tensors, int64_t row_begin,
                                       int64_t row_end) const override {
    const bool is_symmetric = tensors.zero_points == nullptr;
    const TensorInfo& info = is_symmetric ? *tensors.others.front() : *tensors.zero_points;
    const int bits = tensors.stored_bits, half = 1 << (bits - 1), mask = (1 << bits) - 1;
    const int64_t groups = tensors.stored_groups(), count = row_end - row_begin;
    // Words of whole blocks of 32 rows.
    const int64_t first_row = row_begin / 32 * 32, first = first_row / 32 * bits;
    const int64_t end = std::min(info.shape[1], (row_end + 31) / 32 * bits);
    std::vector<uint32_t> words = read_word_columns(checkpoint, info, first, end);
    const bool whole_words = zero_points_ == ZeroPoints::kWordsPlusOnes && 32 % bits == 0;
    if (whole_words) {
      const uint32_t ones = 0xffffffffU / static_cast<uint32_t>(mask);  // 1 in each field
      for (uint32_t& word : words) word += ones;
    }
    const int shift = zero_points_ == ZeroPoints::kAsStored || whole_words ? 0 : 1;
    std::vector<uint8_t> stored(static_cast<size_t>(count));
    std::vector<int8_t> zero_points(static_cast<size_t>(is_symmetric ? 0 : count * groups));
    for (int64_t group = 0; group < groups; ++group) {
      unpack_numbers(words.data() + group * (end - first), 1, row_begin - first_row, count, bits,
                     packing_of(bits), stored.data());
      for (int64_t row = 0; row < count; ++row) {
        const int zero_point = (stored[static_cast<size_t>(row)] + shift) & mask;
        if (!is_symmetric) {
          zero_points[static_cast<size_t>(row * groups + group)] =
              static_cast<int8_t>(zero_point - half);
        } else if (zero_point != half) {
          throw_bad_file(file_of(checkpoint, info) + ": the zero point of group " +
                         std::to_string(group) + " and row " + std::to_string(row_begin + row) +
                         " in tensor " + quote_text(info.name) + " is " +
                         std::to_string(zero_point) + "; expected " + std::to_string(half) +
                         ", since quantization_config's 'sym' is true");
        }
      }
    }
    return zero_points;
  }

 private:
  BitPacking packing_of(int bits) const {
    return has_planes_ || bits > 4 ? BitPacking::kPlanes : BitPacking::kDense;
  }

  ZeroPoints zero_points_;
  bool has_planes_;
};

}  // namespace

const ModuleLayout& gptq_v1_layout() {
  static const GptqLayout layout(ZeroPoints::kFieldsPlusOne);
  return layout;
}
const ModuleLayout& gptqmodel_v1_layout() {
  static const GptqLayout layout(ZeroPoints::kWordsPlusOnes);
  return layout;
}
const ModuleLayout& gptq_v2_layout() {
  static const GptqLayout layout(ZeroPoints::kAsStored);
  return layout;
}
const ModuleLayout& gptq_p_layout() {
  static const GptqLayout layout(ZeroPoints::kAsStored, true);
  return layout;
}

}  // namespace vitrine::checkpoint
