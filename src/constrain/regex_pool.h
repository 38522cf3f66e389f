// SPDX-License-Identifier: Apache-2.0
// Regular languages over bytes as hash-consed expressions, and the automaton that their derivatives
// are (Brzozowski 1964): a node is a state, its row says where each byte leads. Rows are made when
// a state is first visited. Intersection and complement are nodes like any other, and a repetition
// keeps its bounds as numbers, so a long one takes no more space than a short one.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "byte_automaton.h"
#include "byte_set.h"
#include "number_bound.h"
#include "shared_masks.h"
#include "shared_states.h"
#include "string_escape.h"

namespace vitrine::constrain {

using NodeId = uint32_t;
inline constexpr NodeId kEmptyNode = 0;    // no string at all
inline constexpr NodeId kEpsilonNode = 1;  // the empty string only
inline constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

/// Sums and products of bounds: what does not fit is unbounded.
inline uint32_t add_bounds(uint32_t x, uint32_t y) {
  return x > kUnbounded - y ? kUnbounded : x + y;
}
inline uint32_t multiply_bounds(uint32_t x, uint32_t y) {
  return x != 0 && y > kUnbounded / x ? kUnbounded : x * y;
}

enum class NodeKind : uint8_t {
  kEmpty,
  kEpsilon,
  kBytes,     // a: index of a byte set
  kCat,       // a then b; low: so many parts in a row may be empty, from the first on
  kOr,        // a: index of a list
  kAnd,       // a: index of a list
  kNot,       // complement of a among all byte strings
  kRepeat,    // a, low to high times
  kLiterals,  // a: a sorted list of strings, b: depth, the strings low to high - 1 from there on
  kNumber,    // a: index of a numeric bound, b: packed state
  kWalk,      // what leads automaton a from state b to one of the states in list `low`
  kJsonBody,  // JSON's spelling of the rest of a string whose content is a, and the closing quote;
              // b: packed EscapeState
};

struct Node {
  NodeKind kind = NodeKind::kEmpty;
  bool nullable = false;
  uint32_t a = 0, b = 0, low = 0, high = 0;
};

/// How many digits the parts of a number may have.
struct NumberDigits {
  uint32_t integer = kUnbounded, fraction = kUnbounded, exponent = kUnbounded;
};

/// Not thread-safe, but for what SharedStates lets threads do.
class RegexPool {
 public:
  /// `max_nodes` bounds the memory: beyond it (and for a search that finds no end) every function
  /// throws kUnsupported.
  explicit RegexPool(size_t max_nodes = size_t{1} << 20);

  const Node& node(NodeId id) const { return nodes_[id]; }
  const ByteSet& byte_set(const Node& node) const { return byte_sets_[node.a]; }
  std::span<const NodeId> list(const Node& node) const { return lists_[node.a]; }
  bool nullable(NodeId id) const { return nodes_[id].nullable; }

  NodeId bytes(const ByteSet& set);
  NodeId literal(std::string_view text);
  NodeId cat(NodeId first, NodeId second);
  NodeId any_of(std::vector<NodeId> members);
  NodeId all_of(std::vector<NodeId> members);
  NodeId any_of(NodeId x, NodeId y) { return any_of(std::vector<NodeId>{x, y}); }
  NodeId all_of(NodeId x, NodeId y) { return all_of(std::vector<NodeId>{x, y}); }
  NodeId raw_not(NodeId member);
  NodeId repeat(NodeId member, uint32_t low, uint32_t high);
  /// One of these strings (no duplicates needed).
  NodeId literals(std::vector<std::string> strings);
  /// Tells whether `test` holds for what is left of some string of a kLiterals node.
  template <typename Test>
  bool any_literal(NodeId id, Test&& test) const {
    const Node& node = nodes_[id];
    for (uint32_t i = node.low; i < node.high; ++i) {
      if (test(std::string_view(literal_sets_[node.a][i]).substr(node.b))) return true;
    }
    return false;
  }
  NodeId number_bound(const NumberBound& bound);
  /// The automaton's index, for walk(). Throws kUnsupported where all together are too large.
  uint32_t add_automaton(ByteAutomaton automaton);
  const ByteAutomaton& automaton(uint32_t index) const { return automata_[index]; }
  /// Texts that lead the automaton from one state to one of `to`.
  NodeId walk(uint32_t automaton, uint32_t from, std::vector<uint32_t> to);
  /// The content's JSON spelling without the opening quote.
  NodeId json_body(NodeId content, EscapeState escape = {});

  /// UTF-8 of one character out of sorted, disjoint ranges.
  NodeId characters(std::span<const CodeRange> ranges);
  NodeId any_char() const { return any_char_; }
  /// Any valid UTF-8 text.
  NodeId any_text() const { return any_text_; }
  /// The same language without bounds on the length that its patterns keep anyway.
  NodeId without_idle_lengths(NodeId id);
  /// The number of characters of all texts of the language, where it is seen to be one.
  std::optional<uint32_t> one_length(NodeId id) const;
  /// As good as this language for a text's next `reach` bytes, that is whether they lead on and
  /// whether the text may end with them: repetitions whose upper bound they cannot meet have none.
  NodeId without_far_limits(NodeId id, uint32_t reach);
  /// Bytes that hold one of these texts.
  NodeId bytes_with(std::vector<std::string> texts);
  /// Texts (valid UTF-8) that hold none of these.
  NodeId text_without(std::vector<std::string> texts);
  /// Texts (valid UTF-8) that are not in `member`.
  NodeId text_complement(NodeId member);
  /// JSON numbers of any number of digits.
  NodeId number() const { return number_; }
  /// JSON numbers of so many digits; those without an exponent; of these, those without a fraction
  /// (or with one of zeros, where `allow_zeros`).
  NodeId number(const NumberDigits& digits);
  NodeId plain_number(const NumberDigits& digits = {});
  NodeId integer(bool allow_zeros, const NumberDigits& digits = {});

  /// 256 entries: where each byte leads; kEmptyNode where no string of the language goes on so.
  const uint32_t* row(NodeId id) {
    const int32_t index = row_index_[id];
    return index >= 0 ? rows_[static_cast<size_t>(index)].get() : make_row(id);
  }
  /// The bytes that lead on: those of the row that are not kEmptyNode.
  const ByteSet& row_bytes(NodeId id) {
    row(id);
    return row_bytes_[static_cast<size_t>(row_index_[id])];
  }
  bool has_row(NodeId id) const { return row_index_[id] >= 0; }
  NodeId step(NodeId id, uint8_t byte) {
    const int32_t index = row_index_[id];
    return index >= 0 ? rows_[static_cast<size_t>(index)][byte] : step_without_row(id, byte);
  }
  NodeId step(NodeId id, std::string_view text);
  bool matches(NodeId id, std::string_view text) { return nullable(step(id, text)); }
  /// False where no string is in the language.
  bool is_live(NodeId id);
  /// True where some character of the range can come next in a text of this language.
  bool range_is_live(NodeId id, CodeRange range);
  /// True where the language has infinitely many strings; throws where that takes too long to see.
  bool is_infinite(NodeId id);
  /// Number of strings in the language, at most `limit`.
  uint64_t count_strings(NodeId id, uint64_t limit);
  /// A shortest string; the language must be live.
  std::string shortest(NodeId id);

  /// An upper bound of the shortest string's length in bytes; kUnbounded where none is known.
  uint32_t shortest_bound(NodeId id);
  /// Appends a text of that length, put together from the parts without derivatives. False where
  /// there are conjunctions, numbers or JSON strings, or where the bound is above `limit`.
  bool shortest_by_parts(NodeId id, uint32_t limit, std::string& out);
  /// True where no text can leave the language's reach: whatever comes, something can still match.
  bool takes_any_text(NodeId id);

  /// What the language's expression says, the same in every pool.
  Fingerprint fingerprint(NodeId id);

  size_t num_nodes() const { return nodes_.size(); }
  size_t num_rows() const { return rows_.size(); }
  size_t num_automaton_states() const { return num_automaton_states_; }

 private:
  struct Key {
    uint64_t x, y, z;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return mix_hash(mix_hash(mix_hash(1, key.x), key.y), key.z);
    }
  };

  struct LengthRange {
    uint32_t least = 0, most = kUnbounded;  // characters
  };
  using LengthRanges = std::unordered_map<NodeId, LengthRange>;

  LengthRange length_range(NodeId id, LengthRanges& known) const;
  uint32_t all_lengths_from(NodeId id);
  bool has_text_of_length(NodeId id);
  Fingerprint fingerprint_of(NodeId id) const;
  bool is_known(NodeId id) const { return !(fingerprints_[id] == Fingerprint{}); }
  NodeId intern(Node node);
  uint32_t intern_list(std::vector<NodeId> members);
  NodeId filter_literals(NodeId literals, std::span<const NodeId> others);
  NodeId derive(NodeId id, uint8_t byte);
  void add_derivatives(NodeId id, uint8_t byte, uint32_t epoch, std::vector<NodeId>& out);
  bool is_part_of(NodeId left, NodeId part) const;
  NodeId derive_all(NodeId id, uint8_t byte);
  NodeId derive_body(const Node& body, uint8_t byte);
  NodeId walk(uint32_t automaton, uint32_t from, uint32_t list);
  NodeId derive_literals(const Node& literals, uint8_t byte);
  void collect_sets(NodeId id, std::vector<ByteSet>& sets);
  const uint32_t* make_row(NodeId id);
  bool search_live(NodeId id);
  bool search_infinite(NodeId id);
  uint32_t bound_after_escape(const Node& body);
  NodeId step_without_row(NodeId id, uint8_t byte);
  bool range_walk(NodeId id, uint32_t low, uint32_t high, int bytes_left);

  size_t max_nodes_;
  std::vector<Node> nodes_;
  std::vector<int32_t> row_index_;
  std::vector<int8_t> live_;      // -1 unknown
  std::vector<uint8_t> visits_;   // of a state without a row
  std::vector<uint32_t> epochs_;  // of sequences: the derivative that met them last
  uint32_t epoch_ = 0;
  int depth_ = 0;                                 // of conjunctions that are being derived
  std::unordered_map<uint64_t, NodeId> derived_;  // of these, by id and byte
  std::vector<uint32_t> shortest_;                // kUnbounded - 1: not computed
  std::vector<Fingerprint> fingerprints_;         // of the first nodes; zero: not computed
  std::unordered_map<NodeId, bool> takes_any_, infinite_;
  std::unordered_map<NodeId, uint32_t> all_lengths_;
  std::vector<std::unique_ptr<uint32_t[]>> rows_;
  std::vector<ByteSet> row_bytes_;  // by row
  std::unordered_map<Key, NodeId, KeyHash> ids_;
  std::vector<ByteSet> byte_sets_;
  std::unordered_map<Key, uint32_t, KeyHash> byte_set_ids_;
  std::vector<std::vector<NodeId>> lists_;
  size_t num_members_ = 0;  // of all of them
  std::unordered_multimap<uint64_t, uint32_t> list_ids_;
  std::vector<std::vector<std::string>> literal_sets_;
  std::unordered_multimap<uint64_t, uint32_t> literal_set_ids_;
  std::vector<NumberBound> bounds_;
  std::vector<ByteAutomaton> automata_;
  size_t num_automaton_states_ = 0;
  NodeId any_char_ = 0, any_text_ = 0, number_ = 0;
};

}  // namespace vitrine::constrain
