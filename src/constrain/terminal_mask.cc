// SPDX-License-Identifier: Apache-2.0
#include "terminal_mask.h"
#include "token_bits.h"

#include <algorithm>
#include <bit>

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxStandIns = size_t{1} << 16;

}  // namespace

NodeId TerminalMasks::stand_in(NodeId state) {
  if (const auto found = stand_ins_.find(state); found != stand_ins_.end()) return found->second;
  must_write();
  if (stand_ins_.size() >= kMaxStandIns) stand_ins_.clear();
  const NodeId out = without_far_length(pool_.without_far_limits(state, table_.max_depth));
  stand_ins_[out] = out;
  return stand_ins_[state] = out;
}

/// Leaves a far length out of a string's content that is a pattern and a length at once: a length
/// that is far from its limit changes nothing either, where what the pattern needs to end fits.
NodeId TerminalMasks::without_far_length(NodeId state) {
  const Node body = pool_.node(state);
  if (body.kind != NodeKind::kJsonBody || body.b != 0) return state;
  const Node content = pool_.node(body.a);
  if (content.kind != NodeKind::kAnd) return state;
  uint32_t low = 0, high = kUnbounded;
  std::vector<NodeId> others;
  for (const NodeId member : pool_.list(content)) {
    const Node& part = pool_.node(member);
    if (part.kind == NodeKind::kRepeat && part.a == pool_.any_char()) {
      low = part.low;
      high = part.high;
    } else {
      others.push_back(member);
    }
  }
  if (low > 0 || high == kUnbounded || high <= table_.max_depth) return state;
  const NodeId rest =
      stand_in(pool_.json_body(pool_.all_of(pool_.all_of(std::move(others)), pool_.any_text())));
  return at(rest).needed < high - table_.max_depth ? rest : state;
}

const TerminalMask& TerminalMasks::at(NodeId any) {
  const NodeId state = stand_in(any);
  const auto found = masks_.find(state);
  if (found != masks_.end()) return *found->second;
  must_write();
  if (masks_.size() >= kMaxMasks) masks_.clear();
  const Fingerprint fingerprint = pool_.fingerprint(state);
  if (auto shared = table_.masks.find(fingerprint)) {
    return *masks_.emplace(state, std::move(shared)).first->second;
  }
  const Node node = pool_.node(state);
  const bool universal =
      node.kind == NodeKind::kJsonBody && node.b == 0 && pool_.takes_any_text(node.a);
  auto made =
      std::make_shared<const TerminalMask>(universal ? make_universal(node.a) : make(state));
  table_.masks.add(fingerprint, made);
  return *masks_.emplace(state, std::move(made)).first->second;
}

/// Whatever text comes, the terminal goes on: only where it may end depends on the state.
TerminalMask TerminalMasks::make_universal(NodeId content) {
  TerminalMask out;
  out.words = table_.plain.inside.back();
  out.needed = kUnbounded;
  const NodeId state = pool_.json_body(content);
  for (const auto& close : table_.plain.closes) {
    const std::string& spelling =
        table_.bytes[static_cast<size_t>(table_.ids[table_.nodes[close.node].first_id])];
    const size_t length = table_.nodes[close.node].depth;
    NodeId end = close.escaped ? state : content;
    for (size_t i = 0; i + 1 < length && end != kEmptyNode; ++i) {
      end = pool_.step(end, static_cast<uint8_t>(spelling[i]));
    }
    if (close.escaped ? pool_.step(end, '"') == kEmptyNode : !pool_.nullable(end)) continue;
    if (!close.leaf) out.branches.push_back(close.node);
    for (uint32_t i = table_.nodes[close.node].first_id; i < table_.nodes[close.node + 1].first_id;
         ++i) {
      set_bit(out.words, table_.ids[i]);
    }
  }
  return out;
}

/// The longest slice of these kinds of which the state takes every token and may always go on.
TerminalMasks::Slice TerminalMasks::try_slice(NodeId state, uint32_t set) {
  constexpr size_t kMaxStates = 96;
  Slice out;
  const ByteSet& bytes = TokenSlices::bytes_of(set);
  std::vector<NodeId> states = {state};
  size_t from = 0;
  uint32_t level = 0, lengths = 0;  // bytes that were taken, lengths of slices that fit them
  for (; from < states.size() && lengths < TokenSlices::kLengths.size(); ++level) {
    const size_t to = states.size();
    for (; from < to; ++from) {
      const uint32_t* row = pool_.row(states[from]);
      if (!((pool_.row_bytes(states[from]) & bytes) == bytes)) return out;
      NodeId last = kEmptyNode;
      for (size_t word = 0; word < bytes.words.size(); ++word) {
        for (uint64_t bits = bytes.words[word]; bits != 0; bits &= bits - 1) {
          const NodeId next = row[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
          if (next == last) continue;
          last = next;
          if (next == kEpsilonNode) return out;
          if (std::find(states.begin(), states.end(), next) == states.end()) states.push_back(next);
        }
      }
      if (states.size() > kMaxStates) return out;
    }
    // Where no state is new, what follows is as what came.
    while (lengths < TokenSlices::kLengths.size() &&
           (level + 1 >= TokenSlices::kLengths[lengths] || from == states.size())) {
      out.set = set;
      out.length = lengths;
      out.count = table_.slices.count(set, lengths);
      for (const NodeId reached : states) {
        out.needed = std::max(out.needed, pool_.shortest_bound(reached));
      }
      ++lengths;
    }
  }
  return out;
}

TerminalMasks::Slice TerminalMasks::best_slice(NodeId state) {
  // Sets of the kinds that the state takes next: all of them, all but punctuation, letters and
  // digits, and so on.
  static constexpr uint32_t kTried[] = {63, 31, 23, 15, 7, 3, 5, 1, 6, 2, 4};
  Slice best;
  if (!table_.slices.is_built()) return best;
  const ByteSet& next = pool_.row_bytes(state);
  uint32_t taken = 0, last = 0;
  for (uint32_t kind = 0; kind < TokenSlices::kKinds; ++kind) {
    const ByteSet& bytes = TokenSlices::bytes_of(1U << kind);
    if ((next & bytes) == bytes) taken |= 1U << kind;
  }
  for (const uint32_t tried : kTried) {
    const uint32_t set = tried & taken;
    if (set == 0 || set == last) continue;
    last = set;
    const Slice found = try_slice(state, set);
    if (found.count > best.count) best = found;
    if (best.count > 0 && best.length + 1 == TokenSlices::kLengths.size()) break;
  }
  return best;
}

TerminalMask TerminalMasks::make(NodeId state) {
  TerminalMask out;
  const auto& nodes = table_.nodes;
  const Slice slice = best_slice(state);
  if (slice.count > 0) {
    out.words = table_.slices.mask(slice.set, slice.length);
    out.needed = slice.needed;
  } else {
    out.words.assign((table_.bytes.size() + 31) / 32, 0);
  }
  std::vector<NodeId> states(table_.max_depth + 1);
  states[0] = state;
  NodeId last = kEmptyNode;
  for (uint32_t node = 1; node + 1 < nodes.size();) {
    if (slice.count > 0 && table_.profiles[node].is_within(slice.set, slice.length)) {
      node = nodes[node].end;
      continue;
    }
    const NodeId next = pool_.step(states[nodes[node].depth - 1u], nodes[node].byte);
    if (next == kEmptyNode) {
      node = nodes[node].end;
      continue;
    }
    for (uint32_t i = nodes[node].first_id; i < nodes[node + 1].first_id; ++i) {
      set_bit(out.words, table_.ids[i]);
    }
    if (next == kEpsilonNode) {
      if (table_.has_children(node)) out.branches.push_back(node);
      node = nodes[node].end;
      continue;
    }
    if (next != last) out.needed = std::max(out.needed, pool_.shortest_bound(next));
    last = next;
    states[nodes[node].depth] = next;
    ++node;
  }
  return out;
}

}  // namespace vitrine::constrain
