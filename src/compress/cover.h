// SPDX-License-Identifier: Apache-2.0
// Private to the room: greedy cover, apart from models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace vitrine::compress {

/// Tokens below which a window says nothing: none is cut shorter.
inline constexpr size_t kLeastWindow = 8;

/// What a window gives: tokens for pairs of a layer and an expert, each pair once.
struct WindowGift {
  int64_t length = 0;                               ///< tokens, at least 1
  std::vector<std::pair<int32_t, int32_t>> tokens;  ///< pair, tokens
};

/// Returns windows in the order in which they are taken: the one with the largest gain for its
/// length, of equal ones the first, until there are `budget` tokens, and once none gains anything
/// the first that is left. A token gains its pair's weight while the pair has fewer than `need`.
std::vector<size_t> greedy_cover(std::span<const WindowGift> windows,
                                 std::span<const double> weights, int64_t need, int64_t budget);

/// Returns how many tokens each pair has of these windows until `budget` is reached. `cut` is asked
/// for what the last window gives where it is cut to so many tokens.
std::vector<int64_t> gifts_of(std::span<const WindowGift> windows, std::span<const size_t> order,
                              size_t pairs, int64_t budget,
                              const std::function<WindowGift(size_t window, int64_t length)>& cut);

}  // namespace vitrine::compress
