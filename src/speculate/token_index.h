// SPDX-License-Identifier: Apache-2.0
// Finds where the end of a text stood before: the newest tokens of it, each place in chains of
// places whose last tokens are the same. As LZ77's windows: what falls out of it is forgotten, and
// a token costs the same whatever was there.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::speculate {

/// Stands between texts: equal to nothing, not even to itself.
inline constexpr int32_t kNoToken = -1;

class TokenIndex {
 public:
  /// The longest match that is told apart.
  static constexpr int32_t kMaxMatch = 64;
  /// A place that the end of a text matches.
  struct Match {
    int64_t next = 0;    ///< the token that followed there
    int32_t length = 0;  ///< tokens before it that are the same, kMaxMatch at most
  };

  /// Takes all its memory: for `capacity` tokens at least. `min_match`: no shorter one is found.
  TokenIndex(int64_t capacity, int32_t min_match);

  void append(int32_t token);
  /// Forgets the tokens from `length` on. Not where older ones have fallen out.
  void truncate(int64_t length);
  int64_t size() const { return size_; }
  int64_t capacity() const { return static_cast<int64_t>(tokens_.size()); }
  /// Bytes that it takes.
  uint64_t bytes() const {
    uint64_t bytes = tokens_.capacity() * sizeof(int32_t);
    for (const Chains& of : chains_) {
      bytes += (of.newest.capacity() + of.older.capacity()) * sizeof(uint32_t);
    }
    return bytes;
  }
  /// The token at a place that has not fallen out; kNoToken behind the last one.
  int32_t token(int64_t place) const { return place < size_ ? tokens_[slot(place)] : kNoToken; }
  /// The last `count` tokens, where none has fallen out.
  std::span<const int32_t> last(int64_t count) const {
    return std::span(tokens_).first(static_cast<size_t>(size_)).last(static_cast<size_t>(count));
  }
  /// Places that the end of `context` matches, the longest pieces looked up first and of each the
  /// newest place first, as many as fit. Returns how many.
  size_t find(std::span<const int32_t> context, std::span<Match> matches) const;

 private:
  static constexpr int kOrders = 3;     // pieces of min_match tokens, of twice and four times those
  static constexpr int kMaxSteps = 32;  // along a chain
  struct Chains {
    int32_t length = 0;            // of the pieces
    std::vector<uint32_t> newest;  // [hash] place behind a piece; 0: none
    std::vector<uint32_t> older;   // [slot of a place] the one before in its chain
  };

  size_t slot(int64_t place) const { return static_cast<size_t>(place) & (tokens_.size() - 1); }
  int64_t oldest() const { return size_ > capacity() ? size_ - capacity() : 0; }
  template <typename TokenAt>
  size_t hash(int32_t length, TokenAt&& token_at) const;
  size_t hash_at(const Chains& chains, int64_t end) const;
  int32_t match_length(std::span<const int32_t> context, int64_t end) const;

  std::vector<int32_t> tokens_;  // a ring of a power of two
  std::array<Chains, kOrders> chains_;
  int64_t size_ = 0;
};

}  // namespace vitrine::speculate
