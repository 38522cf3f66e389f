// SPDX-License-Identifier: Apache-2.0
#include "module_layout.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "column_order.h"
#include "quant/pack.h"
#include "text.h"

namespace vitrine::checkpoint {

std::string partner_of(const std::string& module) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {".gate_proj", ".up_proj"}, {".up_proj", ".gate_proj"}, {".w1", ".w3"}, {".w3", ".w1"}};
  for (const auto& [suffix, other] : kPairs) {
    if (module.ends_with(suffix)) {
      return module.substr(0, module.size() - suffix.size()) + std::string(other);
    }
  }
  return {};
}

const std::string& file_of(const Checkpoint& checkpoint, const TensorInfo& info) {
  return checkpoint.weight_files()[static_cast<size_t>(info.file_index)];
}

void refuse_tensor(const std::string& path, const TensorInfo& info, const std::string& expected) {
  const bool is_part = !info.fused_from.empty() && info.fused_from != info.name;
  throw_bad_file(path + ": tensor " + quote_text(info.name) +
                 (is_part ? ", a part of " + quote_text(info.fused_from) + "," : "") + " is " +
                 std::string(dtype_name(info.dtype)) + " " + shape_text(info.shape) +
                 "; expected " + expected);
}

void refuse_element(const Checkpoint& checkpoint, const TensorInfo& info, int64_t element,
                    const std::string& is) {
  throw_bad_file(file_of(checkpoint, info) + ": element " + std::to_string(element) +
                 " of tensor " + quote_text(info.name) + " " + is);
}

bool is_matrix(const TensorInfo& info, std::initializer_list<DType> dtypes) {
  return std::ranges::find(dtypes, info.dtype) != dtypes.end() && info.shape.size() == 2 &&
         info.shape[0] >= 1 && info.shape[1] >= 1;
}

const TensorInfo* ModulePlace::find(std::string_view suffix) const {
  return checkpoint.find(base + std::string(suffix));
}

const TensorInfo& ModulePlace::require(std::string_view suffix) const {
  if (!numbers.fused_from.empty() && find(suffix) == nullptr) {
    throw_bad_file(file_of(checkpoint, numbers) + ": the quantized experts " +
                   quote_text(numbers.fused_from) + " have no " + quote_text(suffix) +
                   "; expected a tensor of that name's ending beside them, one part an expert");
  }
  return checkpoint.require(base + std::string(suffix));
}

void ModulePlace::refuse(const TensorInfo& info, const std::string& expected) const {
  refuse_tensor(file_of(checkpoint, info), info, expected);
}

void ModulePlace::check(const TensorInfo& info, std::initializer_list<DType> dtypes,
                        const std::vector<int64_t>& shape, std::string_view whence) const {
  if (std::ranges::find(dtypes, info.dtype) != dtypes.end() && info.shape == shape) return;
  std::string names;
  for (const DType dtype : dtypes) {
    const bool is_last = &dtype == dtypes.end() - 1;
    names += (names.empty() ? "" : is_last ? " or " : ", ") + std::string(dtype_name(dtype));
  }
  refuse(info, names + " " + shape_text(shape) + " from " + std::string(whence));
}

QuantizedTensors ModulePlace::tensors(int64_t rows, int64_t cols) const {
  QuantizedTensors found;
  found.number_format = scheme.number_format;
  found.rows = rows;
  found.cols = cols;
  found.numbers = &numbers;
  found.format = scheme.format;
  found.stored_bits = scheme.bits;
  found.stored_group = scheme.group_size == 0 ? cols : scheme.group_size;
  found.layout = scheme.layout;
  return found;
}

namespace {

[[noreturn]] void refuse_integers(const QuantizedTensors& tensors) {
  throw Error(ErrorKind::kInvalidArgument, "tensor " + quote_text(tensors.numbers->name) +
                                               " holds no integers; expected to be read as floats");
}

}  // namespace

std::vector<int32_t> ModuleLayout::read_words(const Checkpoint&, const QuantizedTensors& tensors,
                                              int64_t, int64_t) const {
  refuse_integers(tensors);
}

std::vector<float> ModuleLayout::read_scales(const Checkpoint&, const QuantizedTensors& tensors,
                                             int64_t, int64_t) const {
  refuse_integers(tensors);
}

std::vector<int8_t> ModuleLayout::read_zero_points(const Checkpoint&, const QuantizedTensors&,
                                                   int64_t, int64_t) const {
  return {};
}

std::vector<std::byte> ModuleLayout::read_blocks(const Checkpoint&, const QuantizedTensors& tensors,
                                                 int64_t, int64_t) const {
  throw Error(ErrorKind::kInvalidArgument, "tensor " + quote_text(tensors.numbers->name) +
                                               " holds no blocks; expected to be read as floats");
}

std::vector<float> ModuleLayout::read_floats(const Checkpoint& checkpoint,
                                             const QuantizedTensors& tensors, int64_t row_begin,
                                             int64_t row_end) const {
  const int64_t count = row_end - row_begin, groups = tensors.stored_groups();
  const std::vector<int8_t> numbers = unpack_int32(
      read_words(checkpoint, tensors, row_begin, row_end), count, tensors.cols, tensors.bits);
  const std::vector<float> scales = read_scales(checkpoint, tensors, row_begin, row_end);
  const std::vector<int8_t> zero_points = read_zero_points(checkpoint, tensors, row_begin, row_end);
  const std::vector<int32_t>* const order = tensors.column_groups.get();
  std::vector<float> values(numbers.size());
  size_t i = 0;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t col = 0; col < tensors.cols; ++col, ++i) {
      const int64_t group =
          order != nullptr ? (*order)[static_cast<size_t>(col)] : col / tensors.stored_group;
      const auto at = static_cast<size_t>(row * groups + group);
      const int zero_point = zero_points.empty() ? 0 : zero_points[at];
      values[i] = scales[at] * static_cast<float>(numbers[i] - zero_point);
    }
  }
  return values;
}

int kernel_group(int64_t stored, int64_t cols) {
  constexpr int kLargest = 128;
  const bool is_whole_row = stored >= cols;
  if (is_whole_row && stored != 64 && stored != 32) return kLargest;
  for (const int group : {kLargest, 64, 32}) {
    if (stored % group == 0) return group;
  }
  return 0;
}

void drop_filling(QuantizedTensors& tensors, int64_t rows) {
  const int64_t multiple = tensors.layout->row_multiple();
  if (rows > 0 && tensors.rows == (rows + multiple - 1) / multiple * multiple) tensors.rows = rows;
}

void choose_reading(QuantizedTensors& tensors) {
  tensors.scale_dtype = tensors.scales->dtype;
  tensors.bits = tensors.stored_bits == 3 ? 3 : tensors.stored_bits <= 4 ? 4 : 8;
  tensors.group_size = kernel_group(tensors.stored_group, tensors.cols);
  if (tensors.column_groups != nullptr) {
    tensors.widened_for =
        has_whole_groups(tensors) ? kActOrder : "its groups of unlike sizes (g_idx)";
  }
  if (tensors.group_size == 0) {
    tensors.widened_for = "its groups, which are no multiple of 32 columns";
  }
  if (tensors.widened_for.empty()) return;
  tensors.floats = DType::kF32;
  tensors.group_size = static_cast<int>(tensors.stored_group);
}

int64_t packed_word_count(int64_t count, int bits, BitPacking packing) {
  if (packing == BitPacking::kPadded) {
    const int64_t per_word = 32 / bits;
    return (count + per_word - 1) / per_word;
  }
  if (packing == BitPacking::kPlanes) return (count + 31) / 32 * bits;
  return (count * bits + 31) / 32;
}

namespace {

/// Returns number i of a line of words of planes: the widths 4, 2 and 1 that make up `bits`, or 8.
uint32_t number_of_planes(const uint32_t* words, int64_t stride, int64_t i, int bits) {
  const uint32_t* block = words + i / 32 * bits * stride;
  const int64_t in = i % 32;
  uint32_t number = 0;
  for (int done = 0; done < bits;) {
    const int left = bits - done;
    const int width = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const int64_t per_word = 32 / width;
    const uint32_t word = block[(done + in / per_word) * stride];
    number |= (word >> (width * (in % per_word)) & ((1U << width) - 1)) << done;
    done += width;
  }
  return number;
}

}  // namespace

void unpack_numbers(const uint32_t* words, int64_t stride, int64_t first, int64_t count, int bits,
                    BitPacking packing, uint8_t* out) {
  const uint32_t mask = (1U << bits) - 1;
  const int64_t per_word = 32 / bits;
  for (int64_t i = first; i < first + count; ++i) {
    uint32_t number = 0;
    if (packing == BitPacking::kPlanes) {
      number = number_of_planes(words, stride, i, bits);
    } else if (packing == BitPacking::kPadded) {
      number = words[i / per_word * stride] >> (bits * (i % per_word)) & mask;
    } else {
      const int64_t bit = i * bits, shift = bit % 32;
      number = words[bit / 32 * stride] >> shift;
      if (shift + bits > 32) number |= words[(bit / 32 + 1) * stride] << (32 - shift);
      number &= mask;
    }
    *out++ = static_cast<uint8_t>(number);
  }
}

std::vector<int32_t> pack_wider_numbers(std::span<const uint8_t> numbers, int64_t rows,
                                        const QuantizedTensors& tensors) {
  const int half = 1 << (tensors.stored_bits - 1);
  std::vector<int8_t> values;
  values.reserve(numbers.size());
  for (const uint8_t number : numbers) values.push_back(static_cast<int8_t>(number - half));
  return pack_int32(values, rows, tensors.cols, tensors.bits);
}

std::vector<uint32_t> read_word_columns(const Checkpoint& checkpoint, const TensorInfo& info,
                                        int64_t begin, int64_t end) {
  const int64_t lines = info.shape[0], width = info.shape[1], count = end - begin;
  std::vector<uint32_t> columns(static_cast<size_t>(lines * count));
  const std::span<std::byte> out = std::as_writable_bytes(std::span(columns));
  const auto line_bytes = static_cast<size_t>(count) * sizeof(uint32_t);
  for (int64_t line = 0; line < lines; ++line) {
    checkpoint.read(info, static_cast<uint64_t>(line * width + begin) * sizeof(uint32_t),
                    out.subspan(static_cast<size_t>(line) * line_bytes, line_bytes));
  }
  return columns;
}

std::vector<float> read_finite(const Checkpoint& checkpoint, const TensorInfo& info, int64_t first,
                               int64_t count) {
  const auto size = static_cast<int64_t>(dtype_size(info.dtype));
  const auto stored = read_elements<std::byte>(checkpoint, info, first * size, count * size);
  std::vector<float> values(static_cast<size_t>(count));
  widen_to_f32(stored.data(), info.dtype, count, values.data());
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[static_cast<size_t>(i)])) continue;
    refuse_element(checkpoint, info, first + i, "is not finite; expected a number");
  }
  return values;
}

std::vector<float> read_finite_columns(const Checkpoint& checkpoint, const TensorInfo& info,
                                       int64_t begin, int64_t end) {
  const int64_t lines = info.shape[0], width = info.shape[1], count = end - begin;
  std::vector<float> values(static_cast<size_t>(lines * count));
  for (int64_t line = 0; line < lines; ++line) {
    const std::vector<float> row = read_finite(checkpoint, info, line * width + begin, count);
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i * lines + line)] = row[static_cast<size_t>(i)];
    }
  }
  return values;
}

}  // namespace vitrine::checkpoint
