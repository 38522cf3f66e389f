#include <algorithm>

#include "context_free.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxText = size_t{1} << 16;
const Finish kNoFinish;

}  // namespace

void complete(ContextFree& grammar, FinishTexts& texts, RegexPool& pool) {
  // Shortest known texts, until none gets shorter; a rule without one stays empty-handed.
  std::vector<bool> known(grammar.rules.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (const ContextFree::Production& production : grammar.productions) {
      std::string text;
      bool is_possible = true, is_nullable = true;
      for (const ContextFree::Symbol& symbol : production.symbols) {
        if (symbol.is_rule) {
          is_possible = is_possible && known[symbol.id];
          is_nullable = is_nullable && grammar.rules[symbol.id].is_nullable;
          text += grammar.rules[symbol.id].text;
        } else {
          const Finish& finish = texts.of_state(symbol.id);
          // A text that no token spells counts all the same: its count says so later.
          is_possible = is_possible &&
                        (finish.is_known() || !finish.text.empty() || pool.nullable(symbol.id));
          is_nullable = is_nullable && pool.nullable(symbol.id);
          text += finish.text;
        }
        if (!is_possible || text.size() > kMaxText) break;
      }
      ContextFree::Rule& rule = grammar.rules[production.rule];
      if (!is_possible || text.size() > kMaxText) continue;
      changed = changed || !known[production.rule] || text.size() < rule.text.size() ||
                (is_nullable && !rule.is_nullable);
      if (!known[production.rule] || text.size() < rule.text.size()) rule.text = std::move(text);
      rule.is_nullable = rule.is_nullable || is_nullable;
      known[production.rule] = true;
    }
  }
  if (!known[grammar.root]) {
    throw Error(ErrorKind::kInvalidArgument,
                "the grammar's rule 'root' has no text that ends; give it an alternative that "
                "does not lead back to itself");
  }
  // What leads nowhere must not be begun.
  std::vector<ContextFree::Production> kept;
  for (ContextFree::Rule& rule : grammar.rules) rule.productions.clear();
  for (ContextFree::Production& production : grammar.productions) {
    const bool leads_on = std::all_of(
        production.symbols.begin(), production.symbols.end(), [&](ContextFree::Symbol symbol) {
          return symbol.is_rule ? static_cast<bool>(known[symbol.id]) : pool.is_live(symbol.id);
        });
    if (!leads_on) continue;
    grammar.rules[production.rule].productions.push_back(static_cast<uint32_t>(kept.size()));
    kept.push_back(std::move(production));
  }
  grammar.productions = std::move(kept);
}

EarleyParser::EarleyParser(const ContextFree& grammar, RegexPool& pool, FinishTexts& texts)
    : grammar_(grammar), pool_(pool), texts_(texts) {
  sets_.push_back({});
  for (const uint32_t production : grammar.rules[grammar.root].productions) {
    add({production, 0, 0, kEmptyNode});
  }
  close();
}

/// An item before a terminal begins it; one that may be empty is passed, too.
void EarleyParser::add(Item item) {
  const ContextFree::Production& production = grammar_.productions[item.production];
  if (item.state == kEmptyNode && item.dot < production.symbols.size() &&
      !production.symbols[item.dot].is_rule) {
    item.state = production.symbols[item.dot].id;
    if (pool_.nullable(item.state)) advance(item);
  }
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
  std::vector<uint32_t> predicted;
  for (size_t i = sets_.back().begin; i < items_.size(); ++i) {
    const Item item = items_[i];
    const ContextFree::Production& production = grammar_.productions[item.production];
    if (item.state != kEmptyNode) continue;
    if (item.dot < production.symbols.size()) {
      const uint32_t rule = production.symbols[item.dot].id;
      if (grammar_.rules[rule].is_nullable) advance(item);
      if (std::find(predicted.begin(), predicted.end(), rule) != predicted.end()) continue;
      predicted.push_back(rule);
      for (const uint32_t next : grammar_.rules[rule].productions) add({next, 0, set, kEmptyNode});
      continue;
    }
    if (production.rule == grammar_.root && item.origin == 0) sets_.back().is_complete = true;
    if (item.origin == set) continue;  // empty: whoever waits for it has passed it already
    const size_t end = end_of(item.origin);
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
  sets_.push_back({});
  sets_.back().begin = to;
  try {
    for (size_t i = from; i < to; ++i) {
      const Item item = items_[i];
      if (item.state == kEmptyNode) continue;
      const NodeId next = pool_.step(item.state, byte);
      if (next == kEmptyNode) continue;
      if (next != kEpsilonNode) add({item.production, item.dot, item.origin, next});
      if (pool_.nullable(next)) advance(item);
    }
    close();
  } catch (...) {
    items_.resize(to);
    sets_.pop_back();
    throw;
  }
  if (items_.size() > to) return true;
  sets_.pop_back();
  return false;
}

void EarleyParser::drop_to(size_t length) {
  if (length + 1 >= sets_.size()) return;
  items_.resize(sets_[length + 1].begin);
  sets_.resize(length + 1);
}

/// The symbols of its production that are still to come.
uint32_t EarleyParser::rest_of(const Item& item, std::string* text) {
  const ContextFree::Production& production = grammar_.productions[item.production];
  std::string rest;
  size_t dot = item.dot;
  if (item.state != kEmptyNode) {
    const Finish& finish = texts_.of_state(item.state);
    if (!finish.is_known()) return kNoBound;
    rest = finish.text;
    ++dot;
  }
  for (; dot < production.symbols.size(); ++dot) {
    const ContextFree::Symbol symbol = production.symbols[dot];
    rest += symbol.is_rule ? grammar_.rules[symbol.id].text : texts_.of_state(symbol.id).text;
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
  here.has_ways = true;
  if (set == 0) here.ways.push_back({grammar_.root, {"", 0}});
  const size_t end = end_of(set);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = here.begin; i < end; ++i) {
      const Item item = items_[i];
      const ContextFree::Production& production = grammar_.productions[item.production];
      if (item.state != kEmptyNode || item.dot >= production.symbols.size()) continue;
      const Finish& up = way(item.origin, production.rule);
      if (!up.is_known()) continue;
      std::string rest;
      const uint32_t own = rest_of({item.production, item.dot + 1, item.origin, kEmptyNode}, &rest);
      const uint32_t tokens = add_bounds(own, up.tokens);
      if (tokens == kNoBound || rest.size() + up.text.size() > kMaxText) continue;
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
}

uint32_t EarleyParser::finish(std::string* text) {
  if (is_complete()) return 0;
  // Origins first: a way leads through those of earlier sets only.
  for (uint32_t set = 0; set < sets_.size(); ++set) find_ways(set);
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
