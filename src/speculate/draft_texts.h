// SPDX-License-Identifier: Apache-2.0
// The texts that a drafter follows, each with an index of its tokens.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

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
    if (about.max_tokens < 1 || about.prompt_tokens < 0) {
      throw Error(ErrorKind::kInvalidArgument,
                  "a text of at most " + std::to_string(about.max_tokens) +
                      " tokens was given to a drafter; expected at least 1");
    }
    return add({about, TokenIndex(about.max_tokens, min_match_)});
  }
  DraftTextId fork(DraftTextId text) { return add(get(text)); }

  IndexedText& get(DraftTextId text) const {
    const auto found = texts_.find(text);
    if (found == texts_.end()) {
      throw Error(ErrorKind::kInvalidArgument, "a drafter follows no text " + std::to_string(text) +
                                                   "; expected one that start() gave");
    }
    return *found->second;
  }
  void commit(DraftTextId text, std::span<const int32_t> tokens) {
    TokenIndex& index = get(text).index;
    if (std::ssize(tokens) > index.capacity() - index.size()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "text " + std::to_string(text) + " of a drafter has outgrown the " +
                      std::to_string(index.capacity()) +
                      " tokens that it has room for; expected DraftText::max_tokens at most");
    }
    for (const int32_t token : tokens) index.append(token);
  }
  void truncate(DraftTextId text, int64_t length) {
    TokenIndex& index = get(text).index;
    if (length < 0 || length > index.size()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "text " + std::to_string(text) + " of a drafter was to be cut to " +
                      std::to_string(length) + " tokens; expected 0 to " +
                      std::to_string(index.size()) + ", which it has");
    }
    index.truncate(length);
  }
  void release(DraftTextId text) { texts_.erase(text); }
  /// Bytes that the indexes take.
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const auto& entry : texts_) bytes += entry.second->index.bytes();
    return bytes;
  }

 private:
  DraftTextId add(IndexedText text) {
    texts_[++last_] = std::make_unique<IndexedText>(std::move(text));
    return last_;
  }

  int32_t min_match_;
  DraftTextId last_ = 0;
  std::unordered_map<DraftTextId, std::unique_ptr<IndexedText>> texts_;
};

}  // namespace vitrine::speculate
