// SPDX-License-Identifier: Apache-2.0
#include "regex_pool.h"

#include <algorithm>

#include "vitrine/core.h"

namespace vitrine::constrain {

namespace {

constexpr uint32_t kMaxOptional = 1000;  // parts of a sequence: bounds the work for one byte
constexpr size_t kMembersPerNode = 16;   // of lists, on average
constexpr size_t kNodesPerAutomatonState = 256;

}  // namespace

RegexPool::RegexPool(size_t max_nodes) : max_nodes_(max_nodes) {
  nodes_.push_back({NodeKind::kEmpty, false, 0, 0, 0, 0});
  nodes_.push_back({NodeKind::kEpsilon, true, 0, 0, 0, 0});
  row_index_ = {-1, -1};
  live_ = {0, 1};
  visits_ = {0, 0};
  shortest_ = {kUnbounded, 0};
  const CodeRange ranges[] = {{0, 0xD7FF}, {0xE000, kMaxCodePoint}};
  any_char_ = characters(ranges);
  any_text_ = repeat(any_char_, 0, kUnbounded);
  number_ = number({});
}

NodeId RegexPool::intern(Node node) {
  const Key key{static_cast<uint64_t>(node.kind) << 32 | node.a,
                static_cast<uint64_t>(node.b) << 32 | node.low, node.high};
  if (const auto known = ids_.find(key); known != ids_.end()) return known->second;
  must_write();
  const auto found = ids_.emplace(key, static_cast<NodeId>(nodes_.size())).first;
  if (nodes_.size() >= max_nodes_) {
    ids_.erase(found);
    throw Error(ErrorKind::kUnsupported,
                "the grammar needs more than " + std::to_string(max_nodes_) +
                    " automaton states; shorten its patterns or raise the limit");
  }
  const NodeId id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back(node);
  row_index_.push_back(-1);
  live_.push_back(-1);
  visits_.push_back(0);
  shortest_.push_back(kUnbounded - 1);
  return id;
}

NodeId RegexPool::bytes(const ByteSet& set) {
  if (set.empty()) return kEmptyNode;
  const Key key{mix_hash(set.words[0], set.words[1]), set.words[2], set.words[3] ^ set.words[0]};
  const auto known = byte_set_ids_.find(key);
  if (known != byte_set_ids_.end() && byte_sets_[known->second] == set) {
    return intern({NodeKind::kBytes, false, known->second, 0, 0, 0});
  }
  must_write();
  auto index = static_cast<uint32_t>(byte_sets_.size());
  if (known == byte_set_ids_.end()) {
    byte_set_ids_.emplace(key, index);
  } else {  // the key is a hash
    const auto same = std::find(byte_sets_.begin(), byte_sets_.end(), set);
    index = static_cast<uint32_t>(same - byte_sets_.begin());
  }
  if (index == byte_sets_.size()) byte_sets_.push_back(set);
  return intern({NodeKind::kBytes, false, index, 0, 0, 0});
}

NodeId RegexPool::literal(std::string_view text) {
  NodeId out = kEpsilonNode;
  for (size_t i = text.size(); i-- > 0;) {
    const int byte = static_cast<uint8_t>(text[i]);
    out = cat(bytes(ByteSet::range(byte, byte)), out);
  }
  return out;
}

NodeId RegexPool::cat(NodeId first, NodeId second) {
  if (first == kEmptyNode || second == kEmptyNode) return kEmptyNode;
  if (first == kEpsilonNode) return second;
  if (second == kEpsilonNode) return first;
  // Any text twice is any text.
  if (first == any_text_ && any_text_ != 0) {
    const Node& next = nodes_[second];
    if (second == any_text_ || (next.kind == NodeKind::kCat && next.a == any_text_)) return second;
  }
  if (nodes_[first].kind == NodeKind::kCat) {  // its parts from the last on, without recursion
    std::vector<NodeId> parts;
    for (; nodes_[first].kind == NodeKind::kCat; first = nodes_[first].b) {
      parts.push_back(nodes_[first].a);
    }
    for (second = cat(first, second); !parts.empty(); parts.pop_back()) {
      second = cat(parts.back(), second);
    }
    return second;
  }
  const Node& next = nodes_[second];
  const bool is_optional = nodes_[first].nullable;
  const uint32_t run = !is_optional ? 0 : next.kind == NodeKind::kCat ? next.low + 1 : 1;
  if (run > kMaxOptional) {
    throw Error(ErrorKind::kUnsupported, "a pattern with more than " +
                                             std::to_string(kMaxOptional) +
                                             " parts in a row that may be empty; make it simpler");
  }
  return intern({NodeKind::kCat, is_optional && next.nullable, first, second, run, 0});
}

uint32_t RegexPool::intern_list(std::vector<NodeId> members) {
  uint64_t hash = members.size();
  for (NodeId member : members) hash = mix_hash(hash, member);
  const auto [first, last] = list_ids_.equal_range(hash);
  for (auto found = first; found != last; ++found) {
    if (lists_[found->second] == members) return found->second;
  }
  must_write();
  if (members.size() > max_nodes_ / 4) {  // each state and each byte of it costs as much
    throw Error(ErrorKind::kUnsupported, "the grammar has more than " +
                                             std::to_string(max_nodes_ / 4) +
                                             " alternatives at one place; have fewer or raise the "
                                             "limit of states");
  }
  num_members_ += members.size();
  if (num_members_ > kMembersPerNode * max_nodes_) {
    throw Error(ErrorKind::kUnsupported,
                "the grammar's automaton states need more than " +
                    std::to_string(kMembersPerNode * max_nodes_) +
                    " parts; shorten its patterns or raise the limit of states");
  }
  lists_.push_back(std::move(members));
  list_ids_.emplace(hash, static_cast<uint32_t>(lists_.size() - 1));
  return static_cast<uint32_t>(lists_.size() - 1);
}

namespace {

void sort_unique(std::vector<NodeId>& members) {
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
}

}  // namespace

NodeId RegexPool::any_of(std::vector<NodeId> members) {
  std::vector<NodeId> flat;
  ByteSet set;
  std::vector<std::string> strings;
  std::vector<std::pair<uint32_t, uint32_t>> lengths;  // of whole characters, any at all
  size_t num_sets = 0, num_literals = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const Node node = nodes_[members[i]];
    if (members[i] == any_text_ && any_text_ != 0) return any_text_;
    if (members[i] == number_ && number_ != 0 && members.size() == 1) return number_;
    if (node.kind == NodeKind::kOr) {
      members.insert(members.end(), lists_[node.a].begin(), lists_[node.a].end());
    } else if (node.kind == NodeKind::kBytes) {
      set = set | byte_sets_[node.a];
      ++num_sets;
    } else if (node.kind == NodeKind::kRepeat && node.a == any_char_ && any_char_ != 0) {
      lengths.emplace_back(node.low, node.high);
    } else if (node.kind == NodeKind::kLiterals && node.b == 0 &&
               node.high - node.low == literal_sets_[node.a].size()) {
      const auto& all = literal_sets_[node.a];
      if (num_literals++ == 0) {
        flat.push_back(members[i]);
        strings = all;
      } else {
        strings.insert(strings.end(), all.begin(), all.end());
      }
    } else if (node.kind != NodeKind::kEmpty) {
      flat.push_back(members[i]);
    }
  }
  if (num_literals > 1) {
    std::erase_if(flat, [&](NodeId id) {
      return nodes_[id].kind == NodeKind::kLiterals && nodes_[id].b == 0 &&
             nodes_[id].high - nodes_[id].low == literal_sets_[nodes_[id].a].size();
    });
    flat.push_back(literals(std::move(strings)));
  }
  if (num_sets > 0) flat.push_back(bytes(set));
  std::sort(lengths.begin(), lengths.end());
  for (size_t i = 0; i < lengths.size(); ++i) {
    while (i + 1 < lengths.size() &&
           (lengths[i].second == kUnbounded || lengths[i + 1].first <= lengths[i].second + 1)) {
      lengths[i + 1] = {lengths[i].first, std::max(lengths[i].second, lengths[i + 1].second)};
      ++i;
    }
    flat.push_back(repeat(any_char_, lengths[i].first, lengths[i].second));
    if (flat.back() == any_text_ && any_text_ != 0) return any_text_;
  }
  sort_unique(flat);
  if (flat.empty()) return kEmptyNode;
  if (flat.size() == 1) return flat[0];
  bool nullable = false;
  for (NodeId member : flat) nullable |= nodes_[member].nullable;
  if (nullable && flat[0] == kEpsilonNode) {  // redundant beside a member that is nullable itself
    for (size_t i = 1; i < flat.size(); ++i) {
      if (!nodes_[flat[i]].nullable) continue;
      flat.erase(flat.begin());
      break;
    }
    if (flat.size() == 1) return flat[0];
  }
  return intern({NodeKind::kOr, nullable, intern_list(std::move(flat)), 0, 0, 0});
}

NodeId RegexPool::filter_literals(NodeId id, std::span<const NodeId> others) {
  const Node node = nodes_[id];
  std::vector<std::string> kept;
  for (uint32_t i = node.low; i < node.high; ++i) {
    const std::string rest = literal_sets_[node.a][i].substr(node.b);
    bool in_all = true;
    for (NodeId other : others) in_all = in_all && matches(other, rest);
    if (in_all) kept.push_back(rest);
  }
  return literals(std::move(kept));
}

NodeId RegexPool::all_of(std::vector<NodeId> members) {
  std::vector<NodeId> flat;
  bool has_positive = false, has_lengths = false, no_text = false;
  uint32_t low = 0, high = kUnbounded;
  NodeId literal_member = kEmptyNode;
  for (size_t i = 0; i < members.size(); ++i) {
    const Node node = nodes_[members[i]];
    if (node.kind == NodeKind::kEmpty) return kEmptyNode;
    if (node.kind == NodeKind::kAnd) {
      members.insert(members.end(), lists_[node.a].begin(), lists_[node.a].end());
      continue;
    }
    if (node.kind == NodeKind::kRepeat && node.a == any_char_) {
      has_lengths = true;
      low = std::max(low, node.low);
      high = std::min(high, node.high);
      continue;
    }
    if (node.kind == NodeKind::kNot) {
      if (node.a == kEmptyNode) continue;  // what a lookahead that has failed leaves: anything
      no_text |= node.a == any_text_ && any_text_ != 0;
    }
    if (node.kind == NodeKind::kLiterals) literal_member = members[i];
    has_positive |= node.kind != NodeKind::kNot;
    flat.push_back(members[i]);
  }
  if (low > high || (no_text && (has_positive || has_lengths))) return kEmptyNode;
  // A text language need not be intersected with all texts; a bare complement must be.
  if (has_lengths && (low > 0 || high != kUnbounded || !has_positive)) {
    flat.push_back(repeat(any_char_, low, high));
  }
  sort_unique(flat);
  if (flat.empty()) return any_text_;
  if (flat.size() == 1) return flat[0];
  if (flat[0] == kEpsilonNode) {
    for (NodeId member : flat) {
      if (!nodes_[member].nullable) return kEmptyNode;
    }
    return kEpsilonNode;
  }
  if (literal_member != kEmptyNode) {
    std::erase(flat, literal_member);
    return filter_literals(literal_member, flat);
  }
  bool nullable = true;
  for (NodeId member : flat) nullable &= nodes_[member].nullable;
  for (NodeId member : flat) {  // x and not x
    const Node& node = nodes_[member];
    if (node.kind == NodeKind::kNot && std::binary_search(flat.begin(), flat.end(), node.a)) {
      return kEmptyNode;
    }
  }
  return intern({NodeKind::kAnd, nullable, intern_list(std::move(flat)), 0, 0, 0});
}

NodeId RegexPool::raw_not(NodeId member) {
  const Node node = nodes_[member];
  if (node.kind == NodeKind::kNot) return node.a;
  return intern({NodeKind::kNot, !node.nullable, member, 0, 0, 0});
}

NodeId RegexPool::text_complement(NodeId member) {
  const Node node = nodes_[member];
  if (node.kind == NodeKind::kEmpty) return any_text_;
  if (node.kind == NodeKind::kRepeat && node.a == any_char_) {
    std::vector<NodeId> parts;
    if (node.low > 0) parts.push_back(repeat(any_char_, 0, node.low - 1));
    if (node.high != kUnbounded) parts.push_back(repeat(any_char_, node.high + 1, kUnbounded));
    return any_of(std::move(parts));
  }
  if (node.kind == NodeKind::kAnd && lists_[node.a].size() == 2) {  // a complement of a complement
    const auto& pair = lists_[node.a];
    for (size_t i = 0; i < 2; ++i) {
      const Node& other = nodes_[pair[1 - i]];
      if (pair[i] == any_text_ && other.kind == NodeKind::kNot) return other.a;
    }
  }
  return all_of(any_text_, raw_not(member));
}

NodeId RegexPool::repeat(NodeId member, uint32_t low, uint32_t high) {
  if (high == 0) return kEpsilonNode;
  if (member == kEmptyNode) return low == 0 ? kEpsilonNode : kEmptyNode;
  if (member == kEpsilonNode || (low == 1 && high == 1)) return member;
  const Node node = nodes_[member];
  if (node.nullable) low = 0;
  if (node.kind == NodeKind::kRepeat && low == 0 && high == kUnbounded && node.low <= 1 &&
      node.high == kUnbounded) {
    return repeat(node.a, 0, kUnbounded);
  }
  return intern({NodeKind::kRepeat, low == 0, member, 0, low, high});
}

NodeId RegexPool::bytes_with(std::vector<std::string> texts) {
  const NodeId anything = raw_not(kEmptyNode);
  return cat(anything, cat(literals(std::move(texts)), anything));
}

NodeId RegexPool::text_without(std::vector<std::string> texts) {
  if (texts.empty()) return any_text_;
  return all_of(any_text_, raw_not(bytes_with(std::move(texts))));
}

NodeId RegexPool::literals(std::vector<std::string> strings) {
  std::sort(strings.begin(), strings.end());
  strings.erase(std::unique(strings.begin(), strings.end()), strings.end());
  if (strings.empty()) return kEmptyNode;
  if (strings.size() == 1 && strings[0].empty()) return kEpsilonNode;
  uint64_t hash = strings.size();
  for (const std::string& text : strings) hash = mix_hash(hash, std::hash<std::string>()(text));
  uint32_t index = static_cast<uint32_t>(literal_sets_.size());
  const auto [first, last] = literal_set_ids_.equal_range(hash);
  for (auto found = first; found != last; ++found) {
    if (literal_sets_[found->second] == strings) index = found->second;
  }
  if (index == literal_sets_.size()) {
    must_write();
    literal_sets_.push_back(std::move(strings));
    literal_set_ids_.emplace(hash, index);
  }
  const auto& set = literal_sets_[index];
  return intern(
      {NodeKind::kLiterals, set[0].empty(), index, 0, 0, static_cast<uint32_t>(set.size())});
}

NodeId RegexPool::number_bound(const NumberBound& bound) {
  auto found = std::find(bounds_.begin(), bounds_.end(), bound);
  const auto index = static_cast<uint32_t>(found - bounds_.begin());
  if (found == bounds_.end()) {
    must_write();
    bounds_.push_back(bound);
  }
  return intern({NodeKind::kNumber, false, index, 0, 0, 0});
}

uint32_t RegexPool::add_automaton(ByteAutomaton automaton) {
  must_write();
  num_automaton_states_ += automaton.size();
  if (num_automaton_states_ > max_nodes_ / kNodesPerAutomatonState) {
    throw Error(ErrorKind::kUnsupported, "the grammar's lookbehinds need more than " +
                                             std::to_string(max_nodes_ / kNodesPerAutomatonState) +
                                             " states; shorten them or raise the limit of states");
  }
  automata_.push_back(std::move(automaton));
  return static_cast<uint32_t>(automata_.size() - 1);
}

NodeId RegexPool::walk(uint32_t automaton, uint32_t from, std::vector<uint32_t> to) {
  sort_unique(to);
  return walk(automaton, from, intern_list(std::move(to)));
}

NodeId RegexPool::walk(uint32_t automaton, uint32_t from, uint32_t list) {
  const bool is_there = std::binary_search(lists_[list].begin(), lists_[list].end(), from);
  return intern({NodeKind::kWalk, is_there, automaton, from, list, 0});
}

NodeId RegexPool::json_body(NodeId content, EscapeState escape) {
  if (content == kEmptyNode) return kEmptyNode;
  return intern({NodeKind::kJsonBody, false, content, escape.pack(), 0, 0});
}

}  // namespace vitrine::constrain
