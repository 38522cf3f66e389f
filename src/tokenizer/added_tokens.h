// SPDX-License-Identifier: Apache-2.0
// Added and special tokens of a tokenizer.json: found in the text before BPE sees it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bpe.h"
#include "json_reader.h"
#include "normalizer.h"
#include "pair_map.h"

namespace vitrine::tokenizer {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  std::string decoded;  // what decoding sees: the normalised content where that is matched
  bool single_word = false, lstrip = false, rstrip = false;
  bool normalized = true;  // matched after the normaliser instead of before
  bool special = false;
};

/// A part of a text: a token (id >= 0) or text between tokens (id -1).
struct TextPart {
  int32_t id;
  std::string_view text;
};

/// Immutable after loading.
class AddedTokens {
 public:
  /// From the field `added_tokens` (null: none).
  static AddedTokens load(const JsonNode& node, const Bpe& bpe, const Normalizer& normalizer);

  /// Cuts text at the tokens that are matched before (or after) normalisation.
  void split(std::string_view text, bool is_normalized, std::vector<TextPart>& parts) const;

  /// Puts `mark` behind the first character of each special token's spelling, wherever a token is
  /// matched.
  std::string guard(std::string_view text, std::string_view mark) const;
  /// By id or by content; null where there is none.
  const AddedToken* find(int32_t id) const;
  const AddedToken* find(std::string_view content) const;
  /// Whether the text is the content of a special token.
  bool is_special_text(std::string_view text) const;
  int32_t end_id() const { return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1; }

 private:
  /// Finds the longest pattern at each place, leftmost first.
  struct Trie {
    PairMap<uint32_t> children;       // (node, byte) to node
    std::vector<int32_t> ids = {-1};  // by node; -1: no pattern ends here
    bool add(std::string_view pattern, int32_t id);
    bool match(std::string_view text, size_t begin, size_t& end, int32_t& id) const;
  };

  std::map<int32_t, AddedToken> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  Trie raw_, normalized_;
};

}  // namespace vitrine::tokenizer
