// SPDX-License-Identifier: Apache-2.0
#include "token_limit.h"

#include <algorithm>
#include <array>

namespace vitrine::constrain {

namespace {

// Bytes that end a string wherever a token leaves it: the rest of a character (3) or of an escaped
// pair of surrogates (11), and the quote.
constexpr uint32_t kStringEnd = 12;

constexpr uint32_t kMaxTakenKeys = 25;  // one of 26 letters makes a new one

void take_out(std::vector<uint32_t>& words, const std::vector<uint32_t>& these) {
  for (size_t i = 0; i < words.size(); ++i) words[i] &= ~these[i];
}

}  // namespace

std::vector<uint32_t> without_ends(const TokenTable::Impl& table, std::span<const uint32_t> mask) {
  std::vector<uint32_t> out(mask.begin(), mask.end());
  for (const int32_t id : table.end_ids) out[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
  return out;
}

/// Tokens that stay within a string all need little more: they need no look at each.
void JsonLimit::skip_proven(const Config& config, uint32_t left) {
  if (!table_.has_all_bytes) return;
  if (config.kind == Config::kKey) return skip_open_key(config, left);
  if (config.kind != Config::kScalar || machine_.keeps_text(config.frame)) return;
  RegexPool& pool = machine_.grammar().pool();
  const Node body = pool.node(config.state);
  if (body.kind != NodeKind::kJsonBody || body.b != 0) return;
  Config behind;
  behind.kind = Config::kAfterValue;
  behind.frame = config.frame;
  const uint32_t after = finish_.bound({behind});
  const Node content = pool.node(body.a);
  if (content.kind == NodeKind::kRepeat && content.a == pool.any_char()) {
    if (add_bounds(add_bounds(after, content.low), kStringEnd) > left) return;
    take_out(check_, table_.plain.inside.back());
  } else if (content.kind != NodeKind::kAnd) {  // a length within makes every state a new one
    const TerminalMask& terminal = terminals_.at(config.state);
    const uint32_t needed = pool.takes_any_text(body.a) ? kStringEnd : terminal.needed;
    if (needed >= kUnbounded - kStringEnd || add_bounds(after, needed) > left) return;
    take_out(check_, pool.takes_any_text(body.a) ? table_.plain.inside.back() : terminal.words);
  }
}

/// A key that may become any text: with one letter more, a quote and a colon it is one that the
/// object does not have.
void JsonLimit::skip_open_key(const Config& config, uint32_t left) {
  JsonGrammar& grammar = machine_.grammar();
  const Frame& frame = *config.frame;
  const ObjectShape& shape = grammar.object(frame.shape);
  if (config.escape != 0 || config.state != grammar.pool().any_text() || !shape.rest_is_open ||
      frame.needs != 0 || frame.inside || frame.count + 1 < shape.min) {
    return;
  }
  uint32_t taken = static_cast<uint32_t>(shape.named.size());
  for (const SeenLink* link = frame.others; link != nullptr; link = link->before) ++taken;
  if (taken > kMaxTakenKeys) return;
  uint32_t value = 0;
  for (const auto& combination : shape.combinations) {
    value = std::max(value, finish_.text_of_value(combination.value).tokens);
  }
  for (size_t i = 0; i < shape.named.size(); ++i) {
    if (!machine_.named_allowed(frame, i)) continue;
    value = std::max(value, finish_.text_of_value(shape.named[i].value).tokens);
  }
  Config behind;
  behind.kind = Config::kAfterValue;
  behind.frame = &frame;
  if (add_bounds(add_bounds(finish_.bound({behind}), value), 3) > left) return;
  take_out(check_, table_.plain.whole);
  // So do those that end the key and do no more.
  const std::vector<uint32_t>& inside = table_.plain.inside.back();
  for (size_t i = 0; i < check_.size(); ++i) check_[i] &= ~(table_.plain.open_key[i] & ~inside[i]);
}

void keep_fitting(const TokenTable::Impl& table, TerminalMasks& terminals, FinishTexts& texts,
                  RegexPool& pool, NodeId state, std::span<uint32_t> mask, uint32_t left) {
  if (table.has_all_bytes && terminals.at(state).needed <= left) return;
  texts.trim();
  std::vector<uint32_t> check = without_ends(table, mask);
  std::vector<NodeId> places(table.max_depth + 1, state);
  keep_fitting(
      table, mask, check,
      [&](size_t depth, uint8_t byte) {
        places[depth + 1] = pool.step(places[depth], byte);
        return places[depth + 1] != kEmptyNode;
      },
      [&](size_t depth) { return texts.of_state(places[depth]).tokens <= left; });
}

/// True where there is no room for a token that stays within this string: it has an end to come,
/// and a key a value.
bool JsonLimit::is_hopeless(const Config& config, uint32_t left) {
  if (config.frame != nullptr && machine_.keeps_text(config.frame)) return false;
  uint32_t least = 1;
  if (config.kind == Config::kKey) {
    // Else another key may ask less of the rest.
    const ObjectShape& shape = machine_.grammar().object(config.frame->shape);
    if (config.state == kEmptyNode || config.frame->needs != 0 || config.frame->inside ||
        config.frame->count < shape.min) {
      return false;
    }
    least = 2;
  } else if (config.kind != Config::kScalar ||
             machine_.grammar().pool().node(config.state).kind != NodeKind::kJsonBody) {
    return false;
  }
  Config behind;
  behind.kind = Config::kAfterValue;
  behind.frame = config.frame;
  return add_bounds(finish_.bound({behind}), least) > left;
}

/// Tokens that stay within a string are not looked at one by one where none of them fits: only
/// those that a named key begins with.
void JsonLimit::skip_hopeless(const Configs& configs, std::span<uint32_t> mask, uint32_t left) {
  Configs able;
  bool differs = false;
  for (Config config : configs) {
    const bool is_hopeless_one = is_hopeless(config, left);
    differs = differs || is_hopeless_one;
    if (is_hopeless_one && config.kind != Config::kKey) continue;
    if (is_hopeless_one) config.state = kEmptyNode;
    able.push_back(config);
  }
  if (!differs) return;
  const std::vector<uint32_t>& inside = table_.plain.inside.back();
  std::vector<uint32_t> others = check_;
  take_out(others, inside);
  take_out(check_, others);
  keep_checked(able, mask, left);
  check_ = std::move(others);
}

/// Tokens that go on with a key that may become any text, or end it, leave the same to come,
/// whatever they are: one of them is looked at for all. The others: those that a key begins with
/// which the object names or has.
void JsonLimit::decide_open_key(const Configs& configs, std::span<uint32_t> mask, uint32_t left) {
  if (configs.size() != 1 || configs[0].kind != Config::kKey) return;
  const Config& config = configs[0];
  JsonGrammar& grammar = machine_.grammar();
  const Frame& frame = *config.frame;
  const ObjectShape& shape = grammar.object(frame.shape);
  const NodeId any_text = grammar.pool().any_text();
  if (config.escape != 0 || config.state != any_text || frame.needs != 0 || frame.inside ||
      grammar.keys_may_repeat()) {
    return;
  }
  const std::string key = machine_.text_of(config.text);
  for (const ObjectShape::Rule& rule : shape.rules) {  // each must have come to hold, or not to
    const NodeId rest = grammar.pool().step(rule.keys, key);
    if (rest != any_text && rest != kEmptyNode) return;
  }
  std::vector<std::string> known;  // what is left of keys that begin like this one
  for (uint32_t i = config.low; i < config.high; ++i) {
    known.push_back(shape.named[i].name->substr(config.depth));
  }
  finish_.for_known_keys(frame, [&](std::string_view text) {
    if (text.starts_with(key)) known.emplace_back(text.substr(key.size()));
  });
  std::array<bool, 256> begins = {};
  for (const std::string& rest : known) {
    if (!rest.empty()) begins[static_cast<uint8_t>(rest[0])] = true;
  }
  uint8_t letter = 'a';
  while (letter <= 'z' && begins[letter]) ++letter;
  if (letter > 'z') return;
  const JsonMachine::Mark mark = machine_.mark();
  Configs inside, behind;
  machine_.step(config, letter, inside);
  machine_.step(inside, '"', behind);
  std::vector<uint32_t> ending = table_.plain.open_key;
  take_out(ending, table_.plain.inside.back());
  for (const auto& [words, at] : {std::pair(&table_.plain.whole, &inside), {&ending, &behind}}) {
    std::vector<uint32_t> same = check_;
    for (size_t i = 0; i < same.size(); ++i) same[i] &= (*words)[i];
    const auto keep_apart = [&](uint32_t node) {
      for (uint32_t i = table_.nodes[node].first_id; i < table_.nodes[node + 1].first_id; ++i) {
        same[static_cast<size_t>(table_.ids[i]) / 32] &= ~(1U << (table_.ids[i] % 32));
      }
    };
    for (const int32_t id : table_.plain.escapes) {
      same[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
    }
    for (const std::string_view rest : known) {
      uint32_t node = 0;
      for (size_t i = 0; i <= rest.size(); ++i) {
        if (const uint32_t end = table_.find(node, "\""); end != 0) keep_apart(end);
        node = i < rest.size() ? table_.find(node, rest.substr(i, 1)) : 0;
        if (node == 0) break;
        keep_apart(node);
      }
    }
    take_out(check_, same);
    if (finish_.bound(*at) <= left) continue;
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= ~same[i];
  }
  machine_.return_to(mark);
}

void JsonLimit::keep(const Configs& configs, std::span<uint32_t> mask, uint32_t left) {
  check_ = without_ends(table_, mask);
  for (const Config& config : configs) skip_proven(config, left);
  decide_open_key(configs, mask, left);
  skip_hopeless(configs, mask, left);
  keep_checked(configs, mask, left);
}

/// Looks at each token of check_.
void JsonLimit::keep_checked(const Configs& configs, std::span<uint32_t> mask, uint32_t left) {
  places_.resize(table_.max_depth + 1);
  marks_.resize(table_.max_depth + 1);
  places_[0] = configs;
  const JsonMachine::Mark start = machine_.mark();
  marks_[0] = start;
  keep_fitting(
      table_, mask, check_,
      [this](size_t depth, uint8_t byte) {
        machine_.return_to(marks_[depth]);  // places beyond are made anew
        machine_.step(places_[depth], byte, places_[depth + 1]);
        marks_[depth + 1] = machine_.mark();
        return !places_[depth + 1].empty();
      },
      [this, left](size_t depth) { return finish_.bound(places_[depth]) <= left; });
  machine_.return_to(start);
}

}  // namespace vitrine::constrain
