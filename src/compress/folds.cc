// SPDX-License-Identifier: Apache-2.0
#include "folds.h"

#include <algorithm>

namespace vitrine::compress {
namespace {

void multiply(std::vector<float>& factors, std::span<const float> more) {
  if (factors.empty()) factors.assign(more.size(), 1.0f);
  for (size_t i = 0; i < more.size(); ++i) factors[i] *= more[i];
}

}  // namespace

std::vector<std::string> Folds::names() const {
  std::vector<std::string> names;
  for (const auto& [name, fold] : folds_) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

void Folds::multiply_rows(const std::string& tensor, std::span<const float> factors) {
  multiply(folds_[tensor].rows, factors);
  changed_.insert(tensor);
}

void Folds::multiply_columns(const std::string& tensor, std::span<const float> factors) {
  multiply(folds_[tensor].columns, factors);
  changed_.insert(tensor);
}

std::vector<std::string> Folds::take_changed() {
  std::vector<std::string> changed(changed_.begin(), changed_.end());
  changed_.clear();
  return changed;
}

bool fits_tensor(const Fold& fold, const TensorInfo* tensor) {
  if (tensor == nullptr || tensor->shape.empty()) return false;
  const auto fits = [](const std::vector<float>& factors, int64_t size) {
    return factors.empty() || std::ssize(factors) == size;
  };
  return fits(fold.rows, tensor->shape.front()) && fits(fold.columns, tensor->shape.back());
}

void apply_fold(const Fold& fold, int64_t first_row, int64_t columns, std::span<float> values) {
  const float one = fold.adds_one ? 1.0f : 0.0f;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const float factor = fold.factor(first_row + at / columns, at % columns);
    values[i] = (values[i] + one) * factor - one;
  }
}

void undo_fold(const Fold& fold, int64_t columns, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    values[i] /= fold.factor(at / columns, at % columns);
  }
}

}  // namespace vitrine::compress
