// Where a reading of a grammar's text stands, in words.
#include <algorithm>

#include "context_free.h"
#include "state_text.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMostText = 120;   // of an expression
constexpr size_t kMostRules = 64;   // that are followed towards the root
constexpr size_t kMostNames = 8;    // of these that are told
constexpr size_t kMostSymbols = 3;  // behind the one that is read

}  // namespace

std::string EarleyParser::symbol_text(const ContextFree::Symbol& symbol) const {
  if (symbol.is_rule) return grammar_.name_of(symbol.id);
  if ((symbol.id & kJsonPlace) != 0) return "JSON";
  return "`" + regex_text(pool_, symbol.id, kMostText) + "`";
}

/// The rules around an item, the root first: "root > list (from byte 3)".
std::string EarleyParser::rules_around(const Item& item) const {
  std::vector<std::string> names;
  uint32_t rule = grammar_.productions[item.production].rule, origin = item.origin;
  for (size_t i = 0; i < kMostRules; ++i) {
    if (grammar_.rules[rule].named == rule) {  // else a part of the next one
      names.push_back(grammar_.name_of(rule) + " (from byte " + std::to_string(origin) + ")");
    }
    if (rule == grammar_.root && origin == 0) break;
    const auto begin = items_.begin() + static_cast<long>(sets_[origin].begin);
    const auto end = items_.begin() + static_cast<long>(end_of(origin));
    const auto waiting = std::find_if(begin, end, [&](const Item& one) {
      const ContextFree::Production& production = grammar_.productions[one.production];
      return one.state == kEmptyNode && one.dot < production.symbols.size() &&
             production.symbols[one.dot].is_rule && production.symbols[one.dot].id == rule &&
             (production.rule != rule || one.origin != origin);
    });
    if (waiting == end) break;
    rule = grammar_.productions[waiting->production].rule;
    origin = waiting->origin;
  }
  std::string out;
  const size_t shown = std::min(names.size(), kMostNames);
  if (shown < names.size()) out = "… > ";
  for (size_t i = shown; i-- > 0;) out += names[i] + (i > 0 ? " > " : "");
  return out;
}

/// Where the JSON that an item reads begins.
size_t EarleyParser::begin_of_json(const Item& item) const {
  const uint32_t reader = places_[item.state & ~kJsonPlace].reader;
  const Item start{item.production, item.dot, item.origin, kJsonPlace | reader};
  for (size_t set = sets_.size(); set-- > item.origin;) {
    const auto begin = items_.begin() + static_cast<long>(sets_[set].begin);
    const auto end = items_.begin() + static_cast<long>(end_of(set));
    if (std::find(begin, end, start) != end) return set;
  }
  return item.origin;
}

std::vector<std::string> EarleyParser::readings(std::string_view text, size_t most,
                                                size_t& count) const {
  std::vector<std::string> out;
  count = 0;
  for (size_t i = sets_.back().begin; i < items_.size(); ++i) {
    const Item item = items_[i];
    if (item.state == kEmptyNode) continue;
    const ContextFree::Production& production = grammar_.productions[item.production];
    std::string behind;
    for (size_t dot = item.dot + 1; dot < production.symbols.size(); ++dot) {
      behind += " " + (dot > item.dot + kMostSymbols ? "…" : symbol_text(production.symbols[dot]));
      if (dot > item.dot + kMostSymbols) break;
    }
    std::vector<std::string> lefts;
    if ((item.state & kJsonPlace) != 0) {
      const InJson& place = places_[item.state & ~kJsonPlace];
      lefts = readers_[place.reader]->machine.readings(
          place.configs, text.substr(std::min(text.size(), begin_of_json(item))),
          most - std::min(most, out.size()));
      for (std::string& left : lefts) left = "JSON " + left;
      count += place.configs.size();
    } else {
      lefts = {"`" + regex_text(pool_, item.state, kMostText) + "`"};
      ++count;
    }
    for (const std::string& left : lefts) {
      if (out.size() < most) out.push_back(rules_around(item) + ": " + left + behind);
    }
  }
  return out;
}

}  // namespace vitrine::constrain
