// SPDX-License-Identifier: Apache-2.0
// The vocabulary as a trie in depth-first order, and what it says about JSON strings.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "shared_masks.h"
#include "token_slices.h"
#include "vitrine/constrain.h"

namespace vitrine {

/// Nodes are numbered depth first, the root is 0; `end` is the first node behind a node's subtree,
/// so that the tokens of a subtree are neighbours in `ids`.
struct TokenTable::Impl {
  struct Node {
    uint32_t end = 0;
    uint32_t first_id = 0;  // index in ids; the next node's first_id ends this node's
    uint16_t depth = 0;
    uint8_t byte = 0;
  };
  std::vector<std::string> bytes;
  std::vector<int32_t> end_ids;
  std::vector<Node> nodes;  // one more than there are, to end the last
  std::vector<int32_t> ids;
  std::vector<uint32_t> places;  // by id: where it stands in ids
  uint32_t max_depth = 0;

  /// Children, node by node: those of `n` stand from first_child[n] to first_child[n + 1] - 1, with
  /// ascending bytes. Walks read the bytes of many at a time without touching their nodes.
  std::vector<uint32_t> first_child, children;
  std::vector<uint8_t> child_bytes;

  constrain::TokenSlices slices;
  std::vector<constrain::TokenSlices::Profile> profiles;  // of all tokens at and below each node

  std::vector<uint32_t> first_bytes;  // [256]: the root's children, 0 where there is none
  bool has_all_bytes = false;         // every byte is a token: so many bytes are as many tokens
  bool has_string_bytes = false;      // so is every byte that a string needs to end

  bool is_token(size_t byte) const {
    const uint32_t child = first_bytes[byte];
    return child != 0 && nodes[child].first_id < nodes[child + 1].first_id;
  }
  bool has_children(uint32_t node) const { return nodes[node].end > node + 1; }
  /// The node that `text` leads to from `from`, or 0.
  uint32_t find(uint32_t from, std::string_view text) const;

  /// The fewest tokens that spell `text`; kUnspelled where none do. `first_length`: if not null,
  /// gets the length of the first of them.
  uint32_t count_tokens(std::string_view text, size_t* first_length = nullptr) const;
  static constexpr uint32_t kUnspelled = 0xFFFFFFFF;

  // ---- strings without any condition but their length -----------------------------------------

  /// Where a token closes the string: a node behind an unescaped quote.
  struct Close {
    uint32_t node = 0;
    uint32_t chars = 0;    // characters before the quote
    bool leaf = false;     // nothing comes behind it
    bool escaped = false;  // an escape comes before it
  };
  static constexpr uint32_t kMaxSlice = 32;
  struct Plain {
    /// [chars up to kMaxSlice + 1][words]: tokens that stay within a string, of at most so many
    /// characters; the last: of any number.
    std::vector<std::vector<uint32_t>> inside;
    /// Tokens of more than kMaxSlice characters, with their number.
    std::vector<std::pair<uint32_t, int32_t>> long_tokens;
    std::vector<Close> closes;
    /// Those of the last of `inside` that end between two characters.
    std::vector<uint32_t> whole;
    /// The last of `inside`, and the leaves of `closes`.
    std::vector<uint32_t> open;
    std::vector<uint32_t> open_key;        // the same but for those with an escape
    std::vector<uint32_t> close_branches;  // nodes of `closes` that are no leaves
    std::vector<uint32_t> escaped_leaves;  // leaves that open_key lacks
    /// Two parts of close_branches: those behind which the same may follow whatever a key is, and
    /// the others, with an escape or with another string within one token.
    std::vector<uint32_t> key_branches, odd_branches;
    std::vector<int32_t> escapes;  // tokens with a backslash
    /// [escapes] the first byte of the characters that each spells; -1 where it spells less than
    /// one.
    std::vector<int16_t> first_spelled;
    /// The last of `inside` by what they leave of the string: behind all of one kind the same may
    /// come. Kind 0 ends between two characters.
    struct Inside {
      uint32_t kind = 0;
      uint32_t chars = 0;  // characters that are begun
      std::vector<int32_t> ids;
    };
    std::vector<Inside> insides;  // by kind, then by characters
    uint32_t num_kinds = 0;
    /// Tokens that close the string, by what they have behind its quote; sorted by that.
    struct Tail {
      std::string text;
      std::vector<int32_t> ids;
    };
    std::vector<Tail> tails;
    size_t max_close = 0;  // bytes of the longest of `closes`
  } plain;
  /// Tokens that are nothing but JSON's white space, and what stands behind the runs of white space
  /// that begin a token, the empty run too: nodes by their byte, which is no white space.
  struct Spaces {
    std::vector<uint32_t> words;
    std::vector<std::vector<uint32_t>> behind;  // [256]
  } spaces;
  /// For a node whose last byte opens a string: what follows it, as above.
  struct Opening {
    std::vector<int32_t> inside;
    std::vector<Close> closes;
  };
  std::unordered_map<uint32_t, Opening> openings;

  void build();

  mutable constrain::SharedMasks masks;  // of all grammars over this vocabulary

 private:
  void build_trie();
  void build_children();
  void build_slices();
  void build_plain();
  void build_escapes();
  void build_tails();
  void build_spaces();
  bool has_string_below(uint32_t node) const;
};

namespace constrain {

struct TableAccess {
  static const TokenTable::Impl& impl(const TokenTable& table) { return *table.impl_; }
};

/// What the room itself works with.
inline const TokenTable::Impl& impl_of(const TokenTable& table) { return TableAccess::impl(table); }

}  // namespace constrain

}  // namespace vitrine
