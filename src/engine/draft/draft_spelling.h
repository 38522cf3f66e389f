// SPDX-License-Identifier: Apache-2.0
// A text in the tokens of a draft model whose vocabulary may be another one than the target's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrine/tokenizer.h"

namespace vitrine::engine {

class DraftSpellings;

/// One text. It keeps the target's tokens; the draft model's are made when they are asked for, anew
/// from the last word that was not whole. Not thread-safe.
class DraftSpelling {
 public:
  explicit DraftSpelling(std::vector<int32_t> beginning)
      : own_(std::move(beginning)), closed_(own_.size()), beginning_(own_.size()) {}

  void append(std::span<const int32_t> target_tokens) {
    target_.insert(target_.end(), target_tokens.begin(), target_tokens.end());
  }
  void truncate(int64_t length);
  /// Returns the text in the draft model's tokens; empty where that has no form for it. Valid until
  /// the text changes.
  std::span<const int32_t> tokens(const DraftSpellings& spellings);
  /// Returns how many of the leading tokens() stayed as they were, whatever was appended since.
  int64_t unchanged() const { return unchanged_; }
  std::span<const int32_t> target_tokens() const { return target_; }

 private:
  std::span<const int32_t> same_tokens(int32_t vocab_size);

  std::vector<int32_t> target_;  // the text
  std::vector<int32_t> own_;     // the text as the draft model spells it
  size_t spelt_ = 0;             // tokens of the text whose spelling is closed, or was checked
  size_t closed_, beginning_;  // tokens of own_: those that spell `spelt_` tokens; those that stand
                               // before the text
  int64_t unchanged_ = 0;
};

/// Knows what the two tokenizers have to do with each other.
class DraftSpellings {
 public:
  struct Facts {
    bool is_same = false;    // an id is the same token in both
    int32_t vocab_size = 0;  // of the draft model
  };
  DraftSpellings(const Tokenizer& draft, const Tokenizer& target, Facts facts);

  /// Returns a text without tokens.
  DraftSpelling begin() const { return DraftSpelling(beginning_); }
  /// Writes to `out` the target's tokens that `guessed`, of the draft model, spells behind the
  /// text; returns how many these are.
  int32_t guesses(const DraftSpelling& text, std::span<const int32_t> guessed,
                  std::span<int32_t> out) const;
  /// Returns true for a token of the draft model behind which nothing can be guessed.
  bool is_end(int32_t token) const;

 private:
  friend class DraftSpelling;
  std::vector<int32_t> spell(std::span<const int32_t> target_tokens) const;
  bool begins_word(int32_t target_token) const;

  const Tokenizer &draft_, &target_;
  Facts facts_;
  std::vector<int32_t> beginning_;
};

}  // namespace vitrine::engine
