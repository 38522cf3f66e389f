// SPDX-License-Identifier: Apache-2.0
// Which tokens of a mask leave room to finish the answer.
#pragma once

#include <algorithm>
#include <span>

#include "finish.h"
#include "json_mask.h"

namespace vitrine::constrain {

/// Visits the tokens of a mask in the trie's order, so that what two of them share is read once.
/// `step(depth, byte)`: reads one byte at the place behind `depth` bytes, into that behind
/// `depth` + 1; false where nothing goes on so. `fits(depth)`: whether the place leaves room. Takes
/// the others out of the mask.
template <typename Step, typename Fits>
void keep_fitting(const TokenTable::Impl& table, std::span<uint32_t> mask,
                  std::span<const uint32_t> check, Step&& step, Fits&& fits) {
  std::string_view last;
  size_t read = 0;  // bytes of `last` that were read; all places up to there are made
  bool last_fits = false;
  for (const int32_t id : table.ids) {
    const size_t word = static_cast<size_t>(id) / 32;
    const uint32_t bit = 1U << (id % 32);
    if ((check[word] & bit) == 0) continue;
    const std::string_view text = table.bytes[static_cast<size_t>(id)];
    if (text != last) {
      size_t depth = static_cast<size_t>(
          std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first - last.begin());
      depth = std::min(depth, read);
      while (depth < text.size() && step(depth, static_cast<uint8_t>(text[depth]))) ++depth;
      read = depth;
      last_fits = depth == text.size() && fits(depth);
      last = text;
    }
    if (!last_fits) mask[word] &= ~bit;
  }
}

/// A mask but for the tokens that end the sequence.
std::vector<uint32_t> without_ends(const TokenTable::Impl& table, std::span<const uint32_t> mask);

/// Of a regular language: takes out of `mask`, but for the tokens that end the sequence, what
/// leaves more than `left` tokens to finish.
void keep_fitting(const TokenTable::Impl& table, TerminalMasks& terminals, FinishTexts& texts,
                  RegexPool& pool, NodeId state, std::span<uint32_t> mask, uint32_t left);

/// Of JSON text.
class JsonLimit {
 public:
  JsonLimit(JsonMachine& machine, const TokenTable::Impl& table, TerminalMasks& terminals,
            JsonFinish& finish)
      : machine_(machine), table_(table), terminals_(terminals), finish_(finish) {}

  /// Takes out of `mask`, but for the tokens that end the sequence, what leaves more than `left`
  /// tokens to finish.
  void keep(const Configs& configs, std::span<uint32_t> mask, uint32_t left);

 private:
  void skip_proven(const Config& config, uint32_t left);
  void skip_open_key(const Config& config, uint32_t left);
  void decide_open_key(const Configs& configs, std::span<uint32_t> mask, uint32_t left);
  bool is_hopeless(const Config& config, uint32_t left);
  void keep_checked(const Configs& configs, std::span<uint32_t> mask, uint32_t left);
  void skip_hopeless(const Configs& configs, std::span<uint32_t> mask, uint32_t left);

  JsonMachine& machine_;
  const TokenTable::Impl& table_;
  TerminalMasks& terminals_;
  JsonFinish& finish_;
  std::vector<uint32_t> check_;
  std::vector<Configs> places_;
  std::vector<JsonMachine::Mark> marks_;
};

}  // namespace vitrine::constrain
