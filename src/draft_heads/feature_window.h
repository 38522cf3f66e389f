// SPDX-License-Identifier: Apache-2.0
// What a model's layers made of the newest positions of a text, and of its prompt's last one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vitrine::draft_heads {

/// Rows of positions first() to end() - 1. Allocates when it is made and copied alone.
class FeatureWindow {
 public:
  /// `prompt_tokens`: the row of the position before that one is kept besides, for another attempt
  /// at the answer.
  FeatureWindow(int64_t width, int64_t capacity, int64_t prompt_tokens);

  int64_t first() const { return first_; }
  int64_t end() const { return first_ + count_; }
  uint64_t bytes() const { return (rows_.size() + prompt_row_.size()) * sizeof(float); }
  bool is_full() const { return count_ == capacity_; }
  const float* row(int64_t position) const { return slot(position - first_); }
  /// Room for the row of the next position, to be filled before keep_prompt_row(). Not where it is
  /// full.
  float* append() { return slot(count_++); }
  /// Keeps the last row besides, where it is the prompt's last.
  void keep_prompt_row();
  /// Drops the rows before `position`.
  void drop_before(int64_t position);
  /// Drops all rows; the next one is that of `position`.
  void begin_at(int64_t position);
  /// The text has lost its tokens from `length` on. Where row length - 1 is known, it is the last
  /// one now; else there is none, and the next one is that row.
  void truncate(int64_t length);

 private:
  float* slot(int64_t index) { return rows_.data() + index * width_; }
  const float* slot(int64_t index) const { return rows_.data() + index * width_; }

  int64_t width_, capacity_, prompt_end_;
  int64_t first_ = 0, count_ = 0;
  bool has_prompt_row_ = false;
  std::vector<float> rows_, prompt_row_;
};

}  // namespace vitrine::draft_heads
