// SPDX-License-Identifier: Apache-2.0
// Tokens of a key under patterns, by where they lead: what follows is the same behind all tokens
// that lead to the same place of each pattern.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "regex_pool.h"
#include "token_table.h"

namespace vitrine::constrain {

class KeyTokens {
 public:
  KeyTokens(RegexPool& pool, const TokenTable::Impl& table) : pool_(pool), table_(table) {}

  struct Group {
    std::vector<NodeId> states;  // what is left of each expression
    std::vector<int32_t> ids;
  };
  /// The tokens that stay within a key, end between two characters and have no escape, by what they
  /// leave of these expressions; without those behind which nothing of the first is left. Valid
  /// until the next call.
  const std::vector<Group>& from(const std::vector<NodeId>& states);

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX, kNowhere = UINT32_MAX - 1;
  /// What is left of each expression, and which place each byte leads to.
  struct Place {
    std::vector<NodeId> states;
    std::array<uint32_t, 256> next;
  };

  std::vector<Group> walk(const std::vector<NodeId>& states);
  uint32_t place_of(const std::vector<NodeId>& states);
  uint32_t find_next(uint32_t place, uint8_t byte);

  RegexPool& pool_;
  const TokenTable::Impl& table_;
  std::map<std::vector<NodeId>, std::vector<Group>> groups_;
  size_t num_ids_ = 0;  // of all of them
  std::vector<Place> places_;
  std::map<std::vector<NodeId>, uint32_t> numbers_;  // of places
};

}  // namespace vitrine::constrain
