// SPDX-License-Identifier: Apache-2.0
// Leads guesses through an answer's constraint before the pass that checks them, each path of a
// tree by itself, and keeps the masks of all places that the pass may come to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/generate/constraint_guide.h"

namespace vitrine::engine {

/// The places of a pass that brings guesses, each with the mask of what may stand there. Place 0 is
/// that of the first guess, and behind each guess is another place.
class DraftMasks {
 public:
  /// Forgets all places but the first.
  void begin(std::span<const uint32_t> mask, const ConstraintDecision& decision);
  /// Adds the place behind `token`, which stands at `place`; returns the new place.
  size_t add(size_t place, int32_t token, std::span<const uint32_t> mask,
             const ConstraintDecision& decision);
  /// Returns the place behind `token` at `place`; `place` itself where none was added.
  size_t behind(size_t place, int32_t token) const;
  std::span<const uint32_t> of(size_t place, ConstraintDecision& decision) const {
    decision = all_[place].decision;
    return all_[place].mask;
  }
  bool allows(size_t place, int32_t token) const;
  /// Returns how many guesses lead to a place.
  int32_t depth(size_t place) const { return all_[place].depth; }
  /// Return the place of the guess that leads to a place, and that guess.
  size_t before(size_t place) const { return all_[place].before; }
  int32_t token(size_t place) const { return all_[place].token; }
  /// Returns the place on the way to this one that `depth` guesses lead to; this one where no more
  /// lead to it.
  size_t above(size_t place, int32_t depth) const {
    while (all_[place].depth > depth) place = all_[place].before;
    return place;
  }

 private:
  struct Entry {
    std::vector<uint32_t> mask;
    ConstraintDecision decision;
    size_t before = 0;
    int32_t token = -1;
    int32_t depth = 0;
  };
  Entry& next();

  std::vector<Entry> all_;  // kept from pass to pass
  size_t count_ = 0;
};

/// One pass's guesses on their way through the constraint. Not thread-safe.
class DraftWalk {
 public:
  /// Begins where ConstraintGuide::prepare() left the guide. `jump`: what spells forced text, or
  /// null. `masks` begins anew.
  DraftWalk(ConstraintGuide& guide, const JumpForward* jump, DraftMasks& masks);
  /// Adds the place behind `token` at `place` where the mask there allows it, and where what
  /// follows is chosen: no end, no deadlock and (with `jump`) no text that may be forced. Returns
  /// false where one of these fails or the constraint throws: the answer may never come there.
  bool add(int32_t token, size_t place);
  /// Goes back to where the guide stood. Nothing of the guide has changed then.
  void end();

 private:
  void go_to(size_t place);
  void stand_at(size_t place);

  ConstraintGuide& guide_;
  const JumpForward* jump_;
  DraftMasks& masks_;
  size_t place_ = 0;  // where the constraint stands
  const int32_t accepted_;
  // What the guide held when the walk began:
  const ConstraintCounts counts_;
  const bool was_limited_, is_limited_;
  const int64_t allowed_, in_time_;
};

}  // namespace vitrine::engine
