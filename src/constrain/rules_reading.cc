// SPDX-License-Identifier: Apache-2.0
// Where a reading of a grammar's text stands, in words.
#include <algorithm>

#include "context_free.h"
#include "state_text.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxRulesText = 120;    // of an expression
constexpr size_t kMaxName = 64;          // of a rule
constexpr size_t kMaxLooks = 64;         // at readings, of which some may say the same
constexpr size_t kMaxReadingRules = 64;  // that are followed towards the root
constexpr size_t kMaxNames = 8;          // of these that are told
constexpr size_t kMaxSymbols = 3;        // behind the one that is read

}  // namespace

std::string EarleyParser::symbol_text(const ContextFree::Symbol& symbol) const {
  if (symbol.is_rule) return printable(grammar_.name_of(symbol.id), kMaxName);
  if ((symbol.id & kJsonPlace) != 0) return "JSON";
  return "`" + regex_text(pool_, symbol.id, kMaxRulesText) + "`";
}

/// The rules around an item, the root first: "root > list (from byte 3)".
std::string EarleyParser::rules_around(const Item& item) const {
  std::vector<std::string> names;
  uint32_t rule = grammar_.productions[item.production].rule, origin = item.origin;
  for (size_t i = 0; i < kMaxReadingRules; ++i) {
    if (grammar_.rules[rule].named == rule) {  // else a part of the next one
      std::string name = printable(grammar_.name_of(rule), kMaxName) + " (from byte " +
                         std::to_string(origin) + ")";
      if (names.empty() || names.back() != name) names.push_back(std::move(name));
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
  const size_t shown = std::min(names.size(), kMaxNames);
  if (shown < names.size()) out = "… > ";
  for (size_t i = shown; i-- > 0;) out += names[i] + (i > 0 ? " > " : "");
  return out;
}

std::vector<std::string> EarleyParser::readings(std::string_view text, size_t most,
                                                size_t& count) const {
  std::vector<std::string> out;
  count = 0;
  size_t looks = 0;
  for (size_t i = sets_.back().begin; i < items_.size(); ++i) {
    const Item item = items_[i];
    if (item.state == kEmptyNode) continue;
    const bool is_json = (item.state & kJsonPlace) != 0;
    const uint32_t place = item.state & ~kJsonPlace;
    count += is_json ? places_[place].configs.size() : 1;
    if (out.size() == most || ++looks > kMaxLooks) continue;
    const ContextFree::Production& production = grammar_.productions[item.production];
    std::string behind;
    for (size_t dot = item.dot + 1; dot < production.symbols.size(); ++dot) {
      behind += " " + (dot > item.dot + kMaxSymbols ? "…" : symbol_text(production.symbols[dot]));
      if (dot > item.dot + kMaxSymbols) break;
    }
    std::vector<std::string> lefts = {};
    if (is_json) {
      const size_t begin = place < readers_.size() ? length() : places_[place].begin;
      lefts = readers_[places_[place].reader]->machine.readings(places_[place].configs,
                                                                text.substr(begin), most);
      for (std::string& left : lefts) left = "JSON " + left;
    } else {
      lefts = {"`" + regex_text(pool_, item.state, kMaxRulesText) + "`"};
    }
    for (const std::string& left : lefts) {
      std::string reading = bounded(rules_around(item) + ": " + left + behind);
      const bool is_new = std::find(out.begin(), out.end(), reading) == out.end();
      if (is_new && out.size() < most) out.push_back(std::move(reading));
    }
  }
  return out;
}

}  // namespace vitrine::constrain
