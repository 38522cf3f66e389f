// SPDX-License-Identifier: Apache-2.0
// A first, cheap choice: the few tokens that the stages ahead could keep, without a look at the
// rest. It never changes a result: whatever could be kept is on the list.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "candidates.h"

namespace vitrine {

class Shortlist {
 public:
  void reserve(size_t vocabulary);
  /// Looks at every logit. False where one is NaN or +infinity.
  bool scan(std::span<const float> logits);
  /// The tokens that `stages` could keep (null: a host's own, of which nothing is known), in their
  /// order, behind a scan of the same logits. `logits` may be candidates.logits. False, and
  /// `candidates` is as it was, where the stages promise nothing or too much to gain by it.
  bool take(std::span<const float> logits, std::span<RoomStage* const> stages,
            const SampleContext& context, Candidates& candidates);

  /// False where take() is sure to be false: nothing that narrows stands behind what only scales.
  static bool may_take(std::span<RoomStage* const> stages, const SampleContext& context);

 private:
  /// -infinity where nothing is known.
  float lowest_kept(std::span<RoomStage* const> stages, const SampleContext& context);
  float kth_largest_lane(size_t k);

  size_t blocks_ = 0;
  float largest_ = 0;
  std::vector<float> lane_maxima_;   // [blocks x kScanLanes]
  std::vector<float> block_maxima_;  // [blocks]
  std::vector<float> scratch_;       // [blocks x kScanLanes]
};

}  // namespace vitrine
