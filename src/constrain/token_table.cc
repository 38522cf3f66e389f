// SPDX-License-Identifier: Apache-2.0
#include "token_table.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "char_ranges.h"
#include "core/utf8.h"
#include "regex_pool.h"
#include "string_escape.h"

namespace vitrine {

namespace {

constexpr size_t kMaxVocabulary = size_t{1} << 24;
constexpr size_t kMaxTokenBytes = 1024;

}  // namespace

TokenTable::TokenTable() : impl_(std::make_shared<Impl>()) {}

TokenTable TokenTable::from_bytes(std::vector<std::string> token_bytes,
                                  std::vector<int32_t> end_ids) {
  if (token_bytes.empty() || token_bytes.size() > kMaxVocabulary) {
    throw Error(ErrorKind::kInvalidArgument,
                "a token table of " + std::to_string(token_bytes.size()) +
                    " tokens, expected 1 to " + std::to_string(kMaxVocabulary));
  }
  for (int32_t id : end_ids) {
    if (id < 0 || static_cast<size_t>(id) >= token_bytes.size()) {
      throw Error(ErrorKind::kInvalidArgument, "end id " + std::to_string(id) +
                                                   " is outside the vocabulary of " +
                                                   std::to_string(token_bytes.size()) + " tokens");
    }
    token_bytes[static_cast<size_t>(id)].clear();
  }
  for (size_t id = 0; id < token_bytes.size(); ++id) {
    if (token_bytes[id].size() > kMaxTokenBytes) {
      throw Error(ErrorKind::kInvalidArgument,
                  "token " + std::to_string(id) + " has " + std::to_string(token_bytes[id].size()) +
                      " bytes, expected at most " + std::to_string(kMaxTokenBytes));
    }
  }
  auto impl = std::make_shared<Impl>();
  impl->bytes = std::move(token_bytes);
  impl->end_ids = std::move(end_ids);
  impl->build();
  TokenTable table;
  table.impl_ = std::move(impl);
  return table;
}

TokenTable TokenTable::without(std::span<const int32_t> banned) const {
  if (banned.empty()) return *this;
  std::vector<std::string> kept = impl_->bytes;
  std::vector<int32_t> ends = impl_->end_ids;
  for (const int32_t id : banned) {
    if (id < 0 || static_cast<size_t>(id) >= kept.size()) {
      throw Error(ErrorKind::kInvalidArgument, "banned id " + std::to_string(id) +
                                                   " is outside the vocabulary of " +
                                                   std::to_string(kept.size()) + " tokens");
    }
    kept[static_cast<size_t>(id)].clear();
    std::erase(ends, id);
  }
  return from_bytes(std::move(kept), std::move(ends));
}

TokenTable TokenTable::with(std::span<const std::pair<int32_t, std::string>> token_bytes) const {
  std::vector<std::string> all = impl_->bytes;
  bool is_same = true;
  for (const auto& [id, text] : token_bytes) {
    if (id < 0 || static_cast<size_t>(id) >= all.size()) {
      throw Error(ErrorKind::kInvalidArgument, "token id " + std::to_string(id) +
                                                   " is outside the vocabulary of " +
                                                   std::to_string(all.size()) + " tokens");
    }
    std::string& bytes = all[static_cast<size_t>(id)];
    if (bytes == text || std::ranges::find(impl_->end_ids, id) != impl_->end_ids.end()) continue;
    bytes = text;
    is_same = false;
  }
  return is_same ? *this : from_bytes(std::move(all), impl_->end_ids);
}

int32_t TokenTable::vocab_size() const { return static_cast<int32_t>(impl_->bytes.size()); }
const std::string& TokenTable::bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error(ErrorKind::kInvalidArgument, "token id " + std::to_string(id) +
                                                 " is out of range; expected one of " +
                                                 std::to_string(vocab_size()) + " from 0 on");
  }
  return impl_->bytes[static_cast<size_t>(id)];
}
std::span<const int32_t> TokenTable::end_ids() const { return impl_->end_ids; }

TokenTable::SharedStatistics TokenTable::shared_statistics() const {
  const constrain::SharedMasks::Counts counts = impl_->masks.counts();
  return {counts.hits, counts.misses, counts.evictions, counts.entries, counts.bytes};
}
void TokenTable::limit_shared(size_t max_bytes) const { impl_->masks.set_max_bytes(max_bytes); }

uint32_t TokenTable::Impl::count_tokens(std::string_view text, size_t* first_length) const {
  // From the end: what follows each byte is known when it is reached.
  std::vector<uint32_t> fewest(text.size() + 1, kUnspelled);
  fewest[text.size()] = 0;
  for (size_t from = text.size(); from-- > 0;) {
    uint32_t at = first_bytes[static_cast<uint8_t>(text[from])];
    for (size_t end = from + 1; at != 0; ++end) {
      if (nodes[at].first_id < nodes[at + 1].first_id && fewest[end] < fewest[from] - 1) {
        fewest[from] = fewest[end] + 1;
        if (from == 0 && first_length != nullptr) *first_length = end;
      }
      if (end == text.size()) break;
      at = find(at, text.substr(end, 1));
    }
  }
  return fewest[0];
}

void TokenTable::Impl::build() {
  build_trie();
  build_children();
  build_slices();
  first_bytes.assign(256, 0);
  has_all_bytes = true;
  for (uint32_t child = 1; child < nodes[0].end; child = nodes[child].end) {
    first_bytes[nodes[child].byte] = child;
  }
  for (const uint32_t child : first_bytes) {
    has_all_bytes =
        has_all_bytes && child != 0 && nodes[child].first_id < nodes[child + 1].first_id;
  }
  has_string_bytes = true;
  for (const char byte : std::string_view("\"\\u0123456789abcdef")) {
    has_string_bytes = has_string_bytes && is_token(static_cast<uint8_t>(byte));
  }
  for (size_t byte = 0x80; byte < 0xC0; ++byte) {  // the rest of a character
    has_string_bytes = has_string_bytes && is_token(byte);
  }
  build_plain();
  build_spaces();
}

void TokenTable::Impl::build_trie() {
  for (size_t id = 0; id < bytes.size(); ++id) {
    if (!bytes[id].empty()) ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(ids.begin(), ids.end(), [this](int32_t x, int32_t y) {
    const int order = bytes[static_cast<size_t>(x)].compare(bytes[static_cast<size_t>(y)]);
    return order != 0 ? order < 0 : x < y;
  });
  places.resize(bytes.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    places[static_cast<size_t>(ids[i])] = static_cast<uint32_t>(i);
  }
  nodes.push_back({});
  std::vector<uint32_t> path = {0};  // the nodes above and at the last token
  std::string_view last;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view text = bytes[static_cast<size_t>(ids[i])];
    const size_t shared = static_cast<size_t>(
        std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first - last.begin());
    while (path.size() > shared + 1) {
      nodes[path.back()].end = static_cast<uint32_t>(nodes.size());
      path.pop_back();
    }
    for (size_t depth = shared; depth < text.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back({0, static_cast<uint32_t>(i), static_cast<uint16_t>(depth + 1),
                       static_cast<uint8_t>(text[depth])});
    }
    max_depth = std::max(max_depth, static_cast<uint32_t>(text.size()));
    last = text;
  }
  for (uint32_t node : path) nodes[node].end = static_cast<uint32_t>(nodes.size());
  nodes.push_back(
      {static_cast<uint32_t>(nodes.size()) + 1, static_cast<uint32_t>(ids.size()), 0, 0});
}

uint32_t TokenTable::Impl::find(uint32_t from, std::string_view text) const {
  uint32_t at = from;
  for (char byte : text) {
    const auto begin = child_bytes.begin() + first_child[at];
    const auto end = child_bytes.begin() + first_child[at + 1];
    const auto found = std::lower_bound(begin, end, static_cast<uint8_t>(byte));
    if (found == end || *found != static_cast<uint8_t>(byte)) return 0;
    at = children[static_cast<size_t>(found - child_bytes.begin())];
  }
  return at;
}

void TokenTable::Impl::build_children() {
  const size_t count = nodes.size() - 1;
  first_child.reserve(count + 1);
  children.reserve(count);
  child_bytes.reserve(count);
  for (uint32_t node = 0; node < count; ++node) {
    first_child.push_back(static_cast<uint32_t>(children.size()));
    for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
      children.push_back(child);
      child_bytes.push_back(nodes[child].byte);
    }
  }
  first_child.push_back(static_cast<uint32_t>(children.size()));
}

void TokenTable::Impl::build_slices() {
  using constrain::TokenSlices;
  std::vector<TokenSlices::Profile> by_id;
  by_id.reserve(bytes.size());
  for (const std::string& text : bytes) by_id.push_back(TokenSlices::profile_of(text));
  slices.build(by_id);
  profiles.resize(nodes.size() - 1);
  for (uint32_t node = static_cast<uint32_t>(nodes.size()) - 1; node-- > 0;) {
    for (uint32_t i = nodes[node].first_id; i < nodes[node + 1].first_id; ++i) {
      profiles[node] = profiles[node] | by_id[static_cast<size_t>(ids[i])];
    }
    for (uint32_t i = first_child[node]; i < first_child[node + 1]; ++i) {
      profiles[node] = profiles[node] | profiles[children[i]];
    }
  }
}

void TokenTable::Impl::build_spaces() {
  spaces.words.assign((bytes.size() + 31) / 32, 0);
  spaces.behind.resize(256);
  std::vector<uint32_t> open = {0};
  while (!open.empty()) {
    const uint32_t node = open.back();
    open.pop_back();
    for (uint32_t i = nodes[node].first_id; i < nodes[node + 1].first_id; ++i) {
      spaces.words[static_cast<size_t>(ids[i]) / 32] |= 1U << (ids[i] % 32);
    }
    for (uint32_t i = first_child[node]; i < first_child[node + 1]; ++i) {
      const uint8_t byte = child_bytes[i];
      const bool is_space = byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
      (is_space ? open : spaces.behind[byte]).push_back(children[i]);
    }
  }
}

/// Whether some token below the node has another string of its own.
bool TokenTable::Impl::has_string_below(uint32_t node) const {
  for (uint32_t i = nodes[node].first_id; i < nodes[nodes[node].end].first_id; ++i) {
    const std::string& text = bytes[static_cast<size_t>(ids[i])];
    if (std::count(text.begin() + nodes[node].depth, text.end(), '"') > 1) return true;
  }
  return false;
}

void TokenTable::Impl::build_escapes() {
  for (const int32_t id : ids) {
    const std::string& text = bytes[static_cast<size_t>(id)];
    if (text.find('\\') == std::string::npos) continue;
    plain.escapes.push_back(id);
    constrain::EscapeStep step;
    for (size_t i = 0; i < text.size() && (i == 0 || step.kind == constrain::EscapeStep::kMore);
         ++i) {
      step = constrain::escape_step(step.next, static_cast<uint8_t>(text[i]));
    }
    int first = -1;
    if (step.kind == constrain::EscapeStep::kRawByte) {
      first = static_cast<uint8_t>(text[0]);
    } else if (step.kind == constrain::EscapeStep::kCodePoint) {
      uint8_t spelled[4];
      encode_utf8(step.code_point, spelled);
      first = spelled[0];
    }
    plain.first_spelled.push_back(static_cast<int16_t>(first));
  }
}

void TokenTable::Impl::build_tails() {
  std::map<std::string_view, std::vector<int32_t>> tails;
  for (const Close& close : plain.closes) {
    for (uint32_t i = nodes[close.node].first_id; i < nodes[nodes[close.node].end].first_id; ++i) {
      const std::string_view text = bytes[static_cast<size_t>(ids[i])];
      tails[text.substr(nodes[close.node].depth)].push_back(ids[i]);
    }
  }
  for (auto& [text, tokens] : tails) {
    plain.tails.push_back({std::string(text), std::move(tokens)});
  }
}

void TokenTable::Impl::build_plain() {
  using constrain::NodeId;
  constrain::RegexPool pool;
  const NodeId start = pool.json_body(pool.any_text());
  const size_t words = (bytes.size() + 31) / 32;
  plain.inside.assign(kMaxSlice + 2, std::vector<uint32_t>(words));
  plain.whole.assign(words, 0);
  struct Level {
    NodeId state;
    uint32_t chars;
    bool escaped;
  };
  std::vector<Level> levels(max_depth + 1);
  // Visits what follows `from` within a string that begins there.
  NodeId end = start;  // what the token being told of leaves
  std::map<NodeId, uint32_t> kinds = {{start, 0}};
  std::map<std::pair<uint32_t, uint32_t>, std::vector<int32_t>> insides;
  const auto walk = [&](uint32_t from, auto&& inside, auto&& close) {
    levels[nodes[from].depth] = {start, 0, false};
    for (uint32_t node = from + 1; node < nodes[from].end;) {
      const Level& above = levels[nodes[node].depth - 1u];
      const NodeId next = pool.step(above.state, nodes[node].byte);
      if (next == constrain::kEmptyNode) {
        node = nodes[node].end;
        continue;
      }
      if (next == constrain::kEpsilonNode) {
        close(Close{node, above.chars, !has_children(node), above.escaped});
        node = nodes[node].end;
        continue;
      }
      // A character counts with its first byte.
      const bool begins = above.state == start;
      Level& level = levels[nodes[node].depth];
      level = {next, above.chars + (begins ? 1 : 0),
               above.escaped || (begins && nodes[node].byte == '\\')};
      end = next;
      for (uint32_t i = nodes[node].first_id; i < nodes[node + 1].first_id; ++i) {
        inside(ids[i], level.chars);
      }
      ++node;
    }
  };
  walk(
      0,
      [&](int32_t id, uint32_t chars) {
        const auto at = static_cast<size_t>(id) / 32;
        const uint32_t bit = 1U << (id % 32);
        for (uint32_t slice = chars; slice <= kMaxSlice; ++slice) plain.inside[slice][at] |= bit;
        plain.inside[kMaxSlice + 1][at] |= bit;
        if (end == start) plain.whole[at] |= bit;
        const auto kind = static_cast<uint32_t>(kinds.size());
        insides[{kinds.try_emplace(end, kind).first->second, chars}].push_back(id);
        if (chars > kMaxSlice) plain.long_tokens.emplace_back(chars, id);
      },
      [&](const Close& close) { plain.closes.push_back(close); });
  plain.num_kinds = static_cast<uint32_t>(kinds.size());
  for (auto& [group, tokens] : insides) {
    plain.insides.push_back({group.first, group.second, std::move(tokens)});
  }
  build_escapes();
  build_tails();
  plain.open = plain.open_key = plain.inside[kMaxSlice + 1];
  for (const Close& close : plain.closes) {
    plain.max_close = std::max<size_t>(plain.max_close, nodes[close.node].depth);
    if (!close.leaf) {
      plain.close_branches.push_back(close.node);
      const bool is_odd = close.escaped || has_string_below(close.node);
      (is_odd ? plain.odd_branches : plain.key_branches).push_back(close.node);
      continue;
    }
    if (close.escaped) plain.escaped_leaves.push_back(close.node);
    for (uint32_t i = nodes[close.node].first_id; i < nodes[close.node + 1].first_id; ++i) {
      const auto word = static_cast<size_t>(ids[i]) / 32;
      plain.open[word] |= 1U << (ids[i] % 32);
      if (!close.escaped) plain.open_key[word] |= 1U << (ids[i] % 32);
    }
  }
  for (uint32_t node = 1; node + 1 < nodes.size(); ++node) {
    if (nodes[node].byte != '"' || !has_children(node)) continue;
    Opening& opening = openings[node];
    walk(
        node, [&](int32_t id, uint32_t) { opening.inside.push_back(id); },
        [&](const Close& close) { opening.closes.push_back(close); });
  }
}

}  // namespace vitrine
