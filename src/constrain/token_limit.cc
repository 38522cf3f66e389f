#include "token_limit.h"

#include <algorithm>

namespace vitrine::constrain {

namespace {

// Bytes that end a string wherever a token leaves it: the rest of a character (3) or of an escaped
// pair of surrogates (11), and the quote.
constexpr uint32_t kStringEnd = 12;

constexpr uint32_t kMostTakenKeys = 25;  // one of 26 letters makes a new one

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
  if (taken > kMostTakenKeys) return;
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
        config.frame->count + 1 < shape.min) {
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

void JsonLimit::keep(const Configs& configs, std::span<uint32_t> mask, uint32_t left) {
  check_ = without_ends(table_, mask);
  for (const Config& config : configs) skip_proven(config, left);
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
