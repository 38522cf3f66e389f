// What all constraints of this room share, and the grammar that they follow.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>

#include "grammar_rules.h"
#include "token_limit.h"

namespace vitrine {

struct Grammar::Impl {
  explicit Impl(TokenTable token_table) : table(std::move(token_table)) {}

  TokenTable table;
  std::vector<Weakening> weakened;
  std::mutex mutex;  // guards all below, which grow while constraints are used
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
    const std::lock_guard lock(grammar_->mutex);
    std::fill(mask.begin(), mask.end(), 0);
    if (ended_) return false;
    self().fill(mask);
    if (self().complete()) {
      for (int32_t id : grammar_->table.end_ids()) {
        mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
      }
    }
    return has_any(mask);
  }

  bool accept(int32_t token) override {
    if (token < 0 || token >= vocab_size() || ended_) return false;
    const std::lock_guard lock(grammar_->mutex);
    const std::string& bytes = grammar_->table.bytes(token);
    if (bytes.empty()) {
      const auto ends = grammar_->table.end_ids();
      if (std::find(ends.begin(), ends.end(), token) == ends.end() || !self().complete()) {
        return false;
      }
      self().repeat_state();
      ended_ = true;
      has_plan_ = false;
      return true;
    }
    if (!self().advance(bytes)) return false;
    has_plan_ = has_plan_ && plan_.text.starts_with(bytes);
    if (has_plan_) plan_ = grammar_->finish->spelled(plan_.text.substr(bytes.size()));
    return true;
  }

  uint32_t tokens_to_finish() override {
    if (ended_) return 0;
    const std::lock_guard lock(grammar_->mutex);
    return plan().tokens;
  }

  bool keep_within(std::span<uint32_t> mask, uint32_t limit) override {
    check_mask(mask);
    const std::lock_guard lock(grammar_->mutex);
    if (!ended_) {
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
    return has_any(mask);
  }

  void rollback(int32_t count) override {
    if (count < 0 || static_cast<size_t>(count) > self().length()) {
      throw Error(ErrorKind::kInvalidArgument, "cannot roll back " + std::to_string(count) +
                                                   " tokens: " + std::to_string(self().length()) +
                                                   " have been accepted");
    }
    if (count == 0) return;
    const std::lock_guard lock(grammar_->mutex);
    self().drop(static_cast<size_t>(count));
    ended_ = has_plan_ = false;
  }

  bool is_complete() const override { return ended_ || self().complete(); }

 protected:
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
  /// A text that finishes the answer from here; followed as long as the tokens follow it.
  const constrain::Finish& plan() {
    if (!has_plan_) plan_ = self().finish();
    has_plan_ = true;
    return plan_;
  }
  int32_t next_of_plan() const {
    const TokenTable::Impl& table = grammar_->table.impl();
    size_t length = 0;
    if (table.count_tokens(plan_.text, &length) == 0) return -1;
    const uint32_t node = table.find(0, std::string_view(plan_.text).substr(0, length));
    return table.ids[table.nodes[node].first_id];
  }

  constrain::Finish plan_;
  bool has_plan_ = false;
};

}  // namespace constrain

}  // namespace vitrine
