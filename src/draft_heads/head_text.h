// SPDX-License-Identifier: Apache-2.0
// The texts that heads follow: their tokens and the features of their newest positions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/draft_text_table.h"
#include "draft_heads/feature_window.h"
#include "vitrine/drafter.h"

namespace vitrine::draft_heads {

/// One text. A pair is a position's features and the token behind it.
struct HeadText {
  /// Throws kInvalidArgument for a text without room.
  HeadText(const DraftText& about, int64_t width, int64_t window)
      : features(width, window, about.prompt_tokens) {
    core::require_draft_room(about);
    tokens.reserve(static_cast<size_t>(about.max_tokens));
  }
  HeadText(const HeadText& other) : tokens(), features(other.features) {
    tokens.reserve(other.tokens.capacity());
    tokens.assign(other.tokens.begin(), other.tokens.end());
  }
  HeadText& operator=(const HeadText&) = delete;

  /// Bytes of what it keeps beside keys and values.
  uint64_t bytes() const { return tokens.capacity() * sizeof(int32_t) + features.bytes(); }
  int64_t length() const { return std::ssize(tokens); }
  /// The position of the last pair, where the newest token has its own; else -1.
  int64_t last_pair() const {
    const int64_t last = length() - 2;
    return last >= features.first() && last < features.end() ? last : -1;
  }

  std::vector<int32_t> tokens;
  FeatureWindow features;
};

/// Texts by their names. `Text` is derived from HeadText.
template <typename Text>
class HeadTexts {
 public:
  DraftTextId add(std::unique_ptr<Text> text) { return texts_.add(std::move(text)); }
  Text& get(DraftTextId text) const { return texts_.get(text); }
  DraftTextId fork(DraftTextId text) { return texts_.fork(text); }
  const auto& all() const { return texts_.all(); }
  void release(DraftTextId text) { texts_.erase(text); }

  void commit(DraftTextId text, std::span<const int32_t> added) {
    std::vector<int32_t>& tokens = get(text).tokens;
    core::require_draft_fits(text, std::ssize(added), std::ssize(tokens),
                             static_cast<int64_t>(tokens.capacity()));
    tokens.insert(tokens.end(), added.begin(), added.end());
  }
  /// The text, cut.
  Text& truncate(DraftTextId text, int64_t length) {
    Text& cut = get(text);
    core::require_draft_cut(text, length, cut.length());
    cut.tokens.resize(static_cast<size_t>(length));
    cut.features.truncate(length);
    return cut;
  }

 private:
  core::DraftTextTable<Text> texts_;
};

/// How many rows of `width` numbers there are. Throws kInvalidArgument for a part of one.
inline int64_t count_rows(std::span<const float> rows, int64_t width) {
  if (std::ssize(rows) % width == 0) return std::ssize(rows) / width;
  throw Error(ErrorKind::kInvalidArgument,
              "a drafter was shown " + std::to_string(rows.size()) +
                  " features; expected rows of " + std::to_string(width) +
                  ": EngineOptions::feature_layers are to be those of the drafter");
}

}  // namespace vitrine::draft_heads
