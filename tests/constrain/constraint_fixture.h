// SPDX-License-Identifier: Apache-2.0
// A vocabulary whose ids 1 to 256 are the bytes, and texts given to grammars byte by byte.
#pragma once

#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/constrain.h"

namespace vitrine::test {

constexpr int32_t kEndId = 0;

/// An end id, every byte, `more`, and where there are `letters` random tokens of two to four of
/// them, until there are 300.
inline TokenTable byte_table(const std::vector<std::string>& more = {},
                             std::string_view letters = {}) {
  std::vector<std::string> bytes(1);
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.insert(bytes.end(), more.begin(), more.end());
  std::mt19937 rng(3);
  while (!letters.empty() && bytes.size() < 300) {
    std::string token;
    for (size_t i = 0; i < 2 + bytes.size() % 3; ++i) token += letters[rng() % letters.size()];
    bytes.push_back(token);
  }
  return TokenTable::from_bytes(std::move(bytes), {kEndId});
}

inline bool feed(Constraint& constraint, std::string_view text) {
  for (const char byte : text) {
    if (!constraint.accept(1 + static_cast<uint8_t>(byte))) return false;
  }
  return true;
}

/// Whether an answer may begin with `text`; with `whole`, be it.
inline bool is_prefix(const Grammar& grammar, std::string_view text, bool whole) {
  const auto constraint = grammar.start();
  return feed(*constraint, text) && (!whole || constraint->is_complete());
}

}  // namespace vitrine::test
