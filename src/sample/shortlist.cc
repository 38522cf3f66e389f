// SPDX-License-Identifier: Apache-2.0
#include "shortlist.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace vitrine {

namespace {

// Division by a temperature in this range keeps two logits apart that are kSlack apart, so that no
// tie appears between one that is on the list and one that is not.
constexpr float kLowestDivisor = 1e-3f, kHighestDivisor = 1e3f;
constexpr float kRelativeSlack = 0x1.0p-20f, kSlack = 1e-30f;
constexpr float kLargestLogit = 1e30f;

float with_slack(float limit) { return limit - std::abs(limit) * kRelativeSlack - kSlack; }

}  // namespace

void Shortlist::reserve(size_t vocabulary) {
  const size_t blocks = scan_blocks(vocabulary);
  if (block_maxima_.size() >= blocks) return;
  block_maxima_.resize(blocks);
  lane_maxima_.resize(blocks * kScanLanes);
  scratch_.resize(blocks * kScanLanes);
}

bool Shortlist::scan(std::span<const float> logits) {
  if (!scan_logits(logits, lane_maxima_.data())) return false;
  blocks_ = scan_blocks(logits.size());
  largest_ = kRuledOut;
  for (size_t block = 0; block < blocks_; ++block) {
    float largest = kRuledOut;
    for (size_t lane = 0; lane < kScanLanes; ++lane) {
      largest = std::max(largest, lane_maxima_[block * kScanLanes + lane]);
    }
    block_maxima_[block] = largest;
    largest_ = std::max(largest_, largest);
  }
  return true;
}

// At least k logits are as large as the k-th largest of any k groups' maxima.
float Shortlist::kth_largest_lane(size_t k) {
  const bool by_block = k * 4 <= blocks_;
  const std::vector<float>& maxima = by_block ? block_maxima_ : lane_maxima_;
  const size_t count = by_block ? blocks_ : blocks_ * kScanLanes;
  if (k * 2 > count) return kRuledOut;
  const auto end = std::copy_n(maxima.begin(), count, scratch_.begin());
  const auto kth = scratch_.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(scratch_.begin(), kth, end, std::greater<>());
  return *kth;
}

float Shortlist::lowest_kept(std::span<RoomStage* const> stages, const SampleContext& context) {
  double divisor = 1;
  for (RoomStage* stage : stages) {
    if (stage == nullptr) return kRuledOut;
    if (stage->is_idle(context)) continue;
    if (stage->divisor() > 0) {
      const float next = stage->divisor();
      if (divisor != 1 || next < kLowestDivisor || next > kHighestDivisor) return kRuledOut;
      divisor = static_cast<double>(next);
      continue;
    }
    if (stage->keeps_best() == 1) return with_slack(largest_);
    if (stage->keeps_best() > 0) return with_slack(kth_largest_lane(stage->keeps_best()));
    if (stage->keeps_within() < 0) return kRuledOut;
    // A few units of float's precision for what the division rounds.
    const double distance = stage->keeps_within() * divisor * (1 + 1e-6);
    return with_slack(with_slack(static_cast<float>(static_cast<double>(largest_) - distance)));
  }
  return kRuledOut;
}

bool Shortlist::may_take(std::span<RoomStage* const> stages, const SampleContext& context) {
  for (RoomStage* stage : stages) {
    if (stage == nullptr) return false;
    if (stage->is_idle(context) || stage->divisor() > 0) continue;
    return stage->keeps_best() > 0 || stage->keeps_within() >= 0;
  }
  return false;
}

bool Shortlist::take(std::span<const float> logits, std::span<RoomStage* const> stages,
                     const SampleContext& context, Candidates& candidates) {
  if (!(std::abs(largest_) <= kLargestLogit)) return false;
  const float lowest = lowest_kept(stages, context);
  if (!(lowest > -kLargestLogit)) return false;
  std::vector<int32_t>& ids = id_storage(candidates);
  float* const kept_logits = candidates.logits_storage->data();
  size_t kept = 0;
  for (size_t block = 0; block < blocks_; ++block) {
    if (block_maxima_[block] < lowest) continue;
    const float* const maxima = &lane_maxima_[block * kScanLanes];
    size_t lanes[kScanLanes], count = 0;
    for (size_t lane = 0; lane < kScanLanes; ++lane) {
      if (maxima[lane] >= lowest) lanes[count++] = lane;
    }
    const size_t end = std::min((block + 1) * kScanBlock, logits.size());
    for (size_t first = block * kScanBlock; first < end; first += kScanLanes) {
      for (size_t i = 0; i < count; ++i) {
        const size_t id = first + lanes[i];
        if (id >= end || logits[id] < lowest) continue;
        kept_logits[kept] = logits[id];
        ids[kept++] = static_cast<int32_t>(id);
      }
    }
  }
  candidates.logits = std::span<float>(kept_logits, kept);
  candidates.ids = std::span<int32_t>(ids).first(kept);
  return true;
}

}  // namespace vitrine
