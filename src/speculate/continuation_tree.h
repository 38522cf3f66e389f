// SPDX-License-Identifier: Apache-2.0
// A tree of guesses from the places where the end of a text stood before: the tokens that are
// likeliest by what followed there, one by one, each behind one that is likelier.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "token_index.h"
#include "vitrine/drafter.h"

namespace vitrine::speculate {

/// A place that the end of a text matches.
struct MatchedPlace {
  const TokenIndex* index = nullptr;
  int64_t next = 0;    // the token that followed there
  int32_t length = 0;  // tokens before it that are the same
  int32_t rank = 0;    // in the order in which places were found
  int32_t token(int64_t behind) const { return index->token(next + behind); }
};

/// Not thread-safe. Takes all its memory when it is made.
class ContinuationTree {
 public:
  static constexpr size_t kMaxPlaces = 64;
  static constexpr size_t kMaxLengths = 6;  // of matches that are compared

  ContinuationTree();
  /// Guesses as many as `proposal` has room for, whose probability is `least` or more. For each
  /// length of match, places of that length and above say how likely a token is: by how many of
  /// those that went this way had it next. It is no likelier behind more tokens than that length
  /// has; of all lengths the one counts that makes it likeliest. `places`: the longest matches
  /// first, kMaxPlaces at most.
  void guess(std::span<const MatchedPlace> places, double least, DraftProposal& proposal);

 private:
  template <typename Value>
  using ByLength = std::array<Value, kMaxLengths>;
  struct Node {
    ByLength<float> probability = {};
    int32_t token = kNoToken, parent = -1, depth = 0;  // parent: its place in the proposal
    uint32_t begin = 0, end = 0;                       // of order_: the places that went this way
  };

  size_t group_lengths(std::span<const MatchedPlace> places);
  void expand(const Node& node, int32_t parent, std::span<const MatchedPlace> places);
  uint32_t take_group(std::span<const MatchedPlace> places, uint32_t begin, uint32_t end,
                      int64_t behind);
  ByLength<int32_t> count(uint32_t begin, uint32_t end) const;
  void add(const Node& node);

  double least_ = 0;
  size_t num_lengths_ = 0;
  ByLength<int32_t> lengths_ = {};
  std::array<uint8_t, kMaxPlaces> length_of_ = {};  // by place: its index in lengths_
  std::array<uint8_t, kMaxPlaces> order_ = {}, scratch_ = {};
  std::vector<Node> nodes_;
  std::vector<std::pair<float, int32_t>> heap_;  // likelihood and node, negated: older ones first
};

}  // namespace vitrine::speculate
