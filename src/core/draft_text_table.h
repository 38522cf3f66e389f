// SPDX-License-Identifier: Apache-2.0
// The texts that a drafter follows, by their names, and what every drafter asks of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "vitrine/drafter.h"

namespace vitrine::core {

/// Keeps what a drafter knows of each text, at its address as long as it is followed. Not
/// thread-safe.
template <typename Text>
class DraftTextTable {
 public:
  /// `owner` begins messages.
  explicit DraftTextTable(std::string_view owner = "a drafter") : owner_(owner) {}

  DraftTextId add(std::unique_ptr<Text> text) {
    texts_[++last_] = std::move(text);
    return last_;
  }
  /// Throws kInvalidArgument for a text that is not followed.
  Text& get(DraftTextId text) const {
    const auto found = texts_.find(text);
    if (found == texts_.end()) {
      throw Error(ErrorKind::kInvalidArgument, owner_ + " follows no text " + std::to_string(text) +
                                                   "; expected one that start() gave");
    }
    return *found->second;
  }
  DraftTextId fork(DraftTextId text) { return add(std::make_unique<Text>(get(text))); }
  void erase(DraftTextId text) { texts_.erase(text); }
  const auto& all() const { return texts_; }

 private:
  std::string owner_;
  DraftTextId last_ = 0;
  std::unordered_map<DraftTextId, std::unique_ptr<Text>> texts_;
};

/// Throws kInvalidArgument for a text without room.
inline void require_draft_room(const DraftText& about) {
  if (about.max_tokens >= 1 && about.prompt_tokens >= 0) return;
  throw Error(ErrorKind::kInvalidArgument,
              "a text of at most " + std::to_string(about.max_tokens) +
                  " tokens was given to a drafter; expected at least 1");
}

/// Throws kInvalidArgument where `added` tokens are more than a text of so many has room for.
inline void require_draft_fits(DraftTextId text, int64_t added, int64_t size, int64_t capacity) {
  if (added <= capacity - size) return;
  throw Error(ErrorKind::kInvalidArgument,
              "text " + std::to_string(text) + " of a drafter has outgrown the " +
                  std::to_string(capacity) +
                  " tokens that it has room for; expected DraftText::max_tokens at most");
}

/// Throws kInvalidArgument where a text of so many tokens cannot be cut to `length`.
inline void require_draft_cut(DraftTextId text, int64_t length, int64_t size) {
  if (length >= 0 && length <= size) return;
  throw Error(ErrorKind::kInvalidArgument, "text " + std::to_string(text) +
                                               " of a drafter was to be cut to " +
                                               std::to_string(length) + " tokens; expected 0 to " +
                                               std::to_string(size) + ", which it has");
}

/// Returns how many guesses a chain may have. As a tree it has no more than that may be deep.
inline int64_t chain_room(const DraftProposal& proposal) {
  const auto room = static_cast<int64_t>(proposal.tokens.size());
  return proposal.parents.empty() ? room : std::min<int64_t>(room, proposal.max_depth);
}

}  // namespace vitrine::core
