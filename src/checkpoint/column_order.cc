// SPDX-License-Identifier: Apache-2.0
// Act-order: groups whose columns do not lie side by side. Sorted by group they do, and a module is
// integers in groups as any other, with the order of its columns beside it.
#include "column_order.h"

#include <algorithm>
#include <utility>

#include "module_layout.h"
#include "quant/pack.h"
#include "text.h"

namespace vitrine::checkpoint {

void ModulePlace::read_column_groups(std::string_view suffix, QuantizedTensors& tensors) const {
  const TensorInfo* info = find(suffix);
  if (info == nullptr) return;
  check(*info, {DType::kI32}, {tensors.cols}, "the numbers beside it");
  tensors.others.push_back(info);
  auto groups = std::make_shared<std::vector<int32_t>>(
      read_elements<int32_t>(checkpoint, *info, 0, tensors.cols));
  // compressed-tensors writes -1 everywhere where it keeps the order.
  if (std::ranges::all_of(*groups, [](int32_t group) { return group == -1; })) return;
  bool is_ordered = true;
  for (int64_t col = 0; col < tensors.cols; ++col) {
    const int32_t group = (*groups)[static_cast<size_t>(col)];
    if (group < 0 || group >= tensors.stored_groups()) {
      refuse_element(checkpoint, *info, col,
                     "is " + std::to_string(group) + "; expected one of the " +
                         std::to_string(tensors.stored_groups()) +
                         " groups of quantization_config");
    }
    is_ordered = is_ordered && group == col / tensors.stored_group;
  }
  if (!is_ordered) tensors.column_groups = std::move(groups);
}

namespace {

/// Returns how many columns each group of the file has.
std::vector<int64_t> count_columns(const QuantizedTensors& tensors) {
  std::vector<int64_t> counts(static_cast<size_t>(tensors.stored_groups()));
  for (const int32_t group : *tensors.column_groups) ++counts[static_cast<size_t>(group)];
  return counts;
}

}  // namespace

bool has_whole_groups(const QuantizedTensors& tensors) {
  int64_t left = tensors.cols;
  for (const int64_t count : count_columns(tensors)) {
    if (count != std::min(tensors.stored_group, left)) return false;
    left -= count;
  }
  return true;
}

std::vector<int32_t> column_order(const QuantizedTensors& tensors) {
  const std::vector<int32_t>& groups = *tensors.column_groups;
  std::vector<int64_t> places;
  int64_t first = 0;
  for (const int64_t count : count_columns(tensors)) {
    places.push_back(first);
    first += count;
  }
  std::vector<int32_t> order(groups.size());
  for (size_t col = 0; col < groups.size(); ++col) {
    const int64_t place = places[static_cast<size_t>(groups[col])]++;
    order[static_cast<size_t>(place)] = static_cast<int32_t>(col);
  }
  return order;
}

QuantizedTensors sorted(const QuantizedTensors& tensors) {
  QuantizedTensors copy = tensors;
  copy.floats.reset();
  copy.widened_for = {};
  copy.group_size = kernel_group(tensors.stored_group, tensors.cols);
  return copy;
}

namespace {

/// Puts the numbers of one row of words, each a whole number of which a word holds, in an order.
template <int bits>
void sort_words(const uint32_t* from, std::span<const int32_t> order, uint32_t* to) {
  constexpr uint32_t kPerWord = 32 / bits, kMask = (1U << bits) - 1;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto col = static_cast<uint32_t>(order[i]);
    const uint32_t number = from[col / kPerWord] >> (bits * (col % kPerWord)) & kMask;
    to[i / kPerWord] |= number << (bits * (i % kPerWord));
  }
}

}  // namespace

std::vector<int32_t> sort_columns(const std::vector<int32_t>& words, int64_t rows,
                                  const QuantizedTensors& tensors) {
  const std::vector<int32_t> order = column_order(tensors);
  if (tensors.bits != 4 && tensors.bits != 8) {
    const std::vector<int8_t> numbers = unpack_int32(words, rows, tensors.cols, tensors.bits);
    std::vector<int8_t> sorted(numbers.size());
    for (size_t first = 0; first < numbers.size(); first += order.size()) {
      for (size_t i = 0; i < order.size(); ++i) {
        sorted[first + i] = numbers[first + static_cast<size_t>(order[i])];
      }
    }
    return pack_int32(sorted, rows, tensors.cols, tensors.bits);
  }
  const auto width = static_cast<size_t>(packed_words(tensors.cols, tensors.bits));
  std::vector<int32_t> sorted(words.size());
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    const auto* from = reinterpret_cast<const uint32_t*>(words.data()) + row * width;
    auto* to = reinterpret_cast<uint32_t*>(sorted.data()) + row * width;
    tensors.bits == 4 ? sort_words<4>(from, order, to) : sort_words<8>(from, order, to);
  }
  return sorted;
}

void match_orders(QuantizedTensors& tensors, const std::optional<QuantizedTensors>& partner) {
  const bool fits = partner && is_sortable(*partner) &&
                    *partner->column_groups == *tensors.column_groups &&
                    sorted(*partner).group_size == sorted(tensors).group_size;
  if (!fits) tensors.widened_for = "gate and up of unlike column orders or groups";
}

}  // namespace vitrine::checkpoint
