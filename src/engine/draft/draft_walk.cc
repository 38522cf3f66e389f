// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_walk.h"

#include <algorithm>
#include <exception>
#include <string>

namespace vitrine::engine {

DraftMasks::Entry& DraftMasks::next() {
  if (count_ == all_.size()) all_.emplace_back();
  return all_[count_++];
}

void DraftMasks::begin(std::span<const uint32_t> mask, const ConstraintDecision& decision) {
  count_ = 0;
  Entry& entry = next();
  entry.mask.assign(mask.begin(), mask.end());
  entry.decision = decision;
}

size_t DraftMasks::add(size_t place, int32_t token, std::span<const uint32_t> mask,
                       const ConstraintDecision& decision) {
  Entry& entry = next();
  entry.mask.assign(mask.begin(), mask.end());
  entry.decision = decision;
  entry.before = place;
  entry.token = token;
  entry.depth = all_[place].depth + 1;
  return count_ - 1;
}

size_t DraftMasks::behind(size_t place, int32_t token) const {
  for (size_t other = place + 1; other < count_; ++other) {
    if (all_[other].before == place && all_[other].token == token) return other;
  }
  return place;
}

bool DraftMasks::allows(size_t place, int32_t token) const {
  const std::vector<uint32_t>& mask = all_[place].mask;
  const auto id = static_cast<size_t>(token);
  return id / 32 < mask.size() && (mask[id / 32] >> (id % 32) & 1U) != 0;
}

DraftWalk::DraftWalk(ConstraintGuide& guide, const JumpForward* jump, DraftMasks& masks)
    : guide_(guide),
      jump_(jump),
      masks_(masks),
      accepted_(guide.accepted_),
      counts_(guide.counts_),
      was_limited_(guide.was_limited_),
      is_limited_(guide.is_limited_),
      allowed_(guide.allowed_),
      in_time_(guide.in_time_) {
  masks_.begin(guide.mask_, guide.decision_);
}

/// Says where the constraint stands, and takes back what it has beyond that.
void DraftWalk::stand_at(size_t place) {
  place_ = place;
  const int32_t kept = accepted_ + masks_.depth(place);
  guide_.roll_back(static_cast<size_t>(guide_.accepted_ - kept));
}

void DraftWalk::go_to(size_t place) {
  size_t shared = place_;
  while (masks_.above(place, masks_.depth(shared)) != shared) shared = masks_.before(shared);
  stand_at(shared);
  while (place_ != place) {
    const size_t next = masks_.above(place, masks_.depth(place_) + 1);
    if (!guide_.follow(masks_.token(next))) {
      throw Error(ErrorKind::kInternal, "the constraint refuses token " +
                                            std::to_string(masks_.token(next)) +
                                            ", which it took before");
    }
    place_ = next;
  }
}

bool DraftWalk::add(int32_t token, size_t place) {
  if (!masks_.allows(place, token)) return false;
  bool is_open = false;
  try {
    go_to(place);
    is_open = guide_.follow(token) && guide_.prepare() == ConstraintGuide::Next::kToken &&
              (jump_ == nullptr || !jump_->may_jump(guide_.mask_));
  } catch (const std::exception&) {
    is_open = false;
  }
  if (is_open) {
    place_ = masks_.add(place, token, guide_.mask_, guide_.decision_);
  } else {
    stand_at(place_);
  }
  return is_open;
}

void DraftWalk::end() {
  stand_at(0);
  const double seconds = guide_.counts_.mask_seconds;
  guide_.counts_ = counts_;
  guide_.counts_.mask_seconds = seconds;
  guide_.was_limited_ = was_limited_, guide_.is_limited_ = is_limited_;
  guide_.allowed_ = allowed_, guide_.in_time_ = in_time_;
  guide_.problem_.clear();
  ConstraintDecision first;
  std::ranges::copy(masks_.of(0, first), guide_.mask_.begin());
  guide_.decision_ = first;
}

}  // namespace vitrine::engine
