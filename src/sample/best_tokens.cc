// SPDX-License-Identifier: Apache-2.0
#include "best_tokens.h"

#include <algorithm>
#include <limits>

#include "scan.h"

namespace vitrine {

/// Returns a logit that at least `count` of them reach: the largest of each lane of each block are
/// different tokens' logits, so that the one that is `count`th among them is reached by as many.
float BestTokens::lower_bound(std::span<const float> logits, size_t count) {
  const size_t lanes = scan_blocks(logits.size()) * kScanLanes;
  if (count > lanes) return -std::numeric_limits<float>::infinity();
  lane_maxima_.resize(lanes);
  if (!scan_logits(logits, lane_maxima_.data())) return -std::numeric_limits<float>::infinity();
  sorted_ = lane_maxima_;
  const auto place = sorted_.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::ranges::nth_element(sorted_, place, std::greater{});
  return *place;
}

std::span<const int32_t> BestTokens::find(std::span<const float> logits, size_t count) {
  count = std::min(count, logits.size());
  ids_.clear();
  if (count == 0) return ids_;
  const float bound = lower_bound(logits, count);
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] >= bound) ids_.push_back(static_cast<int32_t>(id));
  }
  count = std::min(count, ids_.size());  // a NaN is nobody's best
  const auto is_before = [&](int32_t a, int32_t b) {
    const float p = logits[static_cast<size_t>(a)], q = logits[static_cast<size_t>(b)];
    return p != q ? p > q : a < b;
  };
  std::ranges::partial_sort(ids_, ids_.begin() + static_cast<std::ptrdiff_t>(count), is_before);
  ids_.resize(count);
  return ids_;
}

}  // namespace vitrine
