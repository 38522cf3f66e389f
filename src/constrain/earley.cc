// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>

#include "context_free.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxEarleyText = size_t{1} << 16;
constexpr size_t kMaxTexts = size_t{1} << 28;  // of all rules
constexpr size_t kWorkPerItem = 256;
constexpr size_t kWorkPerSpelling = 64;  // of a short text
const Finish kNoFinish;

/// Bytes that a JSON text may end with.
ByteSet bytes_that_end(JsonGrammar& grammar) {
  const Value& root = grammar.value(grammar.root());
  std::string_view ends = "}";
  if (root.objects.empty() || !root.arrays.empty() || root.scalar != kEmptyNode) {
    ends = "}]\"0123456789el";  // null, true, false
  }
  ByteSet out;
  for (const char byte : ends) out.add(static_cast<uint8_t>(byte));
  if (grammar.whitespace() == JsonWhitespace::kRfc) {
    for (const char byte : std::string_view(" \t\n\r")) out.add(static_cast<uint8_t>(byte));
  }
  return out;
}

/// A text of each schema, which its own machine has read.
void complete_json(ContextFree& grammar, const TokenTable::Impl& table) {
  for (const std::unique_ptr<ContextFree::Json>& json : grammar.json) {
    json->texts = std::make_unique<FinishTexts>(json->grammar->pool(), json->grammar.get(), table);
    json->masks = std::make_unique<TerminalMasks>(json->grammar->pool(), table);
    JsonMachine machine(*json->grammar);
    Configs start;
    machine.start(start);
    const Finish found = JsonFinish(machine, *json->texts).of(start);
    if (!found.is_known()) {
      throw Error(ErrorKind::kUnsupported,
                  "no text is known that finishes a JSON schema within the grammar and that the "
                  "vocabulary spells; make the schema simpler");
    }
    json->text = found.text;
    const JsonMachine::Mark mark = machine.mark();
    Configs next;
    for (int byte = 0; byte < 256; ++byte) {
      machine.step(start, static_cast<uint8_t>(byte), next);
      if (!next.empty()) json->first.add(static_cast<uint8_t>(byte));
      machine.return_to(mark);
    }
    json->ends = bytes_that_end(*json->grammar);
  }
}

}  // namespace

void complete(ContextFree& grammar, FinishTexts& texts, RegexPool& pool) {
  complete_json(grammar, texts.table());
  grammar.crossings = std::make_unique<Crossings>(texts.table());
  // Shortest known texts, until none gets shorter; a rule without one stays empty-handed. What
  // refers to a rule is looked at again where that rule's text has changed.
  std::vector<bool> known(grammar.rules.size(), false), is_open(grammar.productions.size(), true);
  std::vector<std::vector<uint32_t>> users(grammar.rules.size());
  std::deque<uint32_t> open;
  for (uint32_t i = 0; i < grammar.productions.size(); ++i) {
    open.push_front(i);  // what is named by others stands mostly behind them
    for (const ContextFree::Symbol& symbol : grammar.productions[i].symbols) {
      if (symbol.is_rule) users[symbol.id].push_back(i);
    }
  }
  size_t total_text = 0;
  LeastSize sizes(pool);
  while (!open.empty()) {
    const uint32_t at = open.front();
    open.pop_front();
    is_open[at] = false;
    const ContextFree::Production& production = grammar.productions[at];
    std::string text;
    bool is_possible = true, is_nullable = true, has_text = true;
    uint64_t least = 0;
    for (const ContextFree::Symbol& symbol : production.symbols) {
      if (symbol.is_rule) {
        const ContextFree::Rule& part = grammar.rules[symbol.id];
        is_possible = is_possible && known[symbol.id];
        is_nullable = is_nullable && part.is_nullable;
        has_text = has_text && part.has_text;
        least = add_sizes(least, part.least);
        text += part.text;
      } else if ((symbol.id & kJsonPlace) != 0) {
        const std::string& part = grammar.json[symbol.id & ~kJsonPlace]->text;
        is_nullable = false;
        least = add_sizes(least, part.size());
        text += part;
      } else {
        const Finish& finish = texts.of_state(symbol.id);
        const uint64_t size = sizes.of_state(symbol.id);
        // A text that no token spells counts all the same: its count says so later.
        const bool is_written =
            finish.is_known() || !finish.text.empty() || pool.nullable(symbol.id);
        is_possible = is_possible && (is_written || (size > kMaxEarleyText && size != kNoSize));
        is_nullable = is_nullable && pool.nullable(symbol.id);
        has_text = has_text && is_written;
        least = add_sizes(least, size);
        text += finish.text;
      }
      has_text = has_text && text.size() <= kMaxEarleyText;
      if (!has_text) text.clear();
      if (!is_possible) break;
    }
    if (!is_possible) continue;
    ContextFree::Rule& rule = grammar.rules[production.rule];
    const bool is_new = !known[production.rule];
    const bool is_shorter =
        has_text && (is_new || !rule.has_text || text.size() < rule.text.size());
    const bool is_less = is_new || least < rule.least;
    if (!is_shorter && !is_less && (!is_nullable || rule.is_nullable)) continue;
    if (is_less) rule.least = least;
    if (is_shorter) {
      total_text += text.size();
      if (total_text > kMaxTexts) {
        throw Error(ErrorKind::kUnsupported,
                    "the shortest texts of the grammar's rules are too long together; make it "
                    "smaller");
      }
      rule.text = std::move(text);
      rule.has_text = true;
    }
    rule.is_nullable = rule.is_nullable || is_nullable;
    known[production.rule] = true;
    for (const uint32_t user : users[production.rule]) {
      if (is_open[user]) continue;
      is_open[user] = true;
      open.push_back(user);
    }
  }
  for (const auto& [rule, name] : grammar.roots) {
    if (known[rule]) continue;
    throw Error(ErrorKind::kInvalidArgument, name +
                                                 " has no text that ends; give it an "
                                                 "alternative that does not lead back to itself");
  }
  // What leads nowhere must not be begun.
  std::vector<ContextFree::Production> kept;
  for (ContextFree::Rule& rule : grammar.rules) rule.productions.clear();
  for (ContextFree::Production& production : grammar.productions) {
    const bool leads_on = std::all_of(
        production.symbols.begin(), production.symbols.end(), [&](ContextFree::Symbol symbol) {
          if (symbol.is_rule) return static_cast<bool>(known[symbol.id]);
          return (symbol.id & kJsonPlace) != 0 || pool.is_live(symbol.id);
        });
    if (!leads_on) continue;
    grammar.rules[production.rule].productions.push_back(static_cast<uint32_t>(kept.size()));
    kept.push_back(std::move(production));
  }
  grammar.productions = std::move(kept);
}

EarleyParser::EarleyParser(const ContextFree& grammar, RegexPool& pool, FinishTexts& texts,
                           TerminalMasks& masks)
    : grammar_(grammar), pool_(pool), texts_(texts), masks_(masks) {
  for (uint32_t i = 0; i < grammar.json.size(); ++i) {
    ContextFree::Json& json = *grammar.json[i];
    readers_.push_back(std::make_unique<Reader>(json, texts.table(), JsonMachine(*json.grammar)));
    places_.push_back({i, {}, 0});
    readers_[i]->machine.start(places_[i].configs);
  }
  begin_set();
  for (const uint32_t production : grammar.rules[grammar.root].productions) {
    add({production, 0, 0, kEmptyNode});
  }
  close();
}

EarleyParser::EarleyParser(const EarleyParser& other)
    : grammar_(other.grammar_),
      pool_(other.pool_),
      texts_(other.texts_),
      masks_(other.masks_),
      items_(other.items_),
      sets_(other.sets_),
      sets_with_ways_(other.sets_with_ways_),
      places_(other.places_),
      touched_(other.touched_) {
  for (size_t i = 0; i < other.readers_.size(); ++i) {
    readers_.push_back(std::make_unique<Reader>(*grammar_.json[i], texts_.table(),
                                                other.readers_[i]->machine.fork()));
  }
}

void EarleyParser::begin_set() {
  sets_.push_back({});
  sets_.back().begin = items_.size();
  sets_.back().num_places = places_.size();
}

void EarleyParser::drop_set() {
  items_.resize(sets_.back().begin);
  places_.resize(sets_.back().num_places);
  sets_.pop_back();
  sets_with_ways_ = std::min(sets_with_ways_, sets_.size());
  for (; !touched_.empty() && touched_.back().set >= sets_.size(); touched_.pop_back()) {
    readers_[touched_.back().reader]->machine.return_to(touched_.back().mark);
  }
}

NodeId EarleyParser::step_terminal(NodeId state, uint8_t byte) {
  if ((state & kJsonPlace) == 0) return pool_.step(state, byte);
  const uint32_t place = state & ~kJsonPlace;
  for (const auto& [from, to] : stepped_) {
    if (from == place) return to;
  }
  stepped_.emplace_back(place, step_json(place, byte));
  return stepped_.back().second;
}

NodeId EarleyParser::step_json(uint32_t place, uint8_t byte) {
  const uint32_t reader = places_[place].reader;
  const size_t set = sets_.size() - 1;
  bool is_touched = false;
  for (size_t i = touched_.size(); i-- > 0 && touched_[i].set == set;) {
    is_touched = is_touched || touched_[i].reader == reader;
  }
  JsonMachine& machine = readers_[reader]->machine;
  if (!is_touched) touched_.push_back({set, reader, machine.mark()});
  machine.step(places_[place].configs, byte, next_);
  if (next_.empty()) return kEmptyNode;
  const size_t begin = place < readers_.size() ? length() - 1 : places_[place].begin;
  places_.push_back({reader, next_, begin});
  return kJsonPlace | static_cast<uint32_t>(places_.size() - 1);
}

/// Throws for what makes one mask, or one step, take seconds.
void EarleyParser::count_work(size_t steps) {
  work_ += steps;
  if (work_ / kWorkPerItem <= grammar_.max_items) return;
  throw Error(ErrorKind::kUnsupported,
              "the grammar takes more than " + std::to_string(kWorkPerItem * grammar_.max_items) +
                  " steps for one token; make it smaller or less ambiguous, or raise "
                  "GrammarOptions::max_items");
}

/// An item before a terminal begins it; those that may be empty are passed, too.
void EarleyParser::add(Item item) {
  const std::vector<ContextFree::Symbol>& symbols = grammar_.productions[item.production].symbols;
  while (true) {
    const bool begins =
        item.state == kEmptyNode && item.dot < symbols.size() && !symbols[item.dot].is_rule;
    if (begins) item.state = symbols[item.dot].id;
    add_one(item);
    if (!begins || !may_end(item.state)) return;
    item = {item.production, item.dot + 1, item.origin, kEmptyNode};
  }
}

void EarleyParser::add_one(const Item& item) {
  count_work(1 + (items_.size() - sets_.back().begin) / 4);
  const auto begin = items_.begin() + static_cast<long>(sets_.back().begin);
  if (std::find(begin, items_.end(), item) != items_.end()) return;
  if (items_.size() >= grammar_.max_items) {
    throw Error(ErrorKind::kUnsupported,
                "the grammar reads one answer in more than " + std::to_string(grammar_.max_items) +
                    " steps; make it less ambiguous, or raise GrammarOptions::max_items");
  }
  items_.push_back(item);
}

void EarleyParser::close() {
  const auto set = static_cast<uint32_t>(sets_.size() - 1);
  predicted_.resize(grammar_.rules.size());
  ++last_close_;
  for (size_t i = sets_.back().begin; i < items_.size(); ++i) {
    const Item item = items_[i];
    const ContextFree::Production& production = grammar_.productions[item.production];
    if (item.state != kEmptyNode) continue;
    if (item.dot < production.symbols.size()) {
      const uint32_t rule = production.symbols[item.dot].id;
      if (grammar_.rules[rule].is_nullable) advance(item);
      if (std::exchange(predicted_[rule], last_close_) == last_close_) continue;
      for (const uint32_t next : grammar_.rules[rule].productions) add({next, 0, set, kEmptyNode});
      continue;
    }
    if (production.rule == grammar_.root && item.origin == 0) sets_.back().is_complete = true;
    if (item.origin == set) continue;  // empty: whoever waits for it has passed it already
    const size_t end = end_of(item.origin);
    count_work(end - sets_[item.origin].begin);
    for (size_t j = sets_[item.origin].begin; j < end; ++j) {
      const Item waiting = items_[j];
      const auto& symbols = grammar_.productions[waiting.production].symbols;
      if (waiting.state == kEmptyNode && waiting.dot < symbols.size() &&
          symbols[waiting.dot].id == production.rule) {
        advance(waiting);
      }
    }
  }
}

bool EarleyParser::step(uint8_t byte) {
  const size_t from = sets_.back().begin, to = items_.size();
  begin_set();
  stepped_.clear();
  try {
    for (size_t i = from; i < to; ++i) {
      const Item item = items_[i];
      if (item.state == kEmptyNode) continue;
      const NodeId next = step_terminal(item.state, byte);
      if (next == kEmptyNode) continue;
      if (next != kEpsilonNode) add({item.production, item.dot, item.origin, next});
      if (may_end(next)) advance(item);
    }
    close();
  } catch (...) {
    drop_set();
    throw;
  }
  if (items_.size() > to) return true;
  drop_set();
  return false;
}

void EarleyParser::drop_to(size_t length) {
  while (sets_.size() > length + 1) drop_set();
}

EarleyParser::Place EarleyParser::place() const {
  Place out{length(), {}};
  for (const auto& reader : readers_) out.readers.push_back(reader->machine.mark());
  return out;
}

void EarleyParser::return_to(const Place& place) {
  drop_to(place.length);
  for (size_t i = 0; i < readers_.size(); ++i) readers_[i]->machine.return_to(place.readers[i]);
}

/// How a terminal that has been begun ends.
Finish EarleyParser::rest_of_terminal(NodeId state) {
  if ((state & kJsonPlace) == 0) return texts_.of_state(state);
  const InJson& place = places_[state & ~kJsonPlace];
  return readers_[place.reader]->finish.of(place.configs);
}

/// The symbols of its production that are still to come.
uint32_t EarleyParser::rest_of(const Item& item, std::string* text) {
  const ContextFree::Production& production = grammar_.productions[item.production];
  std::string rest;
  size_t dot = item.dot;
  if (item.state != kEmptyNode) {
    Finish finish = rest_of_terminal(item.state);
    if (!finish.is_known()) return kNoBound;
    rest = std::move(finish.text);
    ++dot;
  }
  for (; dot < production.symbols.size(); ++dot) {
    const ContextFree::Symbol symbol = production.symbols[dot];
    if (symbol.is_rule && !grammar_.rules[symbol.id].has_text) return kNoBound;
    rest += symbol.is_rule                  ? grammar_.rules[symbol.id].text
            : (symbol.id & kJsonPlace) != 0 ? grammar_.json[symbol.id & ~kJsonPlace]->text
                                            : texts_.of_state(symbol.id).text;
  }
  const Finish spelled = texts_.spelled(std::move(rest));
  if (text != nullptr) *text = spelled.text;
  return spelled.tokens;
}

const Finish& EarleyParser::way(uint32_t set, uint32_t rule) {
  for (const Way& one : sets_[set].ways) {
    if (one.rule == rule) return one.finish;
  }
  return kNoFinish;
}

/// For every rule that some item of the set waits for: the best way from behind it to the end.
void EarleyParser::find_ways(uint32_t set) {
  Set& here = sets_[set];
  if (here.has_ways) return;
  here.ways.clear();  // of a search that did not end
  if (set == 0) here.ways.push_back({grammar_.root, {"", 0}});
  const size_t end = end_of(set);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = here.begin; i < end; ++i) {
      count_work(kWorkPerSpelling + here.ways.size() / 2);
      const Item item = items_[i];
      const ContextFree::Production& production = grammar_.productions[item.production];
      if (item.state != kEmptyNode || item.dot >= production.symbols.size()) continue;
      const Finish& up = way(item.origin, production.rule);
      if (!up.is_known()) continue;
      std::string rest;
      const uint32_t own = rest_of({item.production, item.dot + 1, item.origin, kEmptyNode}, &rest);
      const uint32_t tokens = add_bounds(own, up.tokens);
      if (tokens == kNoBound || rest.size() + up.text.size() > kMaxEarleyText) continue;
      const uint32_t rule = production.symbols[item.dot].id;
      if (way(set, rule).tokens <= tokens) continue;
      Finish found{rest + up.text, tokens};
      changed = true;
      auto& ways = here.ways;
      const auto at = std::find_if(ways.begin(), ways.end(),
                                   [rule](const Way& one) { return one.rule == rule; });
      if (at == ways.end()) {
        ways.push_back({rule, std::move(found)});
      } else {
        at->finish = std::move(found);
      }
    }
  }
  here.has_ways = true;
}

/// Origins first: a way leads through those of earlier sets only.
void EarleyParser::find_all_ways() {
  for (; sets_with_ways_ < sets_.size(); ++sets_with_ways_) {
    find_ways(static_cast<uint32_t>(sets_with_ways_));
  }
}

/// From behind the terminal that the item is in to the end; kNoBound where no way is known.
uint32_t EarleyParser::tokens_behind(const Item& item) {
  find_all_ways();
  const uint32_t own = rest_of({item.production, item.dot + 1, item.origin, kEmptyNode}, nullptr);
  return add_bounds(own, way(item.origin, grammar_.productions[item.production].rule).tokens);
}

/// The fewest tokens of a whole answer.
uint32_t EarleyParser::least_tokens() {
  LeastSize sizes(pool_);
  ByteSet bytes;
  for (const ContextFree::Production& production : grammar_.productions) {
    for (const ContextFree::Symbol& symbol : production.symbols) {
      if (symbol.is_rule) continue;
      const bool is_json = (symbol.id & kJsonPlace) != 0;
      bytes = bytes | (is_json ? ByteSet::range(0, 255) : sizes.bytes_of_state(symbol.id));
    }
  }
  const uint64_t size = grammar_.rules[grammar_.root].least;
  if (size <= kMaxEarleyText) return kNoBound;
  return constrain::least_tokens(texts_.table(), size, bytes);
}

uint32_t EarleyParser::finish(std::string* text) {
  if (is_complete()) return 0;
  find_all_ways();
  uint32_t best = kNoBound;
  for (size_t i = sets_.back().begin; i < items_.size(); ++i) {
    const Item item = items_[i];
    const ContextFree::Production& production = grammar_.productions[item.production];
    if (item.state == kEmptyNode) continue;
    const Finish& up = way(item.origin, production.rule);
    std::string rest;
    const uint32_t tokens = add_bounds(rest_of(item, &rest), up.tokens);
    if (tokens >= best) continue;
    best = tokens;
    if (text != nullptr) *text = rest + up.text;
  }
  return best;
}

}  // namespace vitrine::constrain
