// SPDX-License-Identifier: Apache-2.0
#include "engine/generate/constraint_guide.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <string>
#include <utility>

namespace vitrine::engine {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kNoLimit = INT32_MAX;  // less than Constraint::kNoTokenBound

int64_t count_bits(std::span<const uint32_t> mask) {
  int64_t count = 0;
  for (const uint32_t word : mask) count += std::popcount(word);
  return count;
}

}  // namespace

ConstraintGuide::ConstraintGuide(Constraint& constraint, int32_t vocab_size,
                                 std::vector<int32_t> end_ids, std::vector<int32_t> banned,
                                 std::span<const std::vector<int32_t>> ban,
                                 std::span<const int32_t> past, std::span<const int32_t> prompt,
                                 int64_t room)
    : constraint_(constraint),
      end_ids_(std::move(end_ids)),
      banned_(std::move(banned)),
      mask_((static_cast<size_t>(vocab_size) + 31) / 32),
      unlimited_(mask_.size()),
      room_(room) {
  if (constraint.vocab_size() != vocab_size) {
    throw Error(ErrorKind::kInvalidArgument,
                "the constraint is over " + std::to_string(constraint.vocab_size()) +
                    " ids and the model has " + std::to_string(vocab_size) +
                    "; make its token table from the model's tokenizer");
  }
  const uint32_t needed = constraint.tokens_to_finish();
  has_bound_ = needed != Constraint::kNoTokenBound;
  if (has_bound_ && needed > room) {
    throw Error(ErrorKind::kInvalidArgument,
                "an answer under this constraint needs " + std::to_string(needed) +
                    " tokens as far as is known, but there is room for " + std::to_string(room) +
                    "; raise the limit of new tokens (-n) or the context");
  }
  if (!has_bound_ && !banned_.empty() && constraint.looks_for_an_end()) {
    throw Error(ErrorKind::kInvalidArgument,
                "no answer under this constraint is known that tokens can spell which are not "
                "banned; ban fewer tokens");
  }
  size_t longest = 0;
  for (const std::vector<int32_t>& sequence : ban) longest = std::max(longest, sequence.size());
  if (longest < 2) return;  // single ids are in `banned`
  ban_ = ban;
  const size_t of_prompt = std::min(prompt.size(), longest - 1);
  const size_t of_past = std::min(past.size(), longest - 1 - of_prompt);
  before_ = of_past + of_prompt;
  recent_.reserve(before_ + static_cast<size_t>(std::max<int64_t>(room, 0)) + 1);
  recent_.assign(past.end() - static_cast<ptrdiff_t>(of_past), past.end());
  recent_.insert(recent_.end(), prompt.end() - static_cast<ptrdiff_t>(of_prompt), prompt.end());
}

void ConstraintGuide::take_out_banned(std::span<uint32_t> mask) const {
  const auto take_out = [mask](int32_t id) {
    const size_t word = static_cast<size_t>(id) / 32;
    if (id >= 0 && word < mask.size()) mask[word] &= ~(1U << (id % 32));
  };
  for (const int32_t id : banned_) take_out(id);
  const std::span<const int32_t> recent(recent_);
  for (const std::vector<int32_t>& sequence : ban_) {
    const size_t before = sequence.size() - 1;
    if (before > 0 && before <= recent.size() &&
        std::ranges::equal(recent.last(before), std::span(sequence).first(before))) {
      take_out(sequence.back());
    }
  }
}

void ConstraintGuide::move_on(int32_t token) {
  ++accepted_;
  if (!ban_.empty()) recent_.push_back(token);
}

bool ConstraintGuide::has_only_ends() const {
  int64_t ends = 0;
  for (const int32_t id : end_ids_) {
    ends += mask_[static_cast<size_t>(id) / 32] >> (id % 32) & 1U;
  }
  return count_bits(mask_) == ends;
}

bool ConstraintGuide::is_at_its_end() {
  return asking([this] {
    if (!constraint_.is_complete()) return false;
    constraint_.allowed_tokens(mask_);
    take_out_banned(mask_);
    return has_only_ends();
  });
}

void ConstraintGuide::make_mask() {
  is_limited_ = false;
  constraint_.allowed_tokens(mask_);
  allowed_ = in_time_ = count_bits(mask_);
  if (has_bound_ && allowed_ > 0 && !(constraint_.is_complete() && has_only_ends())) {
    std::ranges::copy(mask_, unlimited_.begin());
    constraint_.keep_within(mask_, static_cast<uint32_t>(std::min<int64_t>(left(), kNoLimit)));
    in_time_ = count_bits(mask_);
    is_limited_ = in_time_ < allowed_ && limit_takes_more();
  }
}

/// Whether the limit itself took a token out of the mask: one that might come (it is not banned),
/// and behind which an end is known. What leads to no known end goes at any limit.
bool ConstraintGuide::limit_takes_more() {
  constraint_.keep_within(unlimited_, kNoLimit);
  for (size_t word = 0; word < mask_.size(); ++word) unlimited_[word] &= ~mask_[word];
  take_out_banned(unlimited_);
  return std::ranges::any_of(unlimited_, [](uint32_t word) { return word != 0; });
}

ConstraintGuide::Next ConstraintGuide::prepare() {
  const Clock::time_point start = Clock::now();
  decision_ = {};
  asking([this] { make_mask(); });
  decision_.is_limited = is_limited_;
  // Behind the limit: what finishes in time is known of the constraint's own tokens.
  take_out_banned(mask_);
  Next next = Next::kToken;
  if (constraint_.is_complete() && has_only_ends()) {  // or nothing at all
    next = Next::kComplete;
    was_limited_ = was_limited_ || is_limited_;  // what could have followed
  } else if (count_bits(mask_) == 0) {
    next = Next::kDeadlock;
  }
  const std::chrono::duration<double> taken = Clock::now() - start;
  decision_.mask_microseconds = static_cast<float>(1e6 * taken.count());
  counts_.mask_seconds += taken.count();
  if (next == Next::kDeadlock) ++counts_.deadlocks;
  return next;
}

void ConstraintGuide::accept(int32_t token, const ConstraintDecision& decided) {
  if (!asking([&] { return constraint_.accept(token); })) {
    throw Error(ErrorKind::kInternal, "the constraint refuses token " + std::to_string(token) +
                                          ", which its own mask allows");
  }
  move_on(token);
  ++counts_.masks;
  counts_.forced += decided.is_forced() ? 1 : 0;
  counts_.rejections += decided.first_ruled_out ? 1 : 0;
  counts_.limited += decided.is_limited ? 1 : 0;
  was_limited_ = was_limited_ || decided.is_limited;
}

std::span<const int32_t> ConstraintGuide::jump(JumpForward& jump, std::span<const int32_t> answer,
                                               int64_t most) {
  if (most <= 0 || !jump.may_jump(mask_)) return {};
  const Clock::time_point start = Clock::now();
  const std::string forced = asking([this] { return constraint_.forced_text(); });
  const JumpForward::Spelling spelling =
      jump.spell(answer, forced, banned_, static_cast<size_t>(most));
  size_t count = 0, kept = 0;
  try {
    while (count < spelling.tokens.size() && follow(spelling.tokens[count])) ++count;
    kept = std::min(count, spelling.num_words);
    // What nothing can follow is taken to its end.
    const bool looks = count > kept && constraint_.is_complete();
    if (looks && is_at_its_end()) kept = count;
    roll_back(std::exchange(count, kept) - kept);
    if (has_bound_ && asking([this] { return constraint_.tokens_to_finish(); }) > left()) {
      roll_back(std::exchange(count, 0));
      kept = 0;
    }
    if (looks && kept == 0) prepare();  // the mask was lent to that look
  } catch (...) {
    roll_back(count);
    throw;
  }
  counts_.jumped += static_cast<int64_t>(kept);
  counts_.mask_seconds += std::chrono::duration<double>(Clock::now() - start).count();
  return spelling.tokens.first(kept);
}

void ConstraintGuide::roll_back(size_t count) {
  if (count == 0) return;
  constraint_.rollback(static_cast<int32_t>(count));
  accepted_ -= static_cast<int32_t>(count);
  if (!ban_.empty()) recent_.resize(recent_.size() - count);
}

void ConstraintGuide::take_back(size_t count) {
  roll_back(count);
  counts_.jumped -= static_cast<int64_t>(count);
}

void ConstraintGuide::restart() {
  constraint_.rollback(accepted_);
  accepted_ = 0;
  recent_.resize(before_);
  was_limited_ = false;
  ++counts_.retries;
}

bool ConstraintGuide::follow(int32_t token) {
  if (!asking([&] { return constraint_.accept(token); })) return false;
  move_on(token);
  return true;
}

ConstraintFailure ConstraintGuide::failure(ConstraintFailure::Kind kind) {
  ConstraintFailure failure;
  failure.kind = kind;
  if (kind == ConstraintFailure::Kind::kDeadlock) {
    failure.allowed = static_cast<int32_t>(allowed_);
    failure.in_time = static_cast<int32_t>(in_time_);
  }
  if (kind == ConstraintFailure::Kind::kError) failure.message = problem_;
  try {
    failure.state = constraint_.state();
  } catch (...) {  // whatever a host throws
    failure.state = {};
  }
  return failure;
}

}  // namespace vitrine::engine
