// SPDX-License-Identifier: Apache-2.0
// How long a language's texts are, told from its expression: what a bound on their length changes.
#include <algorithm>
#include <unordered_map>

#include "core/utf8.h"
#include "regex_pool.h"

namespace vitrine::constrain {

namespace {

/// Bytes that do not begin a character.
ByteSet continuation_bytes() { return ByteSet::range(0x80, 0xBF); }

}  // namespace

/// Counts the bytes that begin a character.
std::optional<uint32_t> RegexPool::one_length(NodeId id) const {
  LengthRanges known;
  const LengthRange range = length_range(id, known);
  return range.least == range.most ? std::optional(range.least) : std::nullopt;
}

RegexPool::LengthRange RegexPool::length_range(NodeId id, LengthRanges& known) const {
  constexpr LengthRange kAny{0, kUnbounded};
  if (const auto found = known.find(id); found != known.end()) return found->second;
  const Node& node = nodes_[id];
  LengthRange out = kAny;
  switch (node.kind) {
    case NodeKind::kEpsilon: out = {0, 0}; break;
    case NodeKind::kBytes: {
      const ByteSet inside = byte_sets_[node.a] & continuation_bytes();
      out = {inside.empty() ? 1U : 0U, inside == byte_sets_[node.a] ? 0U : 1U};
      break;
    }
    case NodeKind::kCat: {  // without recursion along a long sequence
      out = {0, 0};
      NodeId at = id;
      for (; nodes_[at].kind == NodeKind::kCat; at = nodes_[at].b) {
        const LengthRange part = length_range(nodes_[at].a, known);
        out = {add_bounds(out.least, part.least), add_bounds(out.most, part.most)};
      }
      const LengthRange part = length_range(at, known);
      out = {add_bounds(out.least, part.least), add_bounds(out.most, part.most)};
      break;
    }
    case NodeKind::kOr:
      out = {kUnbounded, 0};
      for (const NodeId member : lists_[node.a]) {
        const LengthRange part = length_range(member, known);
        out = {std::min(out.least, part.least), std::max(out.most, part.most)};
      }
      break;
    case NodeKind::kAnd:
      for (const NodeId member : lists_[node.a]) {
        const LengthRange part = length_range(member, known);
        out = {std::max(out.least, part.least), std::min(out.most, part.most)};
      }
      break;
    case NodeKind::kRepeat: {
      const LengthRange part = length_range(node.a, known);
      out = {multiply_bounds(part.least, node.low), multiply_bounds(part.most, node.high)};
      break;
    }
    case NodeKind::kLiterals:
      out = {kUnbounded, 0};
      for (uint32_t i = node.low; i < node.high; ++i) {
        const auto text = std::string_view(literal_sets_[node.a][i]).substr(node.b);
        const auto length = static_cast<uint32_t>(std::count_if(
            text.begin(), text.end(), [](char byte) { return !is_continuation(byte); }));
        out = {std::min(out.least, length), std::max(out.most, length)};
      }
      break;
    default: break;
  }
  known.emplace(id, out);
  return out;
}

NodeId RegexPool::without_idle_lengths(NodeId id) {
  const Node node = nodes_[id];
  if (node.kind != NodeKind::kAnd && node.kind != NodeKind::kOr) return id;
  std::vector<NodeId> members = lists_[node.a];
  if (node.kind == NodeKind::kOr) {
    for (NodeId& member : members) member = without_idle_lengths(member);
    return any_of(std::move(members));
  }
  const auto length = std::find_if(members.begin(), members.end(), [this](NodeId member) {
    return nodes_[member].kind == NodeKind::kRepeat && nodes_[member].a == any_char_;
  });
  if (length == members.end()) return id;
  uint32_t low = nodes_[*length].low, high = nodes_[*length].high;
  members.erase(length);
  LengthRanges known;
  for (NodeId& member : members) {
    const Node part = nodes_[member];
    if (low > 0 && part.kind == NodeKind::kOr && lists_[part.a][0] == kEpsilonNode) {
      std::vector<NodeId> others = lists_[part.a];  // "^$|…" with a least length
      others.erase(others.begin());
      member = any_of(std::move(others));
    }
    const LengthRange range = length_range(member, known);
    if (range.least >= low) low = 0;
    if (range.most <= high) high = kUnbounded;
  }
  members.push_back(repeat(any_char_, low, high));
  return all_of(std::move(members));
}

NodeId RegexPool::without_far_limits(NodeId id, uint32_t reach) {
  const Node node = nodes_[id];
  switch (node.kind) {
    case NodeKind::kJsonBody:
      return json_body(without_far_limits(node.a, reach), EscapeState::unpack(node.b));
    case NodeKind::kRepeat: {
      const bool is_far = node.high != kUnbounded && node.high > reach;
      return repeat(without_far_limits(node.a, reach), node.low, is_far ? kUnbounded : node.high);
    }
    case NodeKind::kOr: {
      std::vector<NodeId> members = lists_[node.a];
      for (NodeId& member : members) member = without_far_limits(member, reach);
      return any_of(std::move(members));
    }
    case NodeKind::kCat: {  // from the end on, without recursion along a long sequence
      std::vector<NodeId> parts;
      NodeId at = id;
      for (; nodes_[at].kind == NodeKind::kCat; at = nodes_[at].b) parts.push_back(nodes_[at].a);
      NodeId out = without_far_limits(at, reach);
      for (; !parts.empty(); parts.pop_back()) {
        out = cat(without_far_limits(parts.back(), reach), out);
      }
      return out;
    }
    default: return id;
  }
}

/// From here on there are texts of every length, in characters; kUnbounded where that is not plain.
uint32_t RegexPool::all_lengths_from(NodeId id) {
  if (const auto found = all_lengths_.find(id); found != all_lengths_.end()) return found->second;
  must_write();
  const Node node = nodes_[id];
  uint32_t from = kUnbounded;
  switch (node.kind) {
    case NodeKind::kRepeat: {
      LengthRanges known;
      const LengthRange one = length_range(node.a, known);
      if (node.high == kUnbounded && one.least == 1 && one.most == 1 && is_live(node.a)) {
        from = node.low;
      } else {
        from = multiply_bounds(std::max(node.low, 1U), all_lengths_from(node.a));
      }
      break;
    }
    case NodeKind::kOr:
      for (const NodeId member : std::vector<NodeId>(lists_[node.a])) {
        from = std::min(from, all_lengths_from(member));
      }
      break;
    case NodeKind::kCat: {  // one part's every length, beside the others' shortest
      uint32_t before = 0;
      NodeId at = id;
      for (; nodes_[at].kind == NodeKind::kCat; at = nodes_[at].b) {
        const NodeId part = nodes_[at].a;
        const uint32_t here = add_bounds(before, all_lengths_from(part));
        if (here != kUnbounded)
          from = std::min(from, add_bounds(here, shortest_bound(nodes_[at].b)));
        before = add_bounds(before, shortest_bound(part));
      }
      from = std::min(from, add_bounds(before, all_lengths_from(at)));
      break;
    }
    default: break;
  }
  all_lengths_[id] = from;
  return from;
}

/// A conjunction of an expression and a length: true where some text of the one plainly has the
/// other. Else there may be one still.
bool RegexPool::has_text_of_length(NodeId id) {
  const std::vector<NodeId>& pair = lists_[nodes_[id].a];
  if (pair.size() != 2) return false;
  for (size_t i = 0; i < 2; ++i) {
    const Node length = nodes_[pair[i]];
    if (length.kind != NodeKind::kRepeat || length.a != any_char_) continue;
    const NodeId text = pair[1 - i];
    if (length.low == 0 && shortest_bound(text) <= length.high &&
        shortest_bound(text) != kUnbounded) {
      return true;
    }
    const uint32_t from = all_lengths_from(text);
    return from != kUnbounded && from <= length.high;
  }
  return false;
}

}  // namespace vitrine::constrain
