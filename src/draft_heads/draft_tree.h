// SPDX-License-Identifier: Apache-2.0
// A tree of guesses, the likeliest ones there are (EAGLE-2's dynamic tree, Li et al., arXiv
// 2406.16858): level by level the best of the newest guesses get guesses behind them, and of all
// that came about as many as there is room for are kept.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "vitrine/drafter.h"

namespace vitrine::draft_heads {

class DraftTree {
 public:
  /// Guesses of a level that get others behind them, and of those that stand behind one.
  static constexpr int32_t kWidth = 8;
  static constexpr int32_t kMaxDepth = 16;

  struct Node {
    int32_t token = 0;
    int32_t parent = -1;  // its index
    float score = 0;      // log-probability of the path to it, by the heads
  };

  /// Allocates for any tree.
  DraftTree() {
    nodes_.reserve(kWidth + kWidth * kWidth * kMaxDepth);
    ranked_.reserve(nodes_.capacity());
    kept_.reserve(nodes_.capacity());
    frontier_.reserve(kWidth);
  }

  /// Begins with no guess; `room`: that will be kept.
  void begin(int64_t room) {
    nodes_.clear();
    room_ = room;
    level_ = 0;
  }
  /// Guesses behind node `parent` (-1: the text), by the best of a row of logits.
  void add(int32_t parent, const kernels::HeadStats& best, std::span<const int32_t> tokens) {
    const float before = parent < 0 ? 0.0F : nodes_[static_cast<size_t>(parent)].score;
    const auto first = nodes_.size();
    const auto most = std::min<int64_t>({best.count, kWidth, room_});
    for (int64_t i = 0; i < most; ++i) {
      const int32_t id = best.top_ids[i];
      const int32_t token = tokens.empty() ? id : tokens[static_cast<size_t>(id)];
      const float score = before + std::min(0.0F, best.top_logits[i] - best.log_sum_exp);
      const auto own = std::span(nodes_).subspan(first);
      const bool is_new = std::ranges::find(own, token, &Node::token) == own.end();
      if (is_new && std::isfinite(score)) nodes_.push_back({token, parent, score});
    }
  }
  /// The guesses since the last call that are worth others behind them, best first: those that are
  /// among the best `room` of all, since no guess behind one is likelier. Valid until the next
  /// call.
  std::span<const int32_t> take_frontier() {
    rank();
    frontier_.clear();
    const auto most = std::min<size_t>(ranked_.size(), static_cast<size_t>(room_));
    for (size_t i = 0; i < most && std::ssize(frontier_) < kWidth; ++i) {
      if (ranked_[i] >= level_) frontier_.push_back(ranked_[i]);
    }
    level_ = static_cast<int32_t>(nodes_.size());
    return frontier_;
  }
  const Node& node(int32_t index) const { return nodes_[static_cast<size_t>(index)]; }
  /// Writes the best ones, each behind the one that it stands behind.
  void write(DraftProposal& proposal) {
    rank();
    ranked_.resize(std::min(ranked_.size(), static_cast<size_t>(room_)));
    std::ranges::sort(ranked_);
    kept_.assign(nodes_.size(), -1);
    proposal.count = 0;
    for (const int32_t index : ranked_) {
      const Node& own = node(index);
      const auto place = static_cast<size_t>(proposal.count);
      proposal.tokens[place] = own.token;
      proposal.parents[place] = own.parent < 0 ? -1 : kept_[static_cast<size_t>(own.parent)];
      kept_[static_cast<size_t>(index)] = proposal.count++;
    }
  }

 private:
  /// By score, of equals the older first: so a guess never stands before the one it is behind.
  void rank() {
    ranked_.resize(nodes_.size());
    for (size_t i = 0; i < ranked_.size(); ++i) ranked_[i] = static_cast<int32_t>(i);
    std::ranges::sort(ranked_, [&](int32_t a, int32_t b) {
      const float one = node(a).score, other = node(b).score;
      return one != other ? one > other : a < b;
    });
  }

  std::vector<Node> nodes_;
  std::vector<int32_t> ranked_, frontier_;
  std::vector<int32_t> kept_;  // by node: its place among those that are kept
  int64_t room_ = 0;
  int32_t level_ = 0;  // first node of the newest level
};

}  // namespace vitrine::draft_heads
