// SPDX-License-Identifier: Apache-2.0
// What all constraints of this room share, and the grammar that they follow.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "grammar_rules.h"
#include "json_limit.h"
#include "shared_states.h"
#include "state_text.h"

namespace vitrine {

struct Grammar::Impl {
  explicit Impl(TokenTable token_table) : table(std::move(token_table)) {}

  TokenTable table;
  std::vector<Weakening> weakened;
  constrain::SharedStates lock;  // of all below, which grow while constraints are used
  std::unique_ptr<constrain::JsonGrammar> json;
  std::unique_ptr<constrain::RegexPool> pool;  // where there is no `json`
  constrain::NodeId regex = constrain::kEmptyNode;
  std::unique_ptr<constrain::ContextFree> rules;
  std::unique_ptr<constrain::TerminalMasks> terminals;
  std::unique_ptr<constrain::FinishTexts> finish;

  constrain::RegexPool& states() { return json ? json->pool() : *pool; }
};

/// What a notation was read into, before productions are made of it.
struct Grammar::Rules {
  explicit Rules(const GrammarOptions& options)
      : pool(std::make_unique<constrain::RegexPool>(options.max_states)),
        max_items(options.max_items) {}

  std::unique_ptr<constrain::RegexPool> pool;
  constrain::GrammarRules grammar;
  size_t max_items = 0;
};

namespace constrain {

inline constexpr size_t kMaxForced = 1024;  // bytes
inline constexpr size_t kMaxLeftPlans = 64;
// Limits of a state in words (ConstraintState).
inline constexpr size_t kMaxReadings = 8, kMaxCompletion = 256, kMaxExpression = 240;

/// The one byte of these that leads on; -1 where none or several do. `leads_on` is asked for the
/// one that is returned, and for none after the second that does.
template <typename LeadsOn>
int only_byte(const ByteSet& bytes, LeadsOn&& leads_on) {
  int only = -1;
  for (int byte = 0; byte < 256; ++byte) {
    if (!bytes.contains(static_cast<uint8_t>(byte)) || !leads_on(static_cast<uint8_t>(byte)))
      continue;
    if (only >= 0) return -1;
    only = byte;
  }
  return only;
}

/// What all kinds of constraint share: ids in and out, history, end of sequence.
template <typename Derived>
class ConstraintBase : public Constraint {
 public:
  explicit ConstraintBase(std::shared_ptr<Grammar::Impl> grammar) : grammar_(std::move(grammar)) {}

  int32_t vocab_size() const override { return grammar_->table.vocab_size(); }

  bool allowed_tokens(std::span<uint32_t> mask) override {
    check_mask(mask);
    std::fill(mask.begin(), mask.end(), 0);
    if (ended_) return false;
    const bool is_whole = shared(
        [&] {
          self().fill(mask);
          return self().complete();
        },
        [&mask] { std::fill(mask.begin(), mask.end(), 0); });
    if (is_whole) {
      for (int32_t id : grammar_->table.end_ids()) {
        mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
      }
    }
    return has_any(mask);
  }

  bool accept(int32_t token) override {
    if (token < 0 || token >= vocab_size() || ended_) return false;
    const std::string& bytes = grammar_->table.bytes(token);
    if (bytes.empty()) {
      const auto ends = grammar_->table.end_ids();
      if (std::find(ends.begin(), ends.end(), token) == ends.end() || !is_complete()) return false;
      self().repeat_state();
      ended_ = true;
      plan_.reset();
      accepted_.push_back(token);
      return true;
    }
    if (!shared([&] { return self().advance(bytes); })) return false;
    if (plan_ && plan_->text.starts_with(bytes)) {
      plan_ = grammar_->finish->spelled(plan_->text.substr(bytes.size()));
    } else if (plan_) {
      if (left_plans_.size() == kMaxLeftPlans) left_plans_.erase(left_plans_.begin());
      left_plans_.emplace_back(accepted_.size(), std::move(*plan_));
      plan_.reset();
    }
    accepted_.push_back(token);
    return true;
  }

  uint32_t tokens_to_finish() override {
    if (ended_) return 0;
    return shared([this] {
      if (plan().is_known() || !accepted_.empty()) return plan().tokens;
      const uint32_t least = self().least_tokens();
      is_long_ = least != kNoTokenBound;
      return least;
    });
  }

  bool looks_for_an_end() const override { return true; }

  bool keep_within(std::span<uint32_t> mask, uint32_t limit) override {
    check_mask(mask);
    if (!ended_ && !(is_long_ && is_out_of_sight(limit))) {
      whole_mask_.assign(mask.begin(), mask.end());
      shared([&] { keep_fitting_tokens(mask, limit); },
             [&] { std::copy(whole_mask_.begin(), whole_mask_.end(), mask.begin()); });
    }
    return has_any(mask);
  }

  void rollback(int32_t count) override {
    if (count < 0 || static_cast<size_t>(count) > self().length()) {
      throw Error(ErrorKind::kInvalidArgument, "cannot roll back " + std::to_string(count) +
                                                   " tokens: " + std::to_string(self().length()) +
                                                   " have been accepted");
    }
    if (count == 0) return;
    self().drop(static_cast<size_t>(count));
    ended_ = false;
    take_plan_back(accepted_.size() - static_cast<size_t>(count));
  }

  ConstraintState state() override {
    std::string text;
    for (const int32_t id : accepted_) text += grammar_->table.bytes(id);
    ConstraintState out;
    out.num_bytes = static_cast<int64_t>(text.size());
    if (ended_) return out;
    // What is beyond the grammar's limits is not known.
    const auto look = [this](auto&& work) {
      try {
        shared(work);
      } catch (const Error&) {
      }
    };
    look([&] { self().describe(text, out); });
    look([&] { out.next_bytes = constrain::byte_set_text(self().next_bytes()); });
    look([&] {
      if (!self().complete() && plan().is_known()) {
        out.completion = constrain::printable(plan().text, kMaxCompletion);
      }
    });
    return out;
  }

  bool is_complete() const override {
    return ended_ || grammar_->lock.read([this] { return self().complete(); });
  }

 protected:
  /// Runs `work` on what the constraints of the grammar share. Where it has to be run again, what
  /// it has done to this constraint's own memory is taken back, and `undo` runs. Where it meets a
  /// limit the constraint stands where it stood.
  template <typename Work, typename Undo>
  auto shared(Work&& work, Undo&& undo) {
    const auto before = self().place();
    try {
      return grammar_->lock.run(work, [&] {
        self().return_to(before);
        undo();
      });
    } catch (...) {
      self().return_to(before);
      throw;
    }
  }
  template <typename Work>
  auto shared(Work&& work) {
    return shared(work, [] {});
  }

  /// The fewest tokens that `size` bytes take, where these are too many for a text that is written
  /// out; else kNoTokenBound.
  template <typename Bytes>
  uint32_t tokens_of_size(uint64_t size, Bytes&& bytes) {
    if (size <= kMaxFinishText || size == kNoSize) return kNoTokenBound;
    return constrain::least_tokens(impl_of(grammar_->table), size, bytes());
  }

  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  std::shared_ptr<Grammar::Impl> grammar_;
  bool ended_ = false;

 private:
  void check_mask(std::span<uint32_t> mask) const {
    if (mask.size() == grammar_->table.mask_words()) return;
    throw Error(ErrorKind::kInvalidArgument, "a mask of " + std::to_string(mask.size()) +
                                                 " words, expected " +
                                                 std::to_string(grammar_->table.mask_words()));
  }
  void keep_fitting_tokens(std::span<uint32_t> mask, uint32_t limit) {
    // The next token of a text that is known to fit stays, whatever is known of the others.
    const int32_t next = limit > 0 && plan().tokens <= limit ? next_of_plan() : -1;
    if (next >= 0 && (mask[static_cast<size_t>(next) / 32] >> (next % 32) & 1U) == 0) {
      throw Error(ErrorKind::kInternal, "a mask lacks a token that finishes the answer");
    }
    if (limit > 0) {
      self().limit(mask, limit - 1);
    } else {
      keep_ends(mask);
    }
    if (next >= 0) mask[static_cast<size_t>(next) / 32] |= 1U << (next % 32);
  }
  static bool has_any(std::span<const uint32_t> mask) {
    return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
  }
  void keep_ends(std::span<uint32_t> mask) const {
    std::vector<uint32_t> ends(mask.size());
    for (const int32_t id : grammar_->table.end_ids()) {
      ends[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
    }
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= ends[i];
  }
  /// The end of a long answer is not known yet, or does not come in time: then nothing is ruled
  /// out.
  bool is_out_of_sight(uint32_t limit) {
    return limit > kMaxFinishText || shared([&] { return plan().tokens > limit; });
  }
  /// A text that finishes the answer from here; followed as long as the tokens follow it.
  const constrain::Finish& plan() {
    if (!plan_) plan_ = self().finish();
    return *plan_;
  }
  /// What finished the answer where the tokens left such a text, or further on, finishes it here
  /// too. One that is looked for anew may be longer than there is room for.
  void take_plan_back(size_t length) {
    size_t at = accepted_.size();
    for (; !left_plans_.empty() && left_plans_.back().first >= length; left_plans_.pop_back()) {
      at = left_plans_.back().first;
      plan_ = std::move(left_plans_.back().second);
    }
    if (plan_ && plan_->is_known()) {
      std::string text;
      for (size_t i = length; i < at; ++i) text += grammar_->table.bytes(accepted_[i]);
      plan_ = grammar_->finish->spelled(text + plan_->text);
    } else {
      plan_.reset();
    }
    accepted_.resize(length);
  }
  int32_t next_of_plan() const {
    const TokenTable::Impl& table = constrain::impl_of(grammar_->table);
    size_t length = 0;
    if (table.count_tokens(plan_->text, &length) == 0) return -1;
    const uint32_t node = table.find(0, std::string_view(plan_->text).substr(0, length));
    return table.ids[table.nodes[node].first_id];
  }

  std::vector<int32_t> accepted_;
  std::vector<uint32_t> whole_mask_;
  std::optional<constrain::Finish> plan_;
  bool is_long_ = false;  // nothing but a least size was known when it began
  // The last ones that the tokens did not follow, each with how many tokens stood before it.
  std::vector<std::pair<size_t, constrain::Finish>> left_plans_;
};

}  // namespace constrain

}  // namespace vitrine
