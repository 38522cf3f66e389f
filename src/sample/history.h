// SPDX-License-Identifier: Apache-2.0
// How stages that look back read the sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vitrine/sampler_stage.h"

namespace vitrine {

/// True where a constraint forced the token history[index].
inline bool is_forced_token(const SampleContext& context, size_t index) {
  if (context.forced_positions.empty()) return false;
  const int64_t position = context.position - static_cast<int64_t>(context.history.size() - index);
  return std::ranges::binary_search(context.forced_positions, position);
}

/// The first index of the window of the last `window` tokens; below 0: all of them.
inline size_t window_begin(const SampleContext& context, int64_t window) {
  const size_t size = context.history.size();
  const bool is_all = window < 0 || static_cast<size_t>(window) >= size;
  return is_all ? 0 : size - static_cast<size_t>(window);
}

/// A number for each token of the vocabulary, 0 but for a few: set for a step, then cleared.
class TokenNumbers {
 public:
  /// Room for a vocabulary; keeps what is there.
  void reserve(size_t vocabulary) {
    if (numbers_.size() < vocabulary) numbers_.resize(vocabulary);
    if (touched_.capacity() < vocabulary) touched_.reserve(vocabulary);
  }
  bool holds(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < numbers_.size(); }
  int32_t& at(int32_t id) {
    int32_t& number = numbers_[static_cast<size_t>(id)];
    if (number == 0) touched_.push_back(id);
    return number;
  }
  int32_t get(int32_t id) const { return numbers_[static_cast<size_t>(id)]; }
  const std::vector<int32_t>& touched() const { return touched_; }
  void clear() {
    for (const int32_t id : touched_) numbers_[static_cast<size_t>(id)] = 0;
    touched_.clear();
  }

 private:
  std::vector<int32_t> numbers_;  // [vocabulary]
  std::vector<int32_t> touched_;  // ids whose number was asked for while 0
};

}  // namespace vitrine
