// SPDX-License-Identifier: Apache-2.0
#include "continuation_tree.h"

#include <algorithm>

namespace vitrine::speculate {

ContinuationTree::ContinuationTree() {
  // No two nodes of one depth share a place.
  nodes_.reserve(kMaxPlaces * static_cast<size_t>(TokenIndex::kMaxMatch) + 1);
  heap_.reserve(nodes_.capacity());
}

/// Finds the lengths that are compared; returns how many places have one of them.
size_t ContinuationTree::group_lengths(std::span<const MatchedPlace> places) {
  num_lengths_ = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    if (num_lengths_ == 0 || lengths_[num_lengths_ - 1] != places[i].length) {
      if (num_lengths_ == kMaxLengths) return i;
      lengths_[num_lengths_++] = places[i].length;
    }
    length_of_[i] = static_cast<uint8_t>(num_lengths_ - 1);
    order_[i] = static_cast<uint8_t>(i);
  }
  return places.size();
}

void ContinuationTree::guess(std::span<const MatchedPlace> places, double least,
                             DraftProposal& proposal) {
  proposal.count = 0;
  least_ = least;
  nodes_.clear();
  heap_.clear();
  const auto most = std::ssize(proposal.tokens);
  Node root;
  root.end = static_cast<uint32_t>(group_lengths(places));
  root.probability.fill(1);
  if (most > 0 && proposal.max_depth > 0) expand(root, -1, places);
  while (!heap_.empty() && proposal.count < most) {
    std::ranges::pop_heap(heap_);
    const Node node = nodes_[static_cast<size_t>(-heap_.back().second)];
    heap_.pop_back();
    const auto at = static_cast<size_t>(proposal.count);
    proposal.tokens[at] = node.token;
    proposal.parents[at] = node.parent;
    if (node.depth < proposal.max_depth) expand(node, proposal.count, places);
    ++proposal.count;
  }
}

/// Adds what followed a node. `parent`: its place in the proposal.
void ContinuationTree::expand(const Node& node, int32_t parent,
                              std::span<const MatchedPlace> places) {
  uint32_t end = node.end;  // places behind which nothing stands go last
  for (uint32_t i = node.begin; i < end;) {
    if (places[order_[i]].token(node.depth) != kNoToken) {
      ++i;
    } else {
      std::rotate(order_.begin() + i, order_.begin() + i + 1, order_.begin() + end);
      --end;
    }
  }
  const ByLength<int32_t> all = count(node.begin, end);
  for (uint32_t begin = node.begin; begin < end;) {
    Node next;
    next.token = places[order_[begin]].token(node.depth);
    next.parent = parent;
    next.depth = node.depth + 1;
    next.begin = begin;
    next.end = begin = take_group(places, begin, end, node.depth);
    const ByLength<int32_t> own = count(next.begin, next.end);
    for (size_t i = 0; i < num_lengths_; ++i) {
      if (next.depth > lengths_[i] || all[i] == 0) continue;
      const float share = static_cast<float>(own[i]) / static_cast<float>(all[i]);
      next.probability[i] = node.probability[i] * share;
    }
    add(next);
  }
}

/// Moves the places that go on as the first of them does before the others; returns where they end.
uint32_t ContinuationTree::take_group(std::span<const MatchedPlace> places, uint32_t begin,
                                      uint32_t end, int64_t behind) {
  const int32_t token = places[order_[begin]].token(behind);
  uint32_t group = begin;
  size_t others = 0;
  for (uint32_t i = begin; i < end; ++i) {
    if (places[order_[i]].token(behind) == token) {
      order_[group++] = order_[i];
    } else {
      scratch_[others++] = order_[i];
    }
  }
  std::copy_n(scratch_.begin(), others, order_.begin() + group);
  return group;
}

/// How many of these places have each length, or a longer one.
ContinuationTree::ByLength<int32_t> ContinuationTree::count(uint32_t begin, uint32_t end) const {
  ByLength<int32_t> counts = {};
  for (uint32_t i = begin; i < end; ++i) ++counts[length_of_[order_[i]]];
  for (size_t i = 1; i < num_lengths_; ++i) counts[i] += counts[i - 1];
  return counts;
}

void ContinuationTree::add(const Node& node) {
  const float likelihood = *std::ranges::max_element(node.probability);
  if (static_cast<double>(likelihood) < least_ || likelihood == 0) return;
  heap_.emplace_back(likelihood, -static_cast<int32_t>(nodes_.size()));
  std::ranges::push_heap(heap_);
  nodes_.push_back(node);
}

}  // namespace vitrine::speculate
