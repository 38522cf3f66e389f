// SPDX-License-Identifier: Apache-2.0
// Greedy cover beside the plain way, which tries every window each time.
#include "compress/cover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace vitrine::compress {
namespace {

std::vector<size_t> plain_cover(const std::vector<WindowGift>& windows,
                                const std::vector<double>& weights, int64_t need, int64_t budget) {
  std::vector<int64_t> have(weights.size());
  std::vector<bool> is_taken(windows.size());
  std::vector<size_t> order;
  for (int64_t taken = 0; taken < budget && order.size() < windows.size();) {
    size_t best = windows.size();
    double most = -1;
    for (size_t i = 0; i < windows.size(); ++i) {
      if (is_taken[i]) continue;
      double gain = 0;
      for (const auto& [pair, tokens] : windows[i].tokens) {
        const auto p = static_cast<size_t>(pair);
        gain += weights[p] *
                static_cast<double>(std::min(have[p] + tokens, need) - std::min(have[p], need));
      }
      gain /= static_cast<double>(windows[i].length);
      if (gain > most) most = gain, best = i;
    }
    is_taken[best] = true;
    order.push_back(best);
    taken += windows[best].length;
    for (const auto& [pair, tokens] : windows[best].tokens) {
      have[static_cast<size_t>(pair)] += tokens;
    }
  }
  return order;
}

TEST(GreedyCover, TakesWhatThePlainWayTakes) {
  uint64_t state = 11;
  const auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state >> 33) % below);
  };
  for (int round = 0; round < 60; ++round) {
    const int pairs = 1 + draw(40);
    std::vector<double> weights;
    // Quarters, so that sums are exact in any order.
    for (int i = 0; i < pairs; ++i) weights.push_back(0.25 * draw(round % 3 == 0 ? 2 : 9));
    std::vector<WindowGift> windows;
    const int count = 1 + draw(50);
    for (int i = 0; i < count; ++i) {
      WindowGift gift{int64_t{1} << draw(4), {}};
      for (int32_t pair = 0; pair < pairs; ++pair) {
        if (draw(3) == 0) gift.tokens.emplace_back(pair, 1 + draw(20));
      }
      windows.push_back(std::move(gift));
    }
    const int64_t need = 1 + draw(60), budget = 1 + draw(200);
    const std::vector<size_t> order = greedy_cover(windows, weights, need, budget);
    ASSERT_EQ(order, plain_cover(windows, weights, need, budget)) << round;
    // Nothing is taken twice, and no more than the budget asks for.
    int64_t length = 0;
    for (const size_t i : order) {
      EXPECT_LT(length, budget);
      length += windows[i].length;
    }
  }
}

TEST(GreedyCover, TakesWindowsAsTheyStandWhereNoneGains) {
  const std::vector<WindowGift> windows(5, WindowGift{10, {}});
  EXPECT_EQ(greedy_cover(windows, {}, 3, 35), (std::vector<size_t>{0, 1, 2, 3}));
  EXPECT_TRUE(greedy_cover({}, {}, 3, 35).empty());
}

TEST(GreedyCover, AddsUpWhatWindowsGive) {
  const std::vector<WindowGift> windows = {{10, {{0, 3}}}, {10, {{0, 1}, {2, 7}}}, {10, {{1, 1}}}};
  const std::vector<size_t> order = {1, 0, 2};
  size_t cut_window = 9;
  int64_t cut_length = 0;
  const auto cut = [&](size_t window, int64_t length) {
    cut_window = window;
    cut_length = length;
    return WindowGift{length, {{0, 2}}};
  };
  const auto gifts = [&](int64_t budget) { return gifts_of(windows, order, 3, budget, cut); };
  EXPECT_EQ(gifts(20), (std::vector<int64_t>{4, 0, 7}));
  EXPECT_EQ(gifts(100), (std::vector<int64_t>{4, 1, 7}));
  EXPECT_EQ(gifts(0), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(cut_window, 9u);
  EXPECT_EQ(gifts(19), (std::vector<int64_t>{3, 0, 7}));
  EXPECT_EQ(cut_window, 0u);
  EXPECT_EQ(cut_length, 9);
  gifts(11);  // no window is cut below 8 tokens
  EXPECT_EQ(cut_length, 8);
}

}  // namespace
}  // namespace vitrine::compress
