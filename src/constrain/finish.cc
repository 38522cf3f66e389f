// SPDX-License-Identifier: Apache-2.0
#include "finish.h"

#include <algorithm>
#include <deque>
#include <unordered_set>

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxStates = 20000;  // of one search
constexpr size_t kMaxFinishMemo = size_t{1} << 16;
constexpr size_t kMaxVisits = 20000;  // of values, for one answer
constexpr int kMaxFinishDepth = 200;
constexpr size_t kMaxPaths = 5000;  // of a search for a text that is new

}  // namespace

std::string escaped(std::string_view characters) {
  std::string out;
  for (const char character : characters) {
    const auto byte = static_cast<uint8_t>(character);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += character;
    } else if (byte < 0x20) {
      static constexpr char kDigits[] = "0123456789abcdef";
      out += {'\\', 'u', '0', '0', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      out += character;
    }
  }
  return out;
}

Finish FinishTexts::spelled(std::string text) const {
  const uint32_t tokens = table_.count_tokens(text);
  static_assert(TokenTable::Impl::kUnspelled == kNoBound);
  return {std::move(text), tokens};
}

const Finish& FinishTexts::of_state(NodeId state) {
  const auto found = states_.find(state);
  if (found != states_.end()) return found->second;
  must_write();
  std::optional<std::string> text = state_text(state);
  Finish finish = text ? spelled(std::move(*text)) : Finish{};
  if (!finish.is_known() && !table_.has_all_bytes &&
      !is_too_long(state)) {  // the tokens may lack a byte of the shortest
    text = search(state, is_token_);
    if (text) finish = spelled(std::move(*text));
  }
  return states_.emplace(state, std::move(finish)).first->second;
}

/// Every text of the language is longer than one that is written out.
bool FinishTexts::is_too_long(NodeId state) {
  return LeastSize(pool_).of_state(state) > kMaxFinishText;
}

/// Follows the bytes after which the known bound of the rest is least.
bool FinishTexts::descend(NodeId state, std::string& out) {
  uint32_t bound = pool_.shortest_bound(state);
  while (!pool_.nullable(state)) {
    if (bound > kMaxFinishText) return false;
    const uint32_t* row = pool_.row(state);
    NodeId best = kEmptyNode;
    uint32_t best_bound = bound;
    char best_byte = 0;
    NodeId last = kEmptyNode;
    for (int byte = 0; byte < 256; ++byte) {
      if (row[byte] == kEmptyNode || row[byte] == last) continue;
      last = row[byte];
      const uint32_t next = pool_.nullable(last) ? 0 : pool_.shortest_bound(last);
      if (next >= best_bound) continue;
      best = last;
      best_bound = next;
      best_byte = static_cast<char>(byte);
    }
    if (best == kEmptyNode) return false;
    out += best_byte;
    state = best;
    bound = best_bound;
  }
  return true;
}

std::optional<std::string> FinishTexts::state_text(NodeId start) {
  std::string text;
  // Long repetitions within one another make a derivative dear; a text of parts needs none.
  if (pool_.shortest_by_parts(start, kMaxFinishText, text)) return text;
  text.clear();
  if (descend(start, text)) return text;
  std::array<bool, 256> all;
  all.fill(true);
  return is_too_long(start) ? std::nullopt : search(start, all);
}

std::optional<std::string> FinishTexts::search(NodeId start, const std::array<bool, 256>& bytes) {
  struct Visit {
    NodeId id;
    size_t parent;
    uint8_t byte;
  };
  std::vector<Visit> visits = {{start, 0, 0}};
  std::unordered_map<NodeId, bool> seen = {{start, true}};
  for (size_t at = 0; at < visits.size() && visits.size() < kMaxStates; ++at) {
    if (pool_.nullable(visits[at].id)) {
      std::string text;
      for (size_t i = at; i != 0; i = visits[i].parent) text += static_cast<char>(visits[i].byte);
      std::reverse(text.begin(), text.end());
      return text;
    }
    const uint32_t* row = pool_.row(visits[at].id);
    for (size_t byte = 0; byte < 256; ++byte) {
      if (bytes[byte] && row[byte] != kEmptyNode && seen.try_emplace(row[byte], true).second) {
        visits.push_back({row[byte], at, static_cast<uint8_t>(byte)});
      }
    }
  }
  return std::nullopt;
}

/// At least so many of them where there are.
const FinishTexts::Candidates& FinishTexts::candidates(NodeId state, size_t count) {
  const auto known = candidates_.find(state);
  if (known != candidates_.end() && (known->second.all || known->second.texts.size() >= count)) {
    return known->second;
  }
  must_write();
  struct Path {
    NodeId at;
    std::string text;
  };
  Candidates found;
  std::deque<Path> open = {{state, ""}};
  for (size_t visits = 0; !open.empty() && visits < kMaxPaths; ++visits) {
    const Path path = std::move(open.front());
    open.pop_front();
    // Zero with a sign is zero, too.
    if (!path.text.empty() && pool_.nullable(path.at) && !path.text.starts_with("-0")) {
      if (found.texts.size() == 2 * count) break;
      found.texts.push_back(path.text);
    }
    const uint32_t* row = pool_.row(path.at);
    for (int byte = 0; byte < 256 && open.size() < kMaxPaths; ++byte) {
      if (row[byte] != kEmptyNode) {
        open.push_back({row[byte], path.text + static_cast<char>(byte)});
      }
    }
  }
  found.all = found.texts.size() < 2 * count;
  return candidates_[state] = std::move(found);
}

std::vector<std::string> FinishTexts::unused_texts(NodeId state,
                                                   const std::vector<std::string>& used,
                                                   size_t count) {
  std::vector<std::string> found;
  if (count == 0) return found;
  const std::unordered_set<std::string_view> taken(used.begin(), used.end());
  for (const std::string& text : candidates(state, count + taken.size()).texts) {
    if (taken.contains(text)) continue;
    found.push_back(text);
    if (found.size() == count) break;
  }
  return found;
}

uint32_t FinishTexts::end_of_string(uint32_t kind, uint32_t least) {
  const uint64_t key = uint64_t{kind} << 32 | least;
  if (const auto found = string_ends_.find(key); found != string_ends_.end()) return found->second;
  must_write();
  const auto& insides = table_.plain.insides;
  const auto example =
      std::ranges::find(insides, kind, [](const auto& inside) { return inside.kind; });
  uint32_t chars = 0;  // a string that has just begun is like one between two characters
  std::string_view text;
  if (kind != 0) {
    chars = example->chars;
    text = table_.bytes[static_cast<size_t>(example->ids[0])];
  }
  const NodeId content = pool_.repeat(pool_.any_char(), add_bounds(least, chars), kUnbounded);
  const NodeId state = pool_.step(pool_.json_body(content), text);
  if (string_ends_.size() >= kMaxFinishMemo) string_ends_.clear();
  return string_ends_[key] = of_state(state).tokens;
}

const std::vector<uint32_t>& FinishTexts::within_string(uint32_t most) {
  if (within_string_.empty()) {
    must_write();
    std::map<uint32_t, std::vector<const TokenTable::Impl::Plain::Inside*>> by_tokens;
    for (const auto& inside : table_.plain.insides) {
      const uint32_t tokens = end_of_string(inside.kind, 0);
      if (tokens != kNoBound) by_tokens[tokens].push_back(&inside);
    }
    std::vector<Within> made(1);
    made[0].words.resize((table_.bytes.size() + 31) / 32);
    for (const auto& [tokens, insides] : by_tokens) {
      made.push_back({tokens, made.back().words});
      for (const auto* inside : insides) {
        for (const int32_t id : inside->ids) {
          made.back().words[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
        }
      }
    }
    within_string_ = std::move(made);
  }
  auto at = within_string_.end() - 1;
  while (at->most > most) --at;
  return at->words;
}

void FinishTexts::trim() {
  if (states_.size() < kMaxFinishMemo && candidates_.size() < kMaxFinishMemo / 64) return;
  must_write();
  states_.clear();
  candidates_.clear();
}

FinishTexts::Checked& FinishTexts::of_value(ValueId id) {
  const auto found = values_.find(id);
  if (found != values_.end()) return found->second;
  must_write();
  visits_ = 0;
  open_values_.clear();
  std::optional<std::string> text = value_text(id, 0);
  Checked made;
  if (text) static_cast<Finish&>(made) = spelled(std::move(*text));
  return values_.emplace(id, std::move(made)).first->second;
}

/// The shortest among its scalars and its containers; a value within itself is no way to an end.
std::optional<std::string> FinishTexts::value_text(ValueId id, int depth) {
  if (const auto known = value_texts_.find(id); known != value_texts_.end()) return known->second;
  if (std::find(open_values_.begin(), open_values_.end(), id) != open_values_.end()) return {};
  if (depth > kMaxFinishDepth || ++visits_ > kMaxVisits || !grammar_->is_live(id)) return {};
  std::optional<std::string> best;
  const auto offer = [&best](std::optional<std::string> text) {
    if (text && text->size() <= kMaxFinishText && (!best || text->size() < best->size()))
      best = text;
  };
  const NodeId scalar = grammar_->value(id).scalar;
  if (scalar != kEmptyNode && of_state(scalar).is_known()) offer(of_state(scalar).text);
  if (!best || best->size() > 2) {
    open_values_.push_back(id);
    const std::vector<ShapeId> objects = grammar_->value(id).objects;
    for (const ShapeId shape : objects) {
      const ObjectShape& object = grammar_->object(shape);
      // Other conditions than required keys need the machine: not followed here.
      if (!object.needs.empty() || object.num_required < object.min) continue;
      std::string text = "{";
      bool is_possible = true;
      for (size_t i = 0; i < object.named.size(); ++i) {
        const ObjectShape::Named& named = object.named_at(i);
        if (!named.required || !is_possible) continue;
        const std::optional<std::string> inner = value_text(named.value, depth + 1);
        is_possible = inner.has_value();
        if (is_possible) {
          text += (text.size() > 1 ? ",\"" : "\"") + escaped(*named.name) + "\":" + *inner;
        }
      }
      if (is_possible) offer(text + "}");
    }
    const std::vector<ShapeId> arrays = grammar_->value(id).arrays;
    for (const ShapeId shape : arrays) {
      const ArrayShape array = grammar_->array(shape);
      if (array.unique && array.min > 1) continue;
      std::string text = "[";
      bool is_possible = true;
      uint32_t count = array.min;
      for (const auto& contains : array.contains) {
        if (contains.min > 0) count = std::max(count, add_bounds(contains.from, contains.min));
        if (contains.max != kUnbounded) is_possible = false;
      }
      is_possible = is_possible && count <= array.max && count <= kMaxFinishText;
      for (uint32_t index = 0; index < count && is_possible && text.size() <= kMaxFinishText;
           ++index) {
        ValueId item = array.item(index);
        for (const auto& contains : array.contains) {
          if (index >= contains.from && index < add_bounds(contains.from, contains.min)) {
            item = grammar_->conjunction(item, contains.match);
          }
        }
        const std::optional<std::string> inner = value_text(item, depth + 1);
        is_possible = inner.has_value();
        if (is_possible) text += (index > 0 ? "," : "") + *inner;
      }
      if (is_possible) offer(text + "]");
    }
    open_values_.pop_back();
  }
  if (best) value_texts_.emplace(id, *best);
  return best;
}

}  // namespace vitrine::constrain
