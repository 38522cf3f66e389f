// SPDX-License-Identifier: Apache-2.0
// Private to the library: columns of a group that do not lie side by side (act-order).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Why a module is floats whose columns, once they are sorted by group, are integers in groups.
inline constexpr std::string_view kActOrder = "the order of its columns (act-order)";

/// Says whether rows that are floats read as integers, too, with their columns sorted by group.
inline bool is_sortable(const QuantizedTensors& tensors) {
  return tensors.floats && tensors.widened_for == kActOrder;
}
/// Says whether rows read as integers with their columns sorted.
inline bool is_sorted(const QuantizedTensors& tensors) {
  return tensors.column_groups != nullptr && !tensors.floats;
}
/// Returns the like of a sortable module that is sorted: for kernels that take its input in the
/// order of its columns.
QuantizedTensors sorted(const QuantizedTensors& tensors);
/// Says whether all groups of a module with column_groups are whole, but for the last one.
bool has_whole_groups(const QuantizedTensors& tensors);
/// Returns the columns of the file of such a module, sorted by group (stable).
std::vector<int32_t> column_order(const QuantizedTensors& tensors);
/// Sorts the columns of rows of words of a module that is sorted.
std::vector<int32_t> sort_columns(const std::vector<int32_t>& words, int64_t rows,
                                  const QuantizedTensors& tensors);
/// Makes a sortable gate or up one that is not where its partner has another order: one kernel
/// takes both.
void match_orders(QuantizedTensors& tensors, const std::optional<QuantizedTensors>& partner);

}  // namespace vitrine::checkpoint
