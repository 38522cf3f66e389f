// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' `pack-quantized`: {base}.weight_packed, .weight_scale, .weight_shape, of
// asymmetric ones .weight_zero_point, and .weight_g_idx where the order of columns is another.
// Numbers of 3, 5, 6 and 7 bits were padded to whole words up to version 0.17, and are one stream
// of bits since: the packed width tells which, and where both take as many words, the version.
#include <algorithm>
#include <array>

#include "module_layout.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

/// Reads [rows, cols] of `{base}.weight_shape`.
std::array<int64_t, 2> read_weight_shape(const ModulePlace& place, const TensorInfo& info) {
  const bool is_wide = info.dtype == DType::kI64;
  if ((!is_wide && info.dtype != DType::kI32) || info.shape != std::vector<int64_t>{2}) {
    place.refuse(info, "I64 [2]");
  }
  std::array<int64_t, 2> extents = {0, 0};
  if (is_wide) {
    place.checkpoint.read(info, std::as_writable_bytes(std::span(extents)));
  } else {
    std::ranges::copy(read_elements<int32_t>(place.checkpoint, info, 0, 2), extents.begin());
  }
  constexpr int64_t kMaxExtent = int64_t{1} << 30;
  if (extents[0] < 1 || extents[1] < 1 || extents[0] > kMaxExtent || extents[1] > kMaxExtent) {
    throw_bad_file(file_of(place.checkpoint, info) + ": tensor " + quote_text(info.name) +
                   " holds [" + std::to_string(extents[0]) + ", " + std::to_string(extents[1]) +
                   "]; expected two sizes of 1 to 2^30");
  }
  return extents;
}

/// Returns [rows, cols] of a part of a stack of experts. Where no tensor says the columns, whole
/// words do.
std::array<int64_t, 2> stacked_shape(const ModulePlace& place) {
  const TensorInfo& numbers = place.numbers;
  if (!is_matrix(numbers, {DType::kI32})) place.refuse(numbers, "I32 [rows, words]");
  if (place.stacked_columns > 0) return {numbers.shape[0], place.stacked_columns};
  if (32 % place.scheme.bits != 0) place.require(".weight_shape");
  return {numbers.shape[0], numbers.shape[1] * 32 / place.scheme.bits};
}

constexpr std::string_view kWhence = "weight_shape and quantization_config";

class PackedLayout final : public ModuleLayout {
 public:
  /// `likely`: what it is where both packings take as many words.
  explicit PackedLayout(BitPacking likely) : likely_(likely) {}

  std::string_view suffix() const override { return ".weight_packed"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    if (const TensorInfo* plain = place.find(".weight")) {
      throw_bad_file(file_of(place.checkpoint, place.numbers) + ": holds both " +
                     quote_text(plain->name) + " and " + quote_text(place.numbers.name) +
                     "; expected one of them");
    }
    const int bits = place.scheme.bits;
    const TensorInfo& scale = place.require(".weight_scale");
    const bool is_stacked = !place.numbers.fused_from.empty();
    const TensorInfo* shape = is_stacked ? nullptr : &place.require(".weight_shape");
    const auto [rows, cols] = is_stacked ? stacked_shape(place) : read_weight_shape(place, *shape);
    const int64_t dense = packed_word_count(cols, bits, BitPacking::kDense);
    const int64_t padded = packed_word_count(cols, bits, BitPacking::kPadded);
    const bool is_padded = place.numbers.shape == std::vector<int64_t>{rows, padded};
    place.check(place.numbers, {DType::kI32}, {rows, is_padded ? padded : dense}, kWhence);
    QuantizedTensors tensors = place.tensors(rows, cols);
    tensors.scales = &scale;
    if (shape != nullptr) tensors.others.push_back(shape);
    const int64_t groups = tensors.stored_groups();
    const bool is_flat = groups == 1 && scale.shape == std::vector<int64_t>{rows};
    place.check(scale, kFloatTypes,
                is_flat ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, groups}, kWhence);
    find_zero_points(place, tensors);
    place.read_column_groups(".weight_g_idx", tensors);
    choose_reading(tensors);
    tensors.is_in_place = !tensors.floats && scale.row_stride == 0 &&
                          tensors.group_size == tensors.stored_group && bits == tensors.bits &&
                          is_stream(tensors);
    return tensors;
  }

  std::vector<int32_t> read_words(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                  int64_t row_begin, int64_t row_end) const override {
    const int64_t count = row_end - row_begin, width = tensors.numbers->shape[1];
    std::vector<int32_t> words =
        read_elements<int32_t>(checkpoint, *tensors.numbers, row_begin * width, count * width);
    const int bits = tensors.stored_bits;
    if (bits == tensors.bits && is_stream(tensors)) return words;
    const BitPacking packing = packing_of(width, tensors.cols, bits);
    std::vector<uint8_t> numbers(static_cast<size_t>(count * tensors.cols));
    for (int64_t row = 0; row < count; ++row) {
      unpack_numbers(reinterpret_cast<const uint32_t*>(words.data()) + row * width, 1, 0,
                     tensors.cols, bits, packing, numbers.data() + row * tensors.cols);
    }
    return pack_wider_numbers(numbers, count, tensors);
  }

  std::vector<float> read_scales(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    const int64_t groups = tensors.stored_groups();
    return read_finite(checkpoint, *tensors.scales, row_begin * groups,
                       (row_end - row_begin) * groups);
  }

  std::vector<int8_t> read_zero_points(const Checkpoint& checkpoint,
                                       const QuantizedTensors& tensors, int64_t row_begin,
                                       int64_t row_end) const override {
    if (tensors.zero_points == nullptr) return {};
    const TensorInfo& info = *tensors.zero_points;
    const int bits = tensors.stored_bits, limit = 1 << (bits - 1);
    const int64_t groups = tensors.stored_groups(), count = row_end - row_begin;
    if (info.dtype == DType::kI8) {
      std::vector<int8_t> zero_points =
          read_elements<int8_t>(checkpoint, info, row_begin * groups, count * groups);
      for (size_t i = 0; i < zero_points.size(); ++i) {
        if (zero_points[i] >= -limit && zero_points[i] < limit) continue;
        refuse_element(
            checkpoint, info, row_begin * groups + static_cast<int64_t>(i),
            "is " + std::to_string(zero_points[i]) + "; expected " + range_text(-limit, limit - 1));
      }
      return zero_points;
    }
    // They are packed along the rows: read are the words of these, from where a row begins a word.
    const BitPacking packing = packing_of(info.shape[0], tensors.rows, bits);
    const bool is_padded = packing == BitPacking::kPadded;
    const int64_t unit_rows = is_padded ? 32 / bits : 32, unit_words = is_padded ? 1 : bits;
    const int64_t unit = row_begin / unit_rows, first_row = unit * unit_rows;
    const auto packed =
        read_elements<uint32_t>(checkpoint, info, unit * unit_words * groups,
                                packed_word_count(row_end - first_row, bits, packing) * groups);
    std::vector<int8_t> zero_points(static_cast<size_t>(count * groups));
    std::vector<uint8_t> column(static_cast<size_t>(count));
    for (int64_t group = 0; group < groups; ++group) {
      unpack_numbers(packed.data() + group, groups, row_begin - first_row, count, bits, packing,
                     column.data());
      for (int64_t row = 0; row < count; ++row) {
        zero_points[static_cast<size_t>(row * groups + group)] =
            static_cast<int8_t>(column[static_cast<size_t>(row)] - limit);
      }
    }
    return zero_points;
  }

 private:
  /// Says whether a row's numbers are one stream of bits, as those of 4 and 8 bits always are.
  bool is_stream(const QuantizedTensors& tensors) const {
    const int bits = tensors.stored_bits;
    return 32 % bits == 0 ||
           packing_of(tensors.numbers->shape[1], tensors.cols, bits) == BitPacking::kDense;
  }

  /// Says how so many words hold so many numbers.
  BitPacking packing_of(int64_t words, int64_t count, int bits) const {
    const bool may_be_dense = words == packed_word_count(count, bits, BitPacking::kDense);
    const bool may_be_padded = words == packed_word_count(count, bits, BitPacking::kPadded);
    if (may_be_dense && may_be_padded) return likely_;
    return may_be_dense ? BitPacking::kDense : BitPacking::kPadded;
  }

  static void find_zero_points(const ModulePlace& place, QuantizedTensors& tensors) {
    const int bits = tensors.stored_bits;
    const int64_t rows = tensors.rows, groups = tensors.stored_groups();
    const TensorInfo* info = place.find(".weight_zero_point");
    if (place.scheme.symmetric) {
      if (info == nullptr) return;
      throw_unsupported(file_of(place.checkpoint, *info) + ": tensor " + quote_text(info->name) +
                        " is not supported beside quantization_config's 'symmetric'; expected "
                        "symmetric groups without it");
    }
    if (info == nullptr) info = &place.require(".weight_zero_point");
    tensors.zero_points = info;
    if (info->dtype == DType::kI8) {
      place.check(*info, {DType::kI8}, {rows, groups}, kWhence);
      return;
    }
    const int64_t padded = packed_word_count(rows, bits, BitPacking::kPadded);
    const bool is_padded = info->shape == std::vector<int64_t>{padded, groups};
    const int64_t dense = packed_word_count(rows, bits, BitPacking::kDense);
    if (info->dtype != DType::kI32 ||
        info->shape != std::vector<int64_t>{is_padded ? padded : dense, groups}) {
      place.refuse(*info, "I32 (or I8 unpacked) " +
                              shape_text({is_padded ? padded : dense, groups}) + " from " +
                              std::string(kWhence));
    }
  }

  BitPacking likely_;
};

}  // namespace

const ModuleLayout& packed_layout() {
  static const PackedLayout layout(BitPacking::kDense);
  return layout;
}
const ModuleLayout& padded_layout() {
  static const PackedLayout layout(BitPacking::kPadded);
  return layout;
}

}  // namespace vitrine::checkpoint
