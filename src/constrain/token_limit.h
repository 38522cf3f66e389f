// SPDX-License-Identifier: Apache-2.0
// Which tokens of a mask leave room to finish the answer.
#pragma once

#include <algorithm>
#include <bit>
#include <span>

#include "finish.h"
#include "terminal_mask.h"

namespace vitrine::constrain {

/// Visits the tokens of a mask in the trie's order, so that what two of them share is read once.
/// `step(depth, byte)`: reads one byte at the place behind `depth` bytes, into that behind
/// `depth` + 1; false where nothing goes on so. `fits(depth)`: whether the place leaves room. Takes
/// the others out of the mask.
template <typename Step, typename Fits>
void keep_fitting(const TokenTable::Impl& table, std::span<uint32_t> mask,
                  std::span<const uint32_t> check, Step&& step, Fits&& fits) {
  std::vector<uint32_t> places;  // in the trie's order, of the tokens to look at
  for (size_t word = 0; word < check.size(); ++word) {
    for (uint32_t bits = check[word]; bits != 0; bits &= bits - 1) {
      const size_t id = word * 32 + static_cast<size_t>(std::countr_zero(bits));
      places.push_back(table.places[id]);
    }
  }
  std::ranges::sort(places);
  std::string_view last;
  size_t read = 0;  // bytes of `last` that were read; all places up to there are made
  bool last_fits = false;
  for (const uint32_t place : places) {
    const auto id = static_cast<size_t>(table.ids[place]);
    const std::string_view text = table.bytes[id];
    if (text != last) {
      size_t depth = static_cast<size_t>(
          std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first - last.begin());
      depth = std::min(depth, read);
      while (depth < text.size() && step(depth, static_cast<uint8_t>(text[depth]))) ++depth;
      read = depth;
      last_fits = depth == text.size() && fits(depth);
      last = text;
    }
    if (!last_fits) mask[id / 32] &= ~(1U << (id % 32));
  }
}

/// A mask but for the tokens that end the sequence.
std::vector<uint32_t> without_ends(const TokenTable::Impl& table, std::span<const uint32_t> mask);

/// Takes out of `mask`, but for the tokens that end the sequence, what leaves more than `left`
/// tokens to finish in a regular language.
void keep_fitting(const TokenTable::Impl& table, TerminalMasks& terminals, FinishTexts& texts,
                  RegexPool& pool, NodeId state, std::span<uint32_t> mask, uint32_t left);

}  // namespace vitrine::constrain
