// SPDX-License-Identifier: Apache-2.0
// The texts that a drafter follows, each with an index of its tokens.
#pragma once

#include <memory>

#include "core/draft_text_table.h"
#include "token_index.h"
#include "vitrine/drafter.h"

namespace vitrine::speculate {

struct IndexedText {
  DraftText about;
  TokenIndex index;
};

class DraftTexts {
 public:
  explicit DraftTexts(int32_t min_match) : min_match_(min_match) {}

  /// Takes the memory of all its tokens.
  DraftTextId start(const DraftText& about) {
    core::require_draft_room(about);
    return add({about, TokenIndex(about.max_tokens, min_match_)});
  }
  DraftTextId fork(DraftTextId text) { return texts_.fork(text); }

  IndexedText& get(DraftTextId text) const { return texts_.get(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) {
    TokenIndex& index = get(text).index;
    core::require_draft_fits(text, std::ssize(tokens), index.size(), index.capacity());
    for (const int32_t token : tokens) index.append(token);
  }
  void truncate(DraftTextId text, int64_t length) {
    TokenIndex& index = get(text).index;
    core::require_draft_cut(text, length, index.size());
    index.truncate(length);
  }
  void release(DraftTextId text) { texts_.erase(text); }
  /// Bytes that the indexes take.
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const auto& entry : texts_.all()) bytes += entry.second->index.bytes();
    return bytes;
  }

 private:
  DraftTextId add(IndexedText text) {
    return texts_.add(std::make_unique<IndexedText>(std::move(text)));
  }

  int32_t min_match_;
  core::DraftTextTable<IndexedText> texts_;
};

}  // namespace vitrine::speculate
