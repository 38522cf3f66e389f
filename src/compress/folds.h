// SPDX-License-Identifier: Apache-2.0
// Private to the room: channels that are made smaller in one place and larger in another, so that a
// model computes the same from weights that lose less.
#pragma once

#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::compress {

/// What a tensor of the source is multiplied with. Of a vector each number is a row.
struct Fold {
  std::vector<float> rows;     ///< a factor for each row; empty: one
  std::vector<float> columns;  ///< a factor for each column; empty: one
  bool adds_one = false;       ///< the factors meet 1 + what the tensor holds

  float factor(int64_t row, int64_t column) const {
    const float of_row = rows.empty() ? 1.0f : rows[static_cast<size_t>(row)];
    return columns.empty() ? of_row : of_row * columns[static_cast<size_t>(column)];
  }
};

/// The folds of a model, by the names of its tensors.
class Folds {
 public:
  /// Returns null for a tensor that stays as it is.
  const Fold* find(const std::string& tensor) const {
    const auto found = folds_.find(tensor);
    return found == folds_.end() ? nullptr : &found->second;
  }
  /// Returns the tensors that do not, in order.
  std::vector<std::string> names() const;
  /// Multiplies the rows of a tensor, or its columns, with factors, beside what it has.
  void multiply_rows(const std::string& tensor, std::span<const float> factors);
  void multiply_columns(const std::string& tensor, std::span<const float> factors);
  void add_one(const std::string& tensor) { folds_[tensor].adds_one = true; }
  /// Has a tensor be folded so, whatever it was before.
  void set(const std::string& tensor, Fold fold) { folds_[tensor] = std::move(fold); }
  /// Returns the tensors whose folds were multiplied since the last call, in order.
  std::vector<std::string> take_changed();

 private:
  std::unordered_map<std::string, Fold> folds_;
  std::set<std::string> changed_;
};

/// Says whether a fold has as many factors as the tensor has rows and columns, or none; false for a
/// tensor that is not there.
bool fits_tensor(const Fold& fold, const TensorInfo* tensor);

/// Multiplies rows [first_row, first_row + count) of `columns` values each with their factors.
void apply_fold(const Fold& fold, int64_t first_row, int64_t columns, std::span<float> values);
/// Divides all rows of `columns` values each by their factors.
void undo_fold(const Fold& fold, int64_t columns, std::span<float> values);

}  // namespace vitrine::compress
