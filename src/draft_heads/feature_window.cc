// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/feature_window.h"

#include <algorithm>

namespace vitrine::draft_heads {

FeatureWindow::FeatureWindow(int64_t width, int64_t capacity, int64_t prompt_tokens)
    : width_(width),
      capacity_(capacity),
      prompt_end_(prompt_tokens),
      rows_(static_cast<size_t>(width * capacity)),
      prompt_row_(static_cast<size_t>(width)) {}

void FeatureWindow::keep_prompt_row() {
  if (end() != prompt_end_) return;
  std::copy_n(slot(count_ - 1), width_, prompt_row_.data());
  has_prompt_row_ = true;
}

void FeatureWindow::drop_before(int64_t position) {
  const int64_t dropped = std::min(position - first_, count_);
  if (dropped <= 0) return;
  std::copy(slot(dropped), slot(count_), slot(0));
  first_ += dropped;
  count_ -= dropped;
}

void FeatureWindow::begin_at(int64_t position) {
  first_ = position;
  count_ = 0;
}

void FeatureWindow::truncate(int64_t length) {
  if (length >= end()) return;
  if (length > first_) {
    count_ = length - first_;
    return;
  }
  begin_at(std::max<int64_t>(length - 1, 0));
  if (length != prompt_end_ || !has_prompt_row_) return;
  std::copy_n(prompt_row_.data(), width_, append());
}

}  // namespace vitrine::draft_heads
