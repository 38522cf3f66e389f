// SPDX-License-Identifier: Apache-2.0
// Questions about a whole language: is it empty, infinite, how large, what is its shortest string.
#include <algorithm>
#include <deque>
#include <unordered_map>

#include "core/utf8.h"
#include "regex_pool.h"
#include "vitrine/core.h"

namespace vitrine::constrain {

namespace {

/// Bytes that are still to come of an escape that becomes `code`.
uint32_t bytes_of_escape(EscapeState escape, uint32_t code) {
  const uint32_t pair = code > 0xFFFF && escape.high == 0 ? 6 : 0;
  switch (escape.phase) {
    case EscapeState::kBackslash: return code == '"' || code == '\n' ? 1 : 5 + pair;
    case EscapeState::kHex: return 4 - escape.digits + pair;
    case EscapeState::kNeedBackslash: return 6;
    case EscapeState::kNeedU: return 5;
    default: return 0;
  }
}

constexpr size_t kMaxSearch = 100000;

[[noreturn]] void too_complex(const char* what) {
  throw Error(ErrorKind::kUnsupported, std::string("a pattern is too complex to tell ") + what +
                                           " within " + std::to_string(kMaxSearch) +
                                           " steps; simplify it");
}

/// The distinct bytes' targets of a state.
std::vector<NodeId> targets(const uint32_t* row) {
  std::vector<NodeId> out;
  for (int byte = 0; byte < 256; ++byte) {
    if (row[byte] != kEmptyNode && (out.empty() || out.back() != row[byte]))
      out.push_back(row[byte]);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

bool RegexPool::is_live(NodeId id) {
  if (live_[id] >= 0) return live_[id] != 0;
  must_write();
  const Node node = nodes_[id];
  bool live = true;
  switch (node.kind) {
    case NodeKind::kEmpty: live = false; break;
    case NodeKind::kCat: {  // without recursion along a long text
      std::vector<NodeId> ahead;
      NodeId at = id;
      for (; live && nodes_[at].kind == NodeKind::kCat && live_[at] < 0; at = nodes_[at].b) {
        ahead.push_back(at);
        live = is_live(nodes_[at].a);
      }
      live = live && is_live(at);
      for (const NodeId one : ahead) live_[one] = live ? 1 : 0;
      return live;
    }
    case NodeKind::kOr: {
      const std::vector<NodeId> members = lists_[node.a];
      live = std::any_of(members.begin(), members.end(), [&](NodeId m) { return is_live(m); });
      break;
    }
    case NodeKind::kRepeat: live = node.low == 0 || is_live(node.a); break;
    case NodeKind::kJsonBody: {
      const CodeRanges ranges = escape_range(EscapeState::unpack(node.b));
      if (EscapeState::unpack(node.b).phase == EscapeState::kNone) {
        live = is_live(node.a);
        break;
      }
      live = false;
      for (int i = 0; i < ranges.count && !live; ++i) {
        live = range_is_live(node.a, ranges.ranges[static_cast<size_t>(i)]);
      }
      break;
    }
    case NodeKind::kAnd: live = has_text_of_length(id) || search_live(id); break;
    case NodeKind::kNot:
    case NodeKind::kNumber:
    case NodeKind::kWalk: live = search_live(id); break;
    default: break;
  }
  live_[id] = live ? 1 : 0;
  return live;
}

/// Depth first through derivatives until a state that accepts. Uses derivatives by class without
/// rows, since a row asks whether its targets are live.
bool RegexPool::search_live(NodeId start) {
  struct Visit {
    NodeId id;
    size_t parent;
  };
  std::vector<Visit> visits = {{start, 0}};
  std::unordered_map<NodeId, bool> seen = {{start, true}};
  std::deque<size_t> open = {0};
  size_t steps = 0;
  while (!open.empty()) {
    const size_t at = open.front();
    open.pop_front();
    const NodeId id = visits[at].id;
    if (nodes_[id].nullable || live_[id] == 1) {
      for (size_t i = at; i != 0; i = visits[i].parent) live_[visits[i].id] = 1;
      return true;
    }
    if (live_[id] == 0) continue;
    std::vector<ByteSet> sets;
    collect_sets(id, sets);
    for (int value = 0; value < 256; ++value) {
      const auto byte = static_cast<uint8_t>(value);
      if (value > 0) {  // the same class as the byte before: by far the most common
        bool same = true;
        const auto before = static_cast<uint8_t>(value - 1);
        for (const ByteSet& set : sets) same = same && set.contains(byte) == set.contains(before);
        if (same) continue;
      }
      if (++steps > kMaxSearch) too_complex("whether anything matches it");
      const NodeId next = derive(id, byte);
      if (next == kEmptyNode || live_[next] == 0 || !seen.try_emplace(next, true).second) continue;
      visits.push_back({next, at});
      if (nodes_[next].kind == NodeKind::kAnd && has_text_of_length(next)) live_[next] = 1;
      // What accepts, or is known to lead there, ends the search at once.
      if (nodes_[next].nullable || live_[next] == 1) {
        open.push_front(visits.size() - 1);
        break;
      }
      open.push_back(visits.size() - 1);
    }
  }
  for (const Visit& visit : visits) live_[visit.id] = 0;
  return false;
}

bool RegexPool::range_walk(NodeId id, uint32_t low, uint32_t high, int bytes_left) {
  if (bytes_left == 0) return true;
  const int shift = 6 * (bytes_left - 1);
  NodeId last = kEmptyNode;
  for (uint32_t top = low >> shift; top <= high >> shift; ++top) {
    const NodeId next = step(id, static_cast<uint8_t>(0x80 | (top & 0x3F)));
    const uint32_t from = std::max(low, top << shift);
    const uint32_t to = std::min(high, ((top + 1) << shift) - 1);
    const bool whole = from == top << shift && to == ((top + 1) << shift) - 1;
    if (next == kEmptyNode || (whole && next == last)) continue;
    if (range_walk(next, from, to, bytes_left - 1)) return true;
    if (whole) last = next;
  }
  return false;
}

bool RegexPool::range_is_live(NodeId id, CodeRange range) {
  if (id == any_text_) return true;
  static constexpr uint32_t kLimits[] = {0x80, 0x800, 0x10000, kMaxCodePoint + 1};
  uint32_t low = range.low;
  for (int length = 1; length <= 4 && low <= range.high; ++length) {
    if (low >= kLimits[length - 1]) continue;
    const uint32_t high = std::min(range.high, kLimits[length - 1] - 1);
    if (length == 1) {
      for (uint32_t code = low; code <= high; ++code) {
        if (step(id, static_cast<uint8_t>(code)) != kEmptyNode) return true;
      }
    } else {
      static constexpr uint32_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
      const int shift = 6 * (length - 1);
      for (uint32_t top = low >> shift; top <= high >> shift; ++top) {
        const NodeId next = step(id, static_cast<uint8_t>(kLead[length] | top));
        if (next == kEmptyNode) continue;
        if (range_walk(next, std::max(low, top << shift), std::min(high, ((top + 1) << shift) - 1),
                       length - 1)) {
          return true;
        }
      }
    }
    low = high + 1;
  }
  return false;
}

bool RegexPool::is_infinite(NodeId start) {
  if (start == any_text_) return true;
  if (nodes_[start].kind == NodeKind::kLiterals) return false;
  const auto known = infinite_.find(start);
  if (known != infinite_.end()) return known->second;
  must_write();
  const bool infinite = search_infinite(start);
  infinite_.emplace(start, infinite);
  return infinite;
}

bool RegexPool::search_infinite(NodeId start) {
  // A state on the path from the start that is met again closes a cycle.
  std::unordered_map<NodeId, int> state;  // 1: on the path, 2: done
  struct Level {
    NodeId id;
    std::vector<NodeId> next;
  };
  std::vector<Level> path;
  const auto enter = [&](NodeId id) {
    state[id] = 1;
    path.push_back({id, targets(row(id))});
    if (state.size() > kMaxSearch) too_complex("how many strings match it");
  };
  if (!is_live(start)) return false;
  enter(start);
  while (!path.empty()) {
    Level& level = path.back();
    if (level.next.empty()) {
      state[level.id] = 2;
      path.pop_back();
      continue;
    }
    const NodeId next = level.next.back();
    level.next.pop_back();
    if (next == any_text_) return true;
    const auto found = state.find(next);
    if (found == state.end()) {
      enter(next);
    } else if (found->second == 1) {
      return true;
    }
  }
  return false;
}

uint64_t RegexPool::count_strings(NodeId start, uint64_t limit) {
  if (!is_live(start)) return 0;
  const Node& node = nodes_[start];
  if (node.kind == NodeKind::kLiterals) return std::min<uint64_t>(limit, node.high - node.low);
  if (is_infinite(start)) return limit;
  std::unordered_map<NodeId, uint64_t> counts;
  std::vector<NodeId> stack = {start};
  while (!stack.empty()) {
    const NodeId id = stack.back();
    const uint32_t* to = row(id);
    uint64_t count = nullable(id) ? 1 : 0;
    bool ready = true;
    for (int byte = 0; byte < 256; ++byte) {
      if (to[byte] == kEmptyNode) continue;
      const auto found = counts.find(to[byte]);
      if (found == counts.end()) {
        if (ready || stack.back() != to[byte]) stack.push_back(to[byte]);
        ready = false;
      } else {
        count = std::min(limit, count + found->second);
      }
    }
    if (!ready) continue;
    counts[id] = count;
    stack.pop_back();
  }
  return counts[start];
}

/// The best of a few ways to finish the escape stands for all.
uint32_t RegexPool::bound_after_escape(const Node& body) {
  const EscapeState escape = EscapeState::unpack(body.b);
  const CodeRanges ranges = escape_range(escape);
  uint32_t best = kUnbounded;
  for (int i = 0; i < ranges.count; ++i) {
    const CodeRange range = ranges.ranges[static_cast<size_t>(i)];
    for (uint32_t code : {uint32_t{'"'}, uint32_t{'\n'}, uint32_t{'a'}, range.low, range.high}) {
      if (code < range.low || code > range.high) continue;
      uint8_t encoded[4];
      const int length = encode_utf8(code, encoded);
      const NodeId next = step(body.a, std::string_view(reinterpret_cast<const char*>(encoded),
                                                        static_cast<size_t>(length)));
      if (next == kEmptyNode) continue;
      best = std::min(best, add_bounds(shortest_bound(next), bytes_of_escape(escape, code) + 1));
    }
  }
  return best;
}

uint32_t RegexPool::shortest_bound(NodeId id) {
  const Node node = nodes_[id];
  if (node.nullable) return 0;
  if (shortest_[id] != kUnbounded - 1) return shortest_[id];
  must_write();
  uint32_t bound = kUnbounded;
  switch (node.kind) {
    case NodeKind::kBytes: bound = 1; break;
    case NodeKind::kCat: {  // from the end on, without recursion along a long text
      std::vector<NodeId> ahead;
      NodeId at = id;
      for (; nodes_[at].kind == NodeKind::kCat && !nodes_[at].nullable &&
             shortest_[at] == kUnbounded - 1;
           at = nodes_[at].b) {
        ahead.push_back(at);
      }
      bound = shortest_bound(at);
      for (; !ahead.empty(); ahead.pop_back()) {
        bound = add_bounds(shortest_bound(nodes_[ahead.back()].a), bound);
        shortest_[ahead.back()] = bound;
      }
      return bound;
    }
    case NodeKind::kOr:
      for (NodeId member : std::vector<NodeId>(lists_[node.a])) {
        bound = std::min(bound, shortest_bound(member));
      }
      break;
    case NodeKind::kRepeat: bound = multiply_bounds(shortest_bound(node.a), node.low); break;
    case NodeKind::kLiterals:
      bound = static_cast<uint32_t>(literal_sets_[node.a][node.low].size() - node.b);
      break;
    case NodeKind::kJsonBody:
      if (node.b == 0) {
        bound = add_bounds(shortest_bound(node.a), 1);
      } else {
        bound = bound_after_escape(node);
      }
      break;
    default: break;
  }
  shortest_[id] = bound;
  return bound;
}

bool RegexPool::shortest_by_parts(NodeId id, uint32_t limit, std::string& out) {
  const uint32_t length = shortest_bound(id);
  if (length > limit) return false;
  const Node node = nodes_[id];
  if (node.nullable) return true;
  switch (node.kind) {
    case NodeKind::kBytes: {
      const auto& words = byte_sets_[node.a].words;
      size_t word = 0;
      while (words[word] == 0) ++word;
      out += static_cast<char>(word * 64 + static_cast<size_t>(std::countr_zero(words[word])));
      return true;
    }
    case NodeKind::kCat: {
      NodeId at = id;
      for (; nodes_[at].kind == NodeKind::kCat && !nodes_[at].nullable; at = nodes_[at].b) {
        if (!shortest_by_parts(nodes_[at].a, limit, out)) return false;
      }
      return shortest_by_parts(at, limit, out);
    }
    case NodeKind::kOr:
      for (const NodeId member : std::vector<NodeId>(lists_[node.a])) {
        if (shortest_bound(member) == length) return shortest_by_parts(member, limit, out);
      }
      return false;
    case NodeKind::kRepeat: {
      std::string one;
      if (!shortest_by_parts(node.a, limit, one)) return false;
      for (uint32_t i = 0; i < node.low; ++i) out += one;
      return true;
    }
    case NodeKind::kLiterals: out += literal_sets_[node.a][node.low].substr(node.b); return true;
    default: return false;
  }
}

bool RegexPool::takes_any_text(NodeId start) {
  if (start == any_text_) return true;
  const auto known = takes_any_.find(start);
  if (known != takes_any_.end()) return known->second;
  must_write();
  // Every state that texts lead to must take every character.
  constexpr size_t kMaxStates = 64;
  const uint32_t* every = row(any_text_);
  std::vector<std::pair<NodeId, NodeId>> open = {{start, any_text_}};
  std::unordered_map<uint64_t, bool> seen = {{uint64_t{start} << 32 | any_text_, true}};
  bool result = true;
  for (size_t at = 0; at < open.size() && result; ++at) {
    const uint32_t* mine = row(open[at].first);
    every = row(open[at].second);
    for (int byte = 0; byte < 256 && result; ++byte) {
      if (every[byte] == kEmptyNode) continue;
      if (mine[byte] == kEmptyNode || seen.size() > kMaxStates) {
        result = false;
      } else if (seen.try_emplace(uint64_t{mine[byte]} << 32 | every[byte], true).second) {
        open.emplace_back(mine[byte], every[byte]);
      }
    }
  }
  if (result) {
    for (const auto& [state, text] : open) {
      if (text == any_text_) takes_any_[state] = true;
    }
  }
  takes_any_[start] = result;
  return result;
}

std::string RegexPool::shortest(NodeId start) {
  struct Visit {
    NodeId id;
    size_t parent;
    uint8_t byte;
  };
  std::vector<Visit> visits = {{start, 0, 0}};
  std::unordered_map<NodeId, bool> seen = {{start, true}};
  for (size_t at = 0; at < visits.size(); ++at) {
    if (nullable(visits[at].id)) {
      std::string out;
      for (size_t i = at; i != 0; i = visits[i].parent) out += static_cast<char>(visits[i].byte);
      std::reverse(out.begin(), out.end());
      return out;
    }
    if (visits.size() > kMaxSearch) too_complex("its shortest match");
    const uint32_t* to = row(visits[at].id);
    for (int byte = 0; byte < 256; ++byte) {
      if (to[byte] != kEmptyNode && seen.try_emplace(to[byte], true).second) {
        visits.push_back({to[byte], at, static_cast<uint8_t>(byte)});
      }
    }
  }
  return {};
}

}  // namespace vitrine::constrain
