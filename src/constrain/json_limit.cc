// SPDX-License-Identifier: Apache-2.0
#include "json_limit.h"
#include "token_bits.h"

#include <algorithm>

namespace vitrine::constrain {

namespace {

// Bytes that end a string wherever a token leaves it: the rest of a character (3) or of an escaped
// pair of surrogates (11), and the quote.
constexpr uint32_t kStringEnd = 12;
constexpr size_t kMaxFrames = 64;
constexpr size_t kMaxRules = 16;  // of an object, told apart by what a key has met

void take_out(std::vector<uint32_t>& words, const std::vector<uint32_t>& these) {
  for (size_t i = 0; i < words.size(); ++i) words[i] &= ~these[i];
}
bool has_bit(std::span<const uint32_t> words, int32_t id) {
  return (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) != 0;
}
template <typename Bounds>
Bounds& bounds_of(std::unordered_map<uint64_t, Bounds>& memo, uint64_t key) {
  if (memo.size() >= kMaxFrames && !memo.contains(key)) memo.clear();
  return memo[key];
}

Config behind_value(const Frame* frame) {
  Config behind;
  behind.kind = Config::kAfterValue;
  behind.frame = frame;
  return behind;
}

}  // namespace

void JsonLimit::keep(const Configs& configs, std::span<uint32_t> mask, uint32_t left) {
  check_ = without_ends(table_, mask);
  for (const Config& config : configs) {
    decided_.fits.assign(mask.size(), 0);
    decided_.misses.assign(mask.size(), 0);
    decide(config, configs.size() == 1, left);
    take_out(check_, decided_.fits);
    if (&config == &configs[0]) {
      all_miss_.swap(decided_.misses);
    } else {
      for (size_t i = 0; i < mask.size(); ++i) all_miss_[i] &= decided_.misses[i];
    }
  }
  if (!configs.empty()) {
    for (size_t i = 0; i < mask.size(); ++i) {
      const uint32_t missing = check_[i] & all_miss_[i];
      mask[i] &= ~missing;
      check_[i] &= ~missing;
    }
  }
  skip_hopeless(configs, mask, left);
  keep_checked(configs, mask, left);
}

void JsonLimit::decide(const Config& config, bool is_only, uint32_t left) {
  if (config.kind == Config::kKey) return decide_key(config, left);
  if (config.kind == Config::kScalar && !machine_.keeps_text(config.frame) &&
      machine_.grammar().pool().node(config.state).kind == NodeKind::kJsonBody) {
    decide_string(config, is_only, left);
  }
}

void JsonLimit::set(std::span<const int32_t> ids, bool is_fit) {
  std::vector<uint32_t>& words = is_fit ? decided_.fits : decided_.misses;
  for (const int32_t id : ids) set_bit(words, id);
}

bool JsonLimit::is_asked(std::span<const int32_t> ids) const {
  return std::ranges::any_of(ids, [this](int32_t id) { return has_bit(check_, id); });
}

// ---- strings ------------------------------------------------------------------------------------

/// `is_only`: there is no other reading, so that this one takes every token of the mask.
void JsonLimit::decide_string(const Config& config, bool is_only, uint32_t left) {
  RegexPool& pool = machine_.grammar().pool();
  const Node body = pool.node(config.state);
  if (body.b != 0) return;  // within an escape a quote closes nothing
  const uint32_t after = finish_.bound({behind_value(config.frame)});
  const std::vector<uint32_t>& inside = table_.plain.inside.back();
  const bool has_room = after < left;  // for one token more
  const Node content = pool.node(body.a);
  const bool is_plain = content.kind == NodeKind::kRepeat && content.a == pool.any_char();
  const bool is_any = is_plain && content.low == 0 && content.high == kUnbounded;
  if (!has_room) {
    decided_.misses = inside;
  } else if (is_plain) {
    decide_plain(content.low, is_only || is_any, left - after);
  } else {
    decide_pattern(config.state, left - after);
  }
  if (!is_only && !is_any) return;
  Configs behind;
  machine_.after_value(config.frame, behind);
  decide_tails(behind, bounds_of(strings_, config.frame != nullptr ? config.frame->serial : 0),
               false, left);
}

/// Decides on tokens that stay within a string of which `least` characters at least are to come.
void JsonLimit::decide_plain(uint32_t least, bool is_only, uint32_t room) {
  const std::vector<uint32_t>& inside = table_.plain.inside.back();
  if (table_.has_string_bytes && table_.is_token(' ') && add_bounds(least, kStringEnd) <= room) {
    if (is_only) decided_.fits = inside;
    return;
  }
  const std::vector<uint32_t>& within = texts_.within_string(room);
  if (least == 0) {
    if (is_only) decided_.fits = within;
    decided_.misses = inside;
    take_out(decided_.misses, within);
    return;
  }
  for (const auto& group : table_.plain.insides) {
    const uint32_t more = least - std::min(least, group.chars);
    const bool is_fit = texts_.end_of_string(group.kind, more) <= room;
    if (!is_fit || is_only) set(group.ids, is_fit);
  }
}

/// Decides on tokens that stay within a string that is under a pattern.
void JsonLimit::decide_pattern(NodeId state, uint32_t room) {
  RegexPool& pool = machine_.grammar().pool();
  const NodeId content = pool.node(state).a;
  const bool is_any = pool.takes_any_text(content);
  if (table_.has_all_bytes && pool.node(content).kind != NodeKind::kAnd) {
    // A length within makes every state a new one.
    const TerminalMask& terminal = terminals_.at(state);
    const uint32_t needed = is_any ? kStringEnd : terminal.needed;
    if (needed < kUnbounded - kStringEnd && needed <= room) {
      decided_.fits = is_any ? table_.plain.inside.back() : terminal.words;
    }
  }
}

// ---- tokens that close a string or a key -------------------------------------------------------

uint32_t JsonLimit::tail_bound(const Configs& behind, std::string_view tail) {
  const JsonMachine::Mark mark = machine_.mark();
  Configs at = behind, next;
  for (const char byte : tail) {
    machine_.step(at, static_cast<uint8_t>(byte), next);
    std::swap(at, next);
    if (at.empty()) break;
  }
  const uint32_t bound = at.empty() ? kNoBound : finish_.bound(at);
  machine_.return_to(mark);
  return bound;
}

/// Decides on tokens that close the string. Those that close a key, and behind which its own text
/// may matter, stay undecided.
void JsonLimit::decide_tails(const Configs& behind, TailBounds& bounds, bool is_key,
                             uint32_t left) {
  const auto& tails = table_.plain.tails;
  bounds.tokens.resize(tails.size(), kUnasked);
  for (size_t i = 0; i < tails.size(); ++i) {
    if (is_key && tails[i].text.find_first_of(",\"") != std::string::npos) continue;
    if (!is_asked(tails[i].ids)) continue;
    uint32_t& bound = bounds.tokens[i];
    if (bound == kUnasked) bound = tail_bound(behind, tails[i].text);
    set(tails[i].ids, bound <= left);
  }
}

// ---- keys ---------------------------------------------------------------------------------------

/// Makes known_ of the keys that begin like this one: named ones, and those that the object has or
/// a completion of it may have.
void JsonLimit::collect_known(const Config& config, const std::string& key) {
  const ObjectShape& shape = machine_.grammar().object(config.frame->shape);
  known_.clear();
  for (uint32_t i = config.low; i < config.high; ++i) {
    known_.push_back(shape.named[i].name->substr(config.depth));
  }
  finish_.for_known_keys(*config.frame, [&](std::string_view text) {
    if (text.starts_with(key)) known_.emplace_back(text.substr(key.size()));
  });
}

void JsonLimit::find_beginnings() {
  differs_.fill(false);
  for (const std::string& rest : known_) {
    if (!rest.empty()) differs_[static_cast<uint8_t>(rest[0])] = true;
  }
}

/// Finds a byte with which the key becomes one that is not known, and of which each rule shows
/// whether it holds: 0 where there is none. Marks in differs_ the bytes that may lead elsewhere,
/// and sets `met` to the rules that hold.
uint8_t JsonLimit::find_letter(const ObjectShape& shape, const std::string& key, uint64_t& met) {
  RegexPool& pool = machine_.grammar().pool();
  const NodeId any_text = pool.any_text();
  find_beginnings();
  std::vector<NodeId> open;  // rules that do not show it yet
  met = 0;
  is_open_ = false;
  for (size_t i = 0; i < shape.rules.size(); ++i) {
    open.push_back(pool.step(shape.rules[i].keys, key));
    is_open_ = is_open_ || (open[i] != any_text && open[i] != kEmptyNode);
  }
  const auto holds = [&](size_t rule, uint8_t byte) {  // 0 no, 1 yes, 2 it may
    const NodeId rest = pool.step(open[rule], byte);
    return rest == kEmptyNode ? 0 : rest == pool.step(any_text, byte) ? 1 : 2;
  };
  const auto is_settled = [&](uint8_t byte) {
    for (size_t i = 0; i < open.size(); ++i) {
      if (holds(i, byte) == 2) return false;
    }
    return true;
  };
  uint8_t letter = 'a';
  while (letter <= 'z' && (differs_[letter] || !is_settled(letter))) ++letter;
  if (letter > 'z') return 0;
  for (size_t i = 0; i < open.size(); ++i) {
    if (holds(i, letter) == 1) met |= uint64_t{1} << i;
  }
  for (size_t byte = 0; is_open_ && byte < differs_.size(); ++byte) {
    for (size_t i = 0; i < open.size() && !differs_[byte]; ++i) {
      differs_[byte] = holds(i, static_cast<uint8_t>(byte)) != holds(i, letter);
    }
  }
  return letter;
}

/// Makes apart_ of the tokens that may be the beginning of a known key, or one, or behind which the
/// rules may hold otherwise.
void JsonLimit::set_apart() {
  apart_.assign(check_.size(), 0);
  if (known_.empty() && !is_open_) return;
  const auto add = [this](uint32_t from, uint32_t to) {
    for (uint32_t i = table_.nodes[from].first_id; i < table_.nodes[to].first_id; ++i) {
      set_bit(apart_, table_.ids[i]);
    }
  };
  for (const std::string_view rest : known_) {
    uint32_t node = 0;
    for (size_t i = 0; i <= rest.size(); ++i) {
      if (const uint32_t end = table_.find(node, "\""); end != 0) add(end, table_.nodes[end].end);
      node = i < rest.size() ? table_.find(node, rest.substr(i, 1)) : 0;
      if (node == 0) break;
      add(node, node + 1);
    }
  }
  for (size_t byte = 0; is_open_ && byte < differs_.size(); ++byte) {
    const uint32_t node = table_.first_bytes[byte];
    if (node != 0 && (differs_[byte] || byte == '"')) add(node, table_.nodes[node].end);
  }
  for (size_t i = 0; i < table_.plain.escapes.size(); ++i) {
    const int first = table_.plain.first_spelled[i];
    if (first < 0 || differs_[static_cast<size_t>(first)]) {
      set_bit(apart_, table_.plain.escapes[i]);
    }
  }
}

void JsonLimit::decide_key(const Config& config, uint32_t left) {
  JsonGrammar& grammar = machine_.grammar();
  const Frame& frame = *config.frame;
  const ObjectShape& shape = grammar.object(frame.shape);
  if (config.escape != 0 || config.state == kEmptyNode || frame.needs != 0 || frame.inside ||
      grammar.keys_may_repeat() || shape.rules.size() > kMaxRules) {
    return;
  }
  const std::string key = machine_.text_of(config.text);
  collect_known(config, key);
  uint64_t met = 0;
  const uint8_t letter = find_letter(shape, key, met);
  const bool is_any = config.state == grammar.pool().any_text() && letter != 0;
  if (!is_any) {  // then the rules tell tokens apart as the key itself does
    is_open_ = false;
    find_beginnings();
  }
  set_apart();
  if (is_any) {
    const JsonMachine::Mark mark = machine_.mark();
    decide_open_key(config, letter, bounds_of(keys_, frame.serial << kMaxRules | met), left);
    machine_.return_to(mark);
  } else {
    decide_patterned_key(config, key, left);
  }
  take_out(decided_.fits, apart_);
  take_out(decided_.misses, apart_);
}

/// Tokens that go on with a key that may become any text, or end it, leave the same to come,
/// whatever they are: one of them is looked at for all. The others: those that a key begins with
/// which the object names or has.
void JsonLimit::decide_open_key(const Config& config, uint8_t letter, KeyBounds& bounds,
                                uint32_t left) {
  Configs inside, behind;
  machine_.step(config, letter, inside);
  machine_.step(inside, '"', behind);
  bounds.kinds.resize(table_.plain.num_kinds, kUnasked);
  for (const auto& group : table_.plain.insides) {
    uint32_t& bound = bounds.kinds[group.kind];
    if (bound == kUnasked) {
      std::string_view text;  // empty where the token is plain text as a whole
      if (group.kind != 0) text = table_.bytes[static_cast<size_t>(group.ids[0])];
      bound = tail_bound(inside, text);
    }
    if (group.kind != 0) set(group.ids, bound <= left);
  }
  std::vector<uint32_t>& whole = bounds.kinds[0] <= left ? decided_.fits : decided_.misses;
  for (size_t i = 0; i < whole.size(); ++i) whole[i] |= table_.plain.whole[i];
  decide_tails(behind, bounds.tails, true, left);
}

/// Decides on tokens within a key under patterns. Tokens that lead to the same place in all
/// patterns leave the same to come, so one of them is looked at for all.
void JsonLimit::decide_patterned_key(const Config& config, const std::string& key, uint32_t left) {
  RegexPool& pool = machine_.grammar().pool();
  const ObjectShape& shape = machine_.grammar().object(config.frame->shape);
  std::vector<NodeId> start = {config.state};  // what is left of the key, and of each rule
  for (const ObjectShape::Rule& rule : shape.rules) start.push_back(pool.step(rule.keys, key));
  auto& bounds = bounds_of(patterned_keys_, config.frame->serial);
  for (const KeyTokens::Group& group : texts_.key_tokens().from(start)) {
    uint32_t& bound = bounds.try_emplace(group.states, kUnasked).first->second;
    if (bound == kUnasked) {  // of a token that spells no known key
      const auto other =
          std::ranges::find_if(group.ids, [this](int32_t id) { return !has_bit(apart_, id); });
      if (other == group.ids.end()) continue;
      bound = tail_bound({config}, table_.bytes[static_cast<size_t>(*other)]);
    }
    if (bound <= left) set(group.ids, true);
  }
  decided_.misses = table_.plain.whole;
  take_out(decided_.misses, decided_.fits);
  for (const int32_t id : table_.plain.escapes) {
    decided_.misses[static_cast<size_t>(id) / 32] &= ~(1U << (id % 32));
  }
}

// ---- one by one ---------------------------------------------------------------------------------

/// True where there is no room for a token that stays within this string: it has an end to come,
/// and a key a value.
bool JsonLimit::is_hopeless(const Config& config, uint32_t left) {
  if (config.frame != nullptr && machine_.keeps_text(config.frame)) return false;
  uint32_t least = 1;
  if (config.kind == Config::kKey) {
    // Another key may ask less of the rest in these cases.
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
