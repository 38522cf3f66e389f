// SPDX-License-Identifier: Apache-2.0
// The most probable tokens of a row, without putting the whole vocabulary in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace vitrine {

/// Finds the tokens with the largest logits. Keeps its room from row to row. Not thread-safe.
class BestTokens {
 public:
  /// Returns the ids of the `count` largest logits, the largest first and the lower id first
  /// of equal ones; all ids where there are fewer. NaN is not among them. The result holds until
  /// the next call.
  std::span<const int32_t> find(std::span<const float> logits, size_t count);

 private:
  float lower_bound(std::span<const float> logits, size_t count);

  std::vector<float> lane_maxima_;  // [blocks * lanes]
  std::vector<float> sorted_;       // of these
  std::vector<int32_t> ids_;
};

}  // namespace vitrine
