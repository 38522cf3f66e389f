// SPDX-License-Identifier: Apache-2.0
// Derivatives: what is left of a language after one byte, and rows of them.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/utf8.h"
#include "regex_pool.h"
#include "vitrine/core.h"

namespace vitrine::constrain {

namespace {

/// Beyond this many, each byte is derived by itself.
constexpr size_t kMaxSets = size_t{1} << 20;

}  // namespace

NodeId RegexPool::derive_literals(const Node& literals, uint8_t byte) {
  const auto& strings = literal_sets_[literals.a];
  const auto begin = strings.begin() + literals.low, end = strings.begin() + literals.high;
  const uint32_t depth = literals.b;
  // Strings that end here come first; the others are sorted by the byte at `depth`.
  const auto byte_at = [depth](const std::string& text) {
    return text.size() > depth ? static_cast<int>(static_cast<uint8_t>(text[depth])) : -1;
  };
  const auto first = std::partition_point(
      begin, end, [&](const std::string& text) { return byte_at(text) < byte; });
  const auto last = std::partition_point(
      first, end, [&](const std::string& text) { return byte_at(text) == byte; });
  if (first == last) return kEmptyNode;
  const bool ends = first->size() == depth + 1;
  if (ends && last - first == 1) return kEpsilonNode;
  return intern({NodeKind::kLiterals, ends, literals.a, depth + 1,
                 static_cast<uint32_t>(first - strings.begin()),
                 static_cast<uint32_t>(last - strings.begin())});
}

NodeId RegexPool::derive_body(const Node& body, uint8_t byte) {
  const EscapeStep done = escape_step(EscapeState::unpack(body.b), byte);
  switch (done.kind) {
    case EscapeStep::kClose: return nodes_[body.a].nullable ? kEpsilonNode : kEmptyNode;
    case EscapeStep::kRawByte: return json_body(step(body.a, byte));
    case EscapeStep::kMore: return json_body(body.a, done.next);
    case EscapeStep::kCodePoint: {
      uint8_t encoded[4];
      const int length = encode_utf8(done.code_point, encoded);
      NodeId content = body.a;
      for (int i = 0; i < length; ++i) content = step(content, encoded[i]);
      return json_body(content);
    }
    default: return kEmptyNode;
  }
}

/// Adds what `id` leaves behind the byte, alternative by alternative. Without recursion along a
/// sequence, and each sequence is looked at once, however many alternatives end with it.
void RegexPool::add_derivatives(NodeId id, uint8_t byte, uint32_t epoch, std::vector<NodeId>& out) {
  bool has_all = false;  // what was added holds all that is left of the sequence from here on
  while (true) {
    const Node node = nodes_[id];
    if (node.kind == NodeKind::kOr) {
      for (const NodeId member : std::vector<NodeId>(lists_[node.a])) {
        add_derivatives(member, byte, epoch, out);
      }
      return;
    }
    const bool is_last = node.kind != NodeKind::kCat;
    if (epochs_.size() < nodes_.size()) epochs_.resize(nodes_.size());
    if (!is_last && std::exchange(epochs_[id], epoch) == epoch) return;
    const NodeId part = is_last ? id : node.a;
    const NodeId left = derive(part, byte);
    if (left != kEmptyNode && !(has_all && is_part_of(left, part))) {
      out.push_back(is_last ? left : cat(left, node.b));
      has_all = has_all || nodes_[left].nullable;
    }
    if (is_last || !nodes_[part].nullable) return;
    id = node.b;
  }
}

/// What is left of a part is plainly among what it was: the same, the same with fewer repetitions,
/// or nothing where it may be empty.
bool RegexPool::is_part_of(NodeId left, NodeId part) const {
  if (left == part || (left == kEpsilonNode && nodes_[part].nullable)) return true;
  const Node &x = nodes_[left], &y = nodes_[part];
  return x.kind == NodeKind::kRepeat && y.kind == NodeKind::kRepeat && x.a == y.a && x.low == 0 &&
         y.low == 0 && x.high <= y.high;
}

/// Derives a conjunction. Conjunctions deep within one another are derived once for one byte,
/// however many of the expression's parts lead to them.
NodeId RegexPool::derive_all(NodeId id, uint8_t byte) {
  constexpr int kDeep = 4;
  struct Depth {
    explicit Depth(RegexPool& pool) : pool(pool) { ++pool.depth_; }
    ~Depth() {
      if (--pool.depth_ == 0 && !pool.derived_.empty()) pool.derived_.clear();
    }
    RegexPool& pool;
  } const depth(*this);
  const uint64_t key = uint64_t{id} << 8 | byte;
  if (depth_ >= kDeep) {
    if (const auto known = derived_.find(key); known != derived_.end()) return known->second;
  }
  const std::vector<NodeId> members = lists_[nodes_[id].a];
  std::vector<NodeId> out;
  out.reserve(members.size());
  for (NodeId member : members) {
    out.push_back(derive(member, byte));
    if (out.back() == kEmptyNode) break;
  }
  const NodeId left =
      !out.empty() && out.back() == kEmptyNode ? kEmptyNode : all_of(std::move(out));
  if (depth_ >= kDeep) derived_[key] = left;
  return left;
}

NodeId RegexPool::derive(NodeId id, uint8_t byte) {
  const Node node = nodes_[id];
  switch (node.kind) {
    case NodeKind::kBytes: return byte_sets_[node.a].contains(byte) ? kEpsilonNode : kEmptyNode;
    case NodeKind::kCat:
    case NodeKind::kOr: {
      if (node.kind == NodeKind::kCat && !nodes_[node.a].nullable) {
        return cat(derive(node.a, byte), node.b);
      }
      std::vector<NodeId> out;
      add_derivatives(id, byte, ++epoch_, out);
      return any_of(std::move(out));
    }
    case NodeKind::kAnd: return derive_all(id, byte);
    case NodeKind::kNot: return raw_not(derive(node.a, byte));
    case NodeKind::kRepeat: {
      const NodeId left = derive(node.a, byte);
      if (left == kEmptyNode) return kEmptyNode;  // most often, and what is below is a look-up
      const uint32_t low = node.low > 0 ? node.low - 1 : 0;
      const uint32_t high = node.high == kUnbounded ? kUnbounded : node.high - 1;
      return cat(left, repeat(node.a, low, high));
    }
    case NodeKind::kLiterals: return derive_literals(node, byte);
    case NodeKind::kNumber: {
      const auto next = number_step(bounds_[node.a], NumberState::unpack(node.b, node.low), byte);
      if (!next) return kEmptyNode;
      return intern({NodeKind::kNumber, number_accepts(bounds_[node.a], *next), node.a,
                     next->pack(), next->residue, 0});
    }
    case NodeKind::kWalk: {
      const uint16_t next = automata_[node.a].rows[node.b][byte];
      return next == ByteAutomaton::kNoState ? kEmptyNode : walk(node.a, next, node.low);
    }
    case NodeKind::kJsonBody: return derive_body(node, byte);
    default: return kEmptyNode;
  }
}

void RegexPool::collect_sets(NodeId id, std::vector<ByteSet>& sets) {
  const Node node = nodes_[id];
  if (sets.size() > kMaxSets) return;
  switch (node.kind) {
    case NodeKind::kBytes: sets.push_back(byte_sets_[node.a]); break;
    case NodeKind::kCat: {  // without recursion along a long sequence
      NodeId at = id;
      for (; nodes_[at].kind == NodeKind::kCat; at = nodes_[at].b) {
        collect_sets(nodes_[at].a, sets);
        if (!nodes_[nodes_[at].a].nullable || sets.size() > kMaxSets) return;
      }
      collect_sets(at, sets);
      break;
    }
    case NodeKind::kOr:
    case NodeKind::kAnd:
      for (NodeId member : std::vector<NodeId>(lists_[node.a])) collect_sets(member, sets);
      break;
    case NodeKind::kNot:
    case NodeKind::kRepeat: collect_sets(node.a, sets); break;
    case NodeKind::kLiterals: {
      const auto& strings = literal_sets_[node.a];
      int last = -1;
      for (uint32_t i = node.low; i < node.high; ++i) {
        if (strings[i].size() <= node.b) continue;
        const int byte = static_cast<uint8_t>(strings[i][node.b]);
        if (byte != last) sets.push_back(ByteSet::range(byte, byte));
        last = byte;
      }
      break;
    }
    case NodeKind::kNumber:
      for (int byte : {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '-', '.'}) {
        sets.push_back(ByteSet::range(byte, byte));
      }
      break;
    case NodeKind::kWalk: {
      const auto& row = automata_[node.a].rows[node.b];
      std::vector<std::pair<uint16_t, ByteSet>> targets;
      for (size_t byte = 0; byte < row.size(); ++byte) {
        auto found = std::find_if(targets.begin(), targets.end(),
                                  [&](const auto& target) { return target.first == row[byte]; });
        if (found == targets.end()) found = targets.insert(found, {row[byte], {}});
        found->second.add(static_cast<uint8_t>(byte));
      }
      for (const auto& target : targets) sets.push_back(target.second);
      break;
    }
    case NodeKind::kJsonBody:
      if (EscapeState::unpack(node.b).phase == EscapeState::kNone) {
        collect_sets(node.a, sets);
        sets.push_back(ByteSet::range(0, 0x1F));
        sets.push_back(ByteSet::range('"', '"'));
        sets.push_back(ByteSet::range('\\', '\\'));
      } else {
        for (char byte : std::string_view("0123456789abcdefABCDEF\"\\/nrtu")) {
          sets.push_back(ByteSet::range(byte, byte));
        }
      }
      break;
    default: break;
  }
}

const uint32_t* RegexPool::make_row(NodeId id) {
  must_write();
  if (rows_.size() >= max_nodes_ / 16) {
    throw Error(ErrorKind::kUnsupported, "the grammar needs more than " +
                                             std::to_string(max_nodes_ / 16) +
                                             " automaton rows; shorten its patterns or raise the "
                                             "limit");
  }
  std::vector<ByteSet> sets;
  collect_sets(id, sets);
  // Bytes in the same sets lead to the same place: derive once for each class.
  std::array<uint64_t, 256> signature{};
  for (size_t k = 0; k < sets.size(); ++k) {
    const uint64_t mark = mix_hash(k + 1, 0x51ed270b);
    for (size_t word = 0; word < 4; ++word) {
      for (uint64_t bits = sets[k].words[word]; bits != 0; bits &= bits - 1) {
        signature[word * 64 + static_cast<size_t>(std::countr_zero(bits))] += mark;
      }
    }
  }
  auto row = std::make_unique<uint32_t[]>(256);
  std::array<std::pair<uint64_t, NodeId>, 256> known;
  size_t num_known = 0;
  ByteSet leads_on;
  const bool many = sets.size() > kMaxSets;
  for (size_t byte = 0; byte < 256; ++byte) {
    size_t i = 0;
    while (i < num_known && (many || known[i].first != signature[byte])) ++i;
    if (i == num_known) {
      NodeId next = derive(id, static_cast<uint8_t>(byte));
      if (next != kEmptyNode && !is_live(next)) next = kEmptyNode;
      known[num_known++] = {signature[byte], next};
    }
    row[byte] = known[i].second;
    if (row[byte] != kEmptyNode) leads_on.add(static_cast<uint8_t>(byte));
  }
  rows_.push_back(std::move(row));
  row_bytes_.push_back(leads_on);
  row_index_[id] = static_cast<int32_t>(rows_.size() - 1);
  return rows_.back().get();
}

/// A state that is seldom passed needs no row: it pays from the fifth byte on.
NodeId RegexPool::step_without_row(NodeId id, uint8_t byte) {
  must_write();
  if (++visits_[id] > 4) return row(id)[byte];
  const NodeId next = derive(id, byte);
  return next != kEmptyNode && is_live(next) ? next : kEmptyNode;
}

NodeId RegexPool::step(NodeId id, std::string_view text) {
  for (char byte : text) {
    id = step(id, static_cast<uint8_t>(byte));
    if (id == kEmptyNode) break;
  }
  return id;
}

}  // namespace vitrine::constrain
