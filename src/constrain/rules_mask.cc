// SPDX-License-Identifier: Apache-2.0
// Masks of context-free grammars. What stays within one terminal comes from that terminal's own
// mask; only tokens that lead across a terminal's end are followed byte by byte.
#include <algorithm>

#include "context_free.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxCrossings = 512;
constexpr size_t kMaxEnds = 64;  // states that the tokens of one state lead to

void set_node(const TokenTable::Impl& table, uint32_t node, std::span<uint32_t> mask) {
  for (uint32_t i = table.nodes[node].first_id; i < table.nodes[node + 1].first_id; ++i) {
    mask[static_cast<size_t>(table.ids[i]) / 32] |= 1U << (table.ids[i] % 32);
  }
}

bool has_child_in(const TokenTable::Impl& table, uint32_t node, const ByteSet& bytes) {
  const auto& nodes = table.nodes;
  for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
    if (bytes.contains(nodes[child].byte)) return true;
  }
  return false;
}

}  // namespace

const std::vector<uint32_t>& Crossings::of_state(RegexPool& pool, NodeId state,
                                                 const ByteSet& behind) {
  return find({state, behind}, [&](std::vector<uint32_t>& out) {
    const auto& nodes = table_.nodes;
    std::vector<NodeId> states(table_.max_depth + 1);
    states[0] = state;
    for (uint32_t node = 1; node + 1 < nodes.size();) {
      const NodeId next = pool.step(states[nodes[node].depth - 1u], nodes[node].byte);
      if (next == kEmptyNode || !table_.has_children(node)) {
        node = nodes[node].end;
        continue;
      }
      states[nodes[node].depth] = next;
      if (pool.nullable(next) && has_child_in(table_, node, behind)) out.push_back(node);
      node = next == kEpsilonNode ? nodes[node].end : node + 1;
    }
  });
}

const std::vector<uint32_t>& Crossings::of_json(uint32_t index, bool in_string, const ByteSet& ends,
                                                const ByteSet& behind) {
  const uint32_t place = kJsonPlace | index | (in_string ? kInJsonString : 0);
  return find({place, behind}, [&](std::vector<uint32_t>& out) {
    std::vector<bool> has_quote(table_.max_depth + 1);  // the path to that depth
    for (uint32_t node = 1; node + 1 < table_.nodes.size(); ++node) {
      const auto& here = table_.nodes[node];
      has_quote[here.depth] = here.byte == '"' || has_quote[here.depth - 1u];
      if (table_.has_children(node) && ends.contains(here.byte) &&
          (!in_string || has_quote[here.depth]) && has_child_in(table_, node, behind)) {
        out.push_back(node);
      }
    }
  });
}

const Crossings::Needed& Crossings::needed(RegexPool& pool, FinishTexts& texts,
                                           const TerminalMask& terminal, NodeId state) {
  if (const auto found = needed_.find(state); found != needed_.end()) return found->second;
  must_write();
  if (needed_.size() >= kMaxCrossings) needed_.clear();
  Needed out{terminal.needed, terminal.words};
  if (table_.has_all_bytes && out.most != kNoBound) return needed_[state] = std::move(out);
  out.most = 0;
  std::vector<NodeId> states(table_.max_depth + 1);
  std::unordered_map<NodeId, uint32_t> ends;
  states[0] = state;
  for (uint32_t node = 1; node + 1 < table_.nodes.size();) {
    const auto& here = table_.nodes[node];
    const uint32_t first_id = here.first_id, last_id = table_.nodes[node + 1].first_id;
    const NodeId next = pool.step(states[here.depth - 1u], here.byte);
    states[here.depth] = next;
    node = next == kEmptyNode || next == kEpsilonNode ? here.end : node + 1;
    if (next == kEmptyNode || first_id == last_id || pool.nullable(next)) continue;
    auto found = ends.find(next);
    if (found == ends.end()) {
      const bool is_one_more = ends.size() < kMaxEnds;
      found = ends.emplace(next, is_one_more ? texts.of_state(next).tokens : kNoBound).first;
    }
    if (found->second != kNoBound) {
      out.most = std::max(out.most, found->second);
      continue;
    }
    // Half a character, say, whose other half is no token.
    for (uint32_t i = first_id; i < last_id; ++i) {
      out.words[static_cast<size_t>(table_.ids[i]) / 32] &= ~(1U << (table_.ids[i] % 32));
    }
  }
  return needed_[state] = std::move(out);
}

template <typename Make>
const std::vector<uint32_t>& Crossings::find(const Key& key, Make&& make) {
  const auto found = lists_.find(key);
  if (found != lists_.end()) return found->second;
  must_write();
  if (lists_.size() >= kMaxCrossings) lists_.clear();
  std::vector<uint32_t> out;
  make(out);
  return lists_[key] = std::move(out);
}

/// The bytes that may come where the item's terminal ends.
ByteSet EarleyParser::bytes_behind(const Item& item) {
  ByteSet out;
  begin_set();  // as if it had ended with no byte more
  advance(item);
  close();
  for (size_t i = sets_.back().begin; i < items_.size(); ++i) {
    const NodeId state = items_[i].state;
    if (state == kEmptyNode) continue;
    if (state & kJsonPlace) {  // at its beginning: places_ starts with those
      out = out | grammar_.json[state & ~kJsonPlace]->first;
      continue;
    }
    const uint32_t* row = pool_.row(state);
    for (int byte = 0; byte < 256; ++byte) {
      if (row[byte] != kEmptyNode) out.add(static_cast<uint8_t>(byte));
    }
  }
  drop_set();
  return out;
}

template <typename OfJson>
bool EarleyParser::add_bytes(ByteSet& out, OfJson&& of_json) {
  std::vector<uint32_t> seen;  // places in JSON
  for (size_t i = sets_.back().begin; i < items_.size(); ++i) {
    const NodeId state = items_[i].state;
    if (state == kEmptyNode) continue;
    if ((state & kJsonPlace) == 0) {
      out = out | pool_.row_bytes(state);
      continue;
    }
    const uint32_t place = state & ~kJsonPlace;
    if (std::find(seen.begin(), seen.end(), place) != seen.end()) continue;
    seen.push_back(place);
    const InJson& json = places_[place];
    if (!of_json(readers_[json.reader]->machine, json.configs)) return false;
  }
  return true;
}

bool EarleyParser::next_bytes(bool is_plain, ByteSet& out) {
  return add_bytes(out, [&](JsonMachine& machine, const Configs& configs) {
    if (!is_plain) out = out | machine.next_bytes(configs);
    return !is_plain || machine.plain_bytes(configs, out);
  });
}

ByteSet EarleyParser::taken_bytes() {
  ByteSet out;
  add_bytes(out, [&out](JsonMachine& machine, const Configs& configs) {
    out = out | machine.taken_bytes(configs);
    return true;
  });
  return out;
}

void EarleyParser::fill(std::span<uint32_t> mask) {
  std::vector<uint32_t> crossing;
  const size_t begin = sets_.back().begin, end = items_.size();
  for (size_t i = begin; i < end; ++i) {
    const Item item = items_[i];
    if (item.state == kEmptyNode) continue;
    const bool is_first = std::none_of(
        items_.begin() + static_cast<long>(begin), items_.begin() + static_cast<long>(i),
        [&item](const Item& before) { return before.state == item.state; });
    const ByteSet behind = bytes_behind(item);
    const std::vector<uint32_t>* more = nullptr;
    if (item.state & kJsonPlace) {
      const InJson& place = places_[item.state & ~kJsonPlace];
      if (is_first) readers_[place.reader]->mask.add(place.configs, mask);
      if (!behind.empty()) {
        more = &grammar_.crossings->of_json(
            place.reader, readers_[place.reader]->machine.is_in_string(place.configs),
            grammar_.json[place.reader]->ends, behind);
      }
    } else {
      if (is_first) {
        const std::vector<uint32_t>& words = masks_.at(item.state).words;
        for (size_t word = 0; word < words.size(); ++word) mask[word] |= words[word];
      }
      if (!behind.empty()) more = &grammar_.crossings->of_state(pool_, item.state, behind);
    }
    if (more == nullptr || more->empty()) continue;
    const auto middle = static_cast<long>(crossing.size());
    crossing.insert(crossing.end(), more->begin(), more->end());
    std::inplace_merge(crossing.begin(), crossing.begin() + middle, crossing.end());
  }
  add_crossing(crossing, mask);
}

/// Follows the tokens that go on behind these nodes, which are in the trie's order.
void EarleyParser::add_crossing(std::span<const uint32_t> nodes, std::span<uint32_t> mask) {
  const TokenTable::Impl& table = texts_.table();
  const size_t start = length();
  std::string_view last;  // the path that was tried last
  uint32_t done = 0;      // the first node behind what has been followed
  for (const uint32_t node : nodes) {
    if (node < done) continue;
    const auto id = static_cast<size_t>(table.ids[table.nodes[node].first_id]);
    const std::string_view path =
        std::string_view(table.bytes[id]).substr(0, table.nodes[node].depth);
    const size_t read = length() - start;
    const auto shared = static_cast<size_t>(
        std::mismatch(last.begin(), last.end(), path.begin(), path.end()).first - last.begin());
    last = path;
    if (shared > read) {  // leads through a byte that was refused
      last = path.substr(0, read + 1);
      continue;
    }
    drop_to(start + shared);
    size_t depth = shared;
    while (depth < path.size() && step(static_cast<uint8_t>(path[depth]))) ++depth;
    if (depth < path.size()) continue;
    walk(node, mask);
    done = table.nodes[node].end;
  }
  drop_to(start);
}

void EarleyParser::walk(uint32_t node, std::span<uint32_t> mask) {
  const TokenTable::Impl& table = texts_.table();
  const size_t here = length();
  for (uint32_t child = node + 1; child < table.nodes[node].end; child = table.nodes[child].end) {
    if (!step(table.nodes[child].byte)) continue;
    set_node(table, child, mask);
    if (table.has_children(child)) walk(child, mask);
    drop_to(here);
  }
}

void EarleyParser::limit(std::span<uint32_t> mask, uint32_t left) {
  const TokenTable::Impl& table = texts_.table();
  texts_.trim();
  std::vector<uint32_t> check = without_ends(table, mask), proven;
  const size_t begin = sets_.back().begin, end = items_.size();
  for (size_t i = begin; i < end; ++i) {
    const Item item = items_[i];
    if (item.state == kEmptyNode) continue;
    const uint32_t behind = tokens_behind(item);
    if (behind > left) continue;
    const std::vector<uint32_t>* words = nullptr;
    if (item.state & kJsonPlace) {
      const InJson& place = places_[item.state & ~kJsonPlace];
      Reader& reader = *readers_[place.reader];
      proven.assign(mask.size(), 0);
      reader.mask.add(place.configs, proven);
      reader.limit.keep(place.configs, proven, left - behind);
      words = &proven;
    } else {
      const TerminalMask& terminal = masks_.at(item.state);
      const Crossings::Needed& needed =
          grammar_.crossings->needed(pool_, texts_, terminal, item.state);
      if (needed.most <= left - behind) words = &needed.words;
    }
    if (words == nullptr) continue;
    for (size_t word = 0; word < check.size(); ++word) check[word] &= ~(*words)[word];
  }
  if (std::all_of(check.begin(), check.end(), [](uint32_t word) { return word == 0; })) return;
  const size_t start = length();
  keep_fitting(
      table, mask, check,
      [&](size_t depth, uint8_t byte) {
        drop_to(start + depth);
        return step(byte);
      },
      [&](size_t) { return finish(nullptr) <= left; });
  drop_to(start);
}

}  // namespace vitrine::constrain
