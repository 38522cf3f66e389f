// SPDX-License-Identifier: Apache-2.0
#include "cover.h"

#include <algorithm>
#include <queue>

namespace vitrine::compress {
namespace {

/// A window with a gain that was true once: gains only fall.
struct Candidate {
  double gain = 0;
  size_t window = 0;
  bool operator<(const Candidate& other) const {
    return gain < other.gain || (gain == other.gain && window > other.window);
  }
};

}  // namespace

std::vector<size_t> greedy_cover(std::span<const WindowGift> windows,
                                 std::span<const double> weights, int64_t need, int64_t budget) {
  std::vector<int64_t> lacking(weights.size(), need);
  const auto gain_of = [&](size_t window) {
    double gain = 0;
    for (const auto& [pair, tokens] : windows[window].tokens) {
      const auto index = static_cast<size_t>(pair);
      gain += weights[index] * static_cast<double>(std::min<int64_t>(tokens, lacking[index]));
    }
    return gain / static_cast<double>(windows[window].length);
  };
  std::priority_queue<Candidate> queue;
  for (size_t i = 0; i < windows.size(); ++i) queue.push({gain_of(i), i});
  std::vector<size_t> order;
  int64_t taken = 0;
  while (!queue.empty() && taken < budget) {
    Candidate best = queue.top();
    queue.pop();
    best.gain = gain_of(best.window);
    // Another one may be better, now that this one's gain has fallen.
    if (!queue.empty() && best < queue.top()) {
      queue.push(best);
      continue;
    }
    order.push_back(best.window);
    taken += windows[best.window].length;
    for (const auto& [pair, tokens] : windows[best.window].tokens) {
      int64_t& left = lacking[static_cast<size_t>(pair)];
      left -= std::min<int64_t>(tokens, left);
    }
  }
  return order;
}

std::vector<int64_t> gifts_of(std::span<const WindowGift> windows, std::span<const size_t> order,
                              size_t pairs, int64_t budget,
                              const std::function<WindowGift(size_t window, int64_t length)>& cut) {
  std::vector<int64_t> tokens(pairs);
  const auto add = [&](const WindowGift& gift) {
    for (const auto& [pair, count] : gift.tokens) tokens[static_cast<size_t>(pair)] += count;
  };
  int64_t taken = 0;
  for (const size_t i : order) {
    if (taken >= budget) break;
    const int64_t left = std::max(budget - taken, static_cast<int64_t>(kLeastWindow));
    if (windows[i].length > left) {
      add(cut(i, left));
    } else {
      add(windows[i]);
    }
    taken += windows[i].length;
  }
  return tokens;
}

}  // namespace vitrine::compress
