// SPDX-License-Identifier: Apache-2.0
#include "json_mask.h"
#include "token_bits.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace vitrine::constrain {

namespace {

bool must_be_escaped(char byte) {
  return static_cast<uint8_t>(byte) < 0x20 || byte == '"' || byte == '\\';
}

bool needs_escape(std::string_view text) {
  return std::any_of(text.begin(), text.end(), must_be_escaped);
}

void unite(std::span<uint32_t> words, const std::vector<uint32_t>& more) {
  for (size_t i = 0; i < words.size(); ++i) words[i] |= more[i];
}

constexpr uint32_t kFewChildren = 4;  // so few are tried without a look at what is possible
constexpr size_t kMaxAfter = 256;
constexpr uint64_t kPlainList = ~uint64_t{0};

}  // namespace

Configs& JsonMask::buffer(size_t level) {
  while (buffers_.size() <= level) buffers_.emplace_back();
  return buffers_[level];
}

void JsonMask::set_node(uint32_t node, std::span<uint32_t> words) const {
  for (uint32_t i = table_.nodes[node].first_id; i < table_.nodes[node + 1].first_id; ++i) {
    set_bit(words, table_.ids[i]);
  }
}

void JsonMask::clear_node(uint32_t node, std::span<uint32_t> words) const {
  for (uint32_t i = table_.nodes[node].first_id; i < table_.nodes[node + 1].first_id; ++i) {
    words[static_cast<size_t>(table_.ids[i]) / 32] &= ~(1U << (table_.ids[i] % 32));
  }
}

void JsonMask::add(const Configs& configs, std::span<uint32_t> words) {
  const JsonMachine::Mark mark = machine_.mark();
  Configs rest;
  for (const Config& config : configs) {
    const bool in_string = config.kind == Config::kScalar &&
                           machine_.grammar().pool().node(config.state).kind == NodeKind::kJsonBody;
    if (in_string && machine_.is_unique(config.frame) && config.frame->others) {
      if (!add_unique_string(config, words)) rest.push_back(config);
    } else if (in_string) {
      add_string(config, words);
    } else if (config.kind == Config::kKey && config.state != kEmptyNode) {
      if (is_open_key(config)) {
        add_open_key(config, words);
        continue;
      }
      if (machine_.grammar().object(config.frame->shape).rest_is_open) {  // within a character
        rest.push_back(config);
        continue;
      }
      // Keys that are not named by their automaton, the named ones by theirs.
      Config other = config;
      other.low = other.high = 0;
      RegexPool& pool = machine_.grammar().pool();
      const NodeId body = pool.json_body(config.state, EscapeState::unpack(config.escape));
      const TerminalMask& terminal = terminals_.at(body);
      unite(words, terminal.words);
      for (uint32_t node : terminal.branches) add_path(other, 0, node, words);
      if (config.low == config.high) continue;
      other = config;
      other.state = kEmptyNode;
      rest.push_back(other);
    } else {
      rest.push_back(config);
    }
  }
  if (!rest.empty()) walk(0, rest, words, 0);
  machine_.return_to(mark);
}

void JsonMask::walk(uint32_t node, const Configs& configs, std::span<uint32_t> words,
                    size_t level) {
  if (node == 0 && machine_.take_spaces(configs)) return walk_spaced(configs, words, level);
  Configs& next = buffer(level);
  const uint32_t first = table_.first_child[node], last = table_.first_child[node + 1];
  const bool is_wide = last - first > kFewChildren;
  const ByteSet bytes = is_wide ? machine_.next_bytes(configs) : ByteSet();
  for (uint32_t i = first; i < last; ++i) {
    if (is_wide && !bytes.contains(table_.child_bytes[i])) continue;
    const JsonMachine::Mark mark = machine_.mark();
    machine_.step(configs, table_.child_bytes[i], next);
    if (!next.empty()) enter(table_.children[i], next, words, level);
    machine_.return_to(mark);
  }
}

/// From the root: behind any run of white space the same may come.
void JsonMask::walk_spaced(const Configs& configs, std::span<uint32_t> words, size_t level) {
  unite(words, table_.spaces.words);
  Configs& next = buffer(level);
  const ByteSet bytes = machine_.next_bytes(configs);
  for (size_t word = 0; word < bytes.words.size(); ++word) {
    for (uint64_t bits = bytes.words[word]; bits != 0; bits &= bits - 1) {
      const size_t byte = word * 64 + static_cast<size_t>(std::countr_zero(bits));
      if (table_.spaces.behind[byte].empty()) continue;
      const JsonMachine::Mark mark = machine_.mark();
      machine_.step(configs, static_cast<uint8_t>(byte), next);
      if (!next.empty()) {
        for (const uint32_t node : table_.spaces.behind[byte]) enter(node, next, words, level);
      }
      machine_.return_to(mark);
    }
  }
}

/// What may come from a node on, at these places behind it. Buffers above `level` are free.
void JsonMask::enter(uint32_t node, const Configs& configs, std::span<uint32_t> words,
                     size_t level) {
  set_node(node, words);
  if (!table_.has_children(node)) return;
  if (table_.nodes[node].byte != '"') return walk(node, configs, words, level + 1);
  const auto opens = [&](const Config& config) { return add_opening(config, node, words); };
  if (configs.size() == 1) {
    if (!opens(configs[0])) walk(node, configs, words, level + 1);
    return;
  }
  Configs rest;
  std::remove_copy_if(configs.begin(), configs.end(), std::back_inserter(rest), opens);
  if (!rest.empty()) walk(node, rest, words, level + 1);
}

/// A string without conditions that begins behind `node`: the table knows what follows.
bool JsonMask::add_opening(const Config& config, uint32_t node, std::span<uint32_t> words) {
  const RegexPool& pool = machine_.grammar().pool();
  const bool key = config.kind == Config::kKey && config.text == nullptr && config.depth == 0 &&
                   is_open_key(config);
  const bool text = config.kind == Config::kScalar && !machine_.keeps_text(config.frame) &&
                    pool.node(config.state).kind == NodeKind::kJsonBody &&
                    pool.node(config.state).a == pool.any_text() && pool.node(config.state).b == 0;
  if (!key && !text) return false;
  const auto found = table_.openings.find(node);
  if (found == table_.openings.end()) return false;
  for (int32_t id : found->second.inside) set_bit(words, id);
  for (const auto& close : found->second.closes) {
    if (text && close.leaf) {
      set_node(close.node, words);
    } else {
      add_path(config, node, close.node, words);
    }
  }
  return true;
}

/// Steps along the bytes from one node to another below it, then on from there.
void JsonMask::add_path(const Config& config, uint32_t from, uint32_t node,
                        std::span<uint32_t> words) {
  const JsonMachine::Mark mark = machine_.mark();
  const auto& nodes = table_.nodes;
  // Any token below the node spells the way to it.
  const std::string& spelling = table_.bytes[static_cast<size_t>(table_.ids[nodes[node].first_id])];
  Configs at = {config}, next;
  for (size_t i = nodes[from].depth; i < nodes[node].depth && !at.empty(); ++i) {
    machine_.step(at, static_cast<uint8_t>(spelling[i]), next);
    std::swap(at, next);
  }
  if (!at.empty()) {
    set_node(node, words);
    // Level numbers only keep buffers apart: below those in use.
    if (table_.has_children(node)) walk(node, at, words, nodes[node].depth + table_.max_depth + 1);
  }
  machine_.return_to(mark);
}

void JsonMask::add_string(const Config& config, std::span<uint32_t> words) {
  RegexPool& pool = machine_.grammar().pool();
  const Node body = pool.node(config.state);
  const Node content = pool.node(body.a);
  if (body.b == 0 && content.kind == NodeKind::kRepeat && content.a == pool.any_char()) {
    return add_plain_string(config, content.low, content.high, words);
  }
  const NodeId state = terminals_.stand_in(config.state);
  const TerminalMask& terminal = terminals_.at(state);
  unite(words, terminal.words);
  add_after_string(config, terminal.branches, state, words);
}

/// A string item that must differ from those before it. False within an escape: then each step must
/// be looked at.
bool JsonMask::add_unique_string(const Config& config, std::span<uint32_t> words) {
  RegexPool& pool = machine_.grammar().pool();
  const Node body = pool.node(config.state);
  if (body.b != 0) return false;
  const std::string typed = machine_.item_text(config.text);
  std::vector<std::string> rests;  // of used strings that begin so
  for (const SeenLink* link = config.frame->others; link; link = link->before) {
    if (link->text()[0] != '"' || !link->text().substr(1).starts_with(typed)) continue;
    rests.emplace_back(link->text().substr(1 + typed.size()));
    if (!pool.matches(body.a, rests.back())) rests.pop_back();  // an item under another schema
  }
  std::vector<uint32_t> mask(words.size());
  if (pool.is_infinite(body.a)) {
    add_string(config, mask);
    for (const std::string& rest : rests) {
      if (needs_escape(rest)) continue;
      const uint32_t node = rest.empty() ? 0 : table_.find(0, rest);
      const uint32_t close = node == 0 && !rest.empty() ? 0 : table_.find(node, "\"");
      if (close != 0) clear_node(close, mask);
    }
    // With an escape before the quote, a used string may be spelt otherwise: look at each.
    for (const auto& close : table_.plain.closes) {
      if (!close.escaped) continue;
      clear_node(close.node, mask);
      add_path(config, 0, close.node, mask);
    }
  } else {
    const TerminalMask& terminal = terminals_.at(config.state);
    mask = terminal.words;
    std::sort(rests.begin(), rests.end());
    for (const std::string& rest : rests) clear_used(body.a, rest, rests, mask);
    for (const int32_t id : table_.plain.escapes) {  // these may spell a used string otherwise
      const size_t word = static_cast<size_t>(id) / 32;
      if ((mask[word] >> (id % 32) & 1) != 0 && !takes(config, id)) mask[word] ^= 1U << (id % 32);
    }
    for (const uint32_t node : terminal.branches) add_path(config, 0, node, mask);
  }
  unite(words, mask);
  return true;
}

/// Takes out the tokens behind which nothing is left of a finite language but `rest`, which is
/// used, and other used texts. `used` is sorted.
void JsonMask::clear_used(NodeId content, std::string_view rest,
                          const std::vector<std::string>& used, std::span<uint32_t> mask) const {
  RegexPool& pool = machine_.grammar().pool();
  uint32_t node = 0;
  auto first = used.begin(), last = used.end();  // those that begin like `rest` so far
  for (size_t length = 0; length < rest.size(); ++length) {
    const auto byte = static_cast<uint8_t>(rest[length]);
    if (must_be_escaped(rest[length])) return;  // it is spelt with an escape
    node = table_.find(node, rest.substr(length, 1));
    content = pool.step(content, byte);
    if (node == 0) return;
    const auto order = [length](std::string_view text) {
      return text.size() > length ? static_cast<int>(static_cast<uint8_t>(text[length])) : -1;
    };
    first = std::partition_point(first, last,
                                 [&](const std::string& other) { return order(other) < byte; });
    last = std::partition_point(first, last,
                                [&](const std::string& other) { return order(other) == byte; });
    const auto taken = static_cast<uint64_t>(last - first);
    if (pool.count_strings(content, taken + 1) <= taken) clear_node(node, mask);
  }
  node = table_.find(node, "\"");
  if (node != 0) clear_node(node, mask);
}

/// Whether the place takes the token, byte by byte.
bool JsonMask::takes(const Config& config, int32_t id) {
  const JsonMachine::Mark mark = machine_.mark();
  Configs at = {config}, next;
  for (const char byte : table_.bytes[static_cast<size_t>(id)]) {
    machine_.step(at, static_cast<uint8_t>(byte), next);
    std::swap(at, next);
  }
  machine_.return_to(mark);
  return !at.empty();
}

void JsonMask::add_plain_string(const Config& config, uint32_t low, uint32_t high,
                                std::span<uint32_t> words) {
  constexpr uint32_t kSlice = TokenTable::Impl::kMaxSlice;
  const auto& plain = table_.plain;
  if (low == 0 && high == kUnbounded) {
    unite(words, plain.open);
    return add_after_string(config, plain.close_branches, kPlainList, words);
  }
  std::vector<uint32_t> branches;
  scratch_ = plain.inside[high <= kSlice ? high : kSlice + 1];
  if (high > kSlice && high != kUnbounded) {
    for (const auto& [chars, id] : plain.long_tokens) {
      if (chars > high) scratch_[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
    }
  }
  for (const auto& close : plain.closes) {
    if (close.chars < low || close.chars > high) continue;
    set_node(close.node, scratch_);
    if (!close.leaf) branches.push_back(close.node);
  }
  unite(words, scratch_);
  add_after_string(config, branches, config.state, words);
}

/// Tokens that end the string and go on.
void JsonMask::add_after_string(const Config& config, const std::vector<uint32_t>& branches,
                                uint64_t list, std::span<uint32_t> words) {
  if (branches.empty()) return;
  if (machine_.keeps_text(config.frame)) {
    for (uint32_t node : branches) add_path(config, 0, node, words);
    return;
  }
  const AfterKey key{config.frame ? config.frame->serial : 0, list};
  auto found = after_.find(key);
  if (found == after_.end()) {
    if (after_.size() >= kMaxAfter) after_.clear();
    std::vector<uint32_t> allowed(words.size());
    Configs after;
    machine_.after_value(config.frame, after);
    for (uint32_t node : branches) {
      set_node(node, allowed);
      walk(node, after, allowed, 0);
    }
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < allowed.size(); ++i) {
      for (uint32_t bits = allowed[i]; bits != 0; bits &= bits - 1) {
        tokens.push_back(static_cast<int32_t>(i * 32) + __builtin_ctz(bits));
      }
    }
    found = after_.emplace(key, std::move(tokens)).first;
  }
  for (int32_t id : found->second) set_bit(words, id);
}

/// A key that may become any text that the object does not have.
bool JsonMask::is_open_key(const Config& config) const {
  return config.state == machine_.grammar().pool().any_text() && config.escape == 0;
}

void JsonMask::add_open_key(const Config& config, std::span<uint32_t> words) {
  const ObjectShape& shape = machine_.grammar().object(config.frame->shape);
  // Names that this key could become with one token: those it has are taken, those it has not yet
  // may have values of their own.
  std::vector<uint32_t> exceptions;
  const auto except = [&](std::string_view rest) {
    if (rest.size() >= table_.plain.max_close) return;
    uint32_t node = rest.empty() ? 0 : table_.find(0, rest);
    if (node == 0 && !rest.empty()) return;
    node = table_.find(node, "\"");
    if (node != 0) exceptions.push_back(node);
  };
  for (uint32_t i = config.low; i < config.high; ++i) {
    except(std::string_view(*shape.named[i].name).substr(config.depth));
  }
  if (config.frame->others != nullptr) {
    const std::string typed = machine_.text_of(config.text);
    for (const SeenLink* link = config.frame->others; link; link = link->before) {
      if (link->text().starts_with(typed)) except(link->text().substr(typed.size()));
    }
  }
  std::span<uint32_t> out = words;
  if (exceptions.empty()) {
    unite(words, table_.plain.open_key);
  } else {
    scratch_ = table_.plain.open_key;
    for (const uint32_t node : exceptions) clear_node(node, scratch_);
    out = scratch_;
  }
  for (const uint32_t node : exceptions) add_path(config, 0, node, out);
  for (const uint32_t node : table_.plain.escaped_leaves) add_path(config, 0, node, out);
  for (const uint32_t node : table_.plain.odd_branches) add_path(config, 0, node, out);
  const auto is_exception = [&](uint32_t node) {
    return std::find(exceptions.begin(), exceptions.end(), node) != exceptions.end();
  };
  const bool is_alike = config.frame->needs == 0 && shape.combinations.size() <= 1 &&
                        !machine_.grammar().keys_may_repeat() && !config.frame->inside;
  const JsonMachine::Mark mark = machine_.mark();
  Configs after;
  if (is_alike) machine_.after_other_key(config, after);
  for (const uint32_t node : table_.plain.key_branches) {
    if (is_exception(node)) continue;
    if (is_alike) {
      set_node(node, out);
      walk(node, after, out, 0);
    } else {
      add_path(config, 0, node, out);
    }
  }
  machine_.return_to(mark);
  if (!exceptions.empty()) unite(words, scratch_);
}

}  // namespace vitrine::constrain
