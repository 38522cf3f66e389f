// SPDX-License-Identifier: Apache-2.0
// The least that an answer takes, told from the expressions without writing a text: bytes, and with
// the vocabulary tokens. No text is shorter; where conjunctions are at work all may be longer.
#pragma once

#include <set>
#include <string_view>
#include <unordered_map>

#include "json_grammar.h"
#include "token_table.h"

namespace vitrine::constrain {

/// The size of what has no text; sizes that do not fit stay at it, too.
inline constexpr uint64_t kNoSize = std::numeric_limits<uint64_t>::max();
inline uint64_t add_sizes(uint64_t x, uint64_t y) { return x > kNoSize - y ? kNoSize : x + y; }
inline uint64_t multiply_sizes(uint64_t x, uint64_t y) {
  return x != 0 && y > kNoSize / x ? kNoSize : x * y;
}

class LeastSize {
 public:
  /// `grammar`: null where there is no JSON.
  explicit LeastSize(RegexPool& pool, JsonGrammar* grammar = nullptr)
      : pool_(pool), grammar_(grammar) {}

  /// Bytes of the shortest text of a state's language or of a value, or fewer.
  uint64_t of_state(NodeId state);
  uint64_t of_value(ValueId id);
  /// Bytes that such texts are made of, and perhaps others.
  ByteSet bytes_of_state(NodeId state);
  ByteSet bytes_of_value(ValueId id);

 private:
  uint64_t of_object(const ObjectShape& shape);
  uint64_t of_array(const ArrayShape& shape);

  RegexPool& pool_;
  JsonGrammar* grammar_;
  std::unordered_map<NodeId, uint64_t> states_;
  std::unordered_map<NodeId, ByteSet> bytes_;
  std::unordered_map<ValueId, uint64_t> values_;  // 1 of those that are being looked at
};

/// The fewest tokens that so many of these bytes may be cut into, or fewer; at most kUnbounded - 1.
uint32_t least_tokens(const TokenTable::Impl& table, uint64_t size, const ByteSet& bytes);

}  // namespace vitrine::constrain
