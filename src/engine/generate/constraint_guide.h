// SPDX-License-Identifier: Apache-2.0
// Leads one answer through its constraint: the mask of each token, the room that is left, counts.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "engine/generate/jump_forward.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

class ConstraintGuide {
 public:
  /// `end_ids`: ids that end the sequence. `banned`: ids that never come; they leave every mask.
  /// `ban`: SamplerOptions::ban, which outlives the guide; the last id of a sequence leaves the
  /// mask where its others stand before it, in the answer or in `past`, then `prompt`.
  /// `room`: how many tokens the answer may have. Throws
  /// kInvalidArgument where the constraint is over another vocabulary, or is not known to be met
  /// within that room.
  ConstraintGuide(Constraint& constraint, int32_t vocab_size, std::vector<int32_t> end_ids,
                  std::vector<int32_t> banned, std::span<const std::vector<int32_t>> ban,
                  std::span<const int32_t> past, std::span<const int32_t> prompt, int64_t room);

  enum class Next : uint8_t {
    kToken,     ///< mask() says which
    kComplete,  ///< the answer is whole and nothing can follow
    kDeadlock,  ///< no token leads on
  };
  /// Makes the mask of the next token.
  Next prepare();
  std::span<const uint32_t> mask() const { return mask_; }
  const ConstraintDecision& decision() const { return decision_; }
  /// Moves on by a token that was chosen under the mask, as the step reported it.
  void accept(int32_t token, const ConstraintDecision& decided);

  /// Moves on by the tokens that the constraint forces at the place of prepare(), `most` at most
  /// and within the room that is left, and returns them. The span is valid until the next call.
  std::span<const int32_t> jump(JumpForward& jump, std::span<const int32_t> answer, int64_t most);
  /// Takes back the last tokens of a jump.
  void take_back(size_t count);

  /// Counts an answer that the host's validator refused; returns how many it has refused.
  int64_t reject_answer() { return ++counts_.rejected_answers; }
  /// Takes everything back: another attempt begins.
  void restart();
  /// Follows a token of an attempt without a mask; returns false where the constraint refuses it.
  bool follow(int32_t token);
  /// Returns true where the answer is whole and nothing can follow.
  bool is_at_its_end();
  bool is_complete() const { return constraint_.is_complete(); }
  /// Returns true where the limit took away a token behind which an end is known, at some token of
  /// this attempt or where the attempt ended.
  bool was_limited() const { return was_limited_; }
  /// Returns where the constraint stands; for kDeadlock what was left of the mask, too.
  ConstraintFailure failure(ConstraintFailure::Kind kind);
  /// Returns the message of what the constraint threw, behind the tokens that it had taken by then;
  /// empty where it threw nothing.
  const std::string& problem() const { return problem_; }
  const ConstraintCounts& counts() const { return counts_; }

 private:
  friend class DraftWalk;
  /// Runs what asks the constraint, and remembers what that throws.
  template <typename Work>
  auto asking(Work&& work) {
    try {
      return work();
    } catch (const std::exception& error) {
      problem_ = error.what();
      throw;
    }
  }
  void make_mask();
  bool limit_takes_more();
  void move_on(int32_t token);
  bool has_only_ends() const;
  void roll_back(size_t count);
  int64_t left() const { return std::max<int64_t>(room_ - accepted_, 0); }
  void take_out_banned(std::span<uint32_t> mask) const;

  Constraint& constraint_;
  std::vector<int32_t> end_ids_, banned_;
  std::span<const std::vector<int32_t>> ban_;  // empty where no sequence has two ids
  std::vector<int32_t> recent_;  // the tokens that ban_ looks at; kept where there is a ban_
  size_t before_ = 0;            // how many of recent_ stand before the answer
  std::vector<uint32_t> mask_;
  std::vector<uint32_t> unlimited_;  // what the mask allows at any limit, where that was asked for
  int64_t room_;
  int32_t accepted_ = 0;
  bool has_bound_;
  int64_t allowed_ = 0, in_time_ = 0;  // tokens of the mask, before and behind the limit
  bool is_limited_ = false;            // some of the tokens that left the mask did so for the limit
  bool was_limited_ = false;           // is_limited_ was true at a token of this attempt
  std::string problem_;
  ConstraintDecision decision_;
  ConstraintCounts counts_;
};

}  // namespace vitrine::engine
