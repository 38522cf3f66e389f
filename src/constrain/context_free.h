// Context-free grammars: rules over regular terminals, and an Earley parser (Earley 1970, with
// nullable rules as in Aycock and Horspool 2002) that reads bytes. What has no reference to a rule
// that leads back to itself becomes a terminal: an automaton of derivatives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "finish.h"

namespace vitrine::constrain {

struct ContextFree {
  struct Symbol {
    bool is_rule = false;
    uint32_t id = 0;  // rule, or state of a terminal
  };
  struct Production {
    uint32_t rule = 0;
    std::vector<Symbol> symbols;
  };
  struct Rule {
    std::vector<uint32_t> productions;
    bool is_nullable = false;
    std::string text;  // a short text of it
  };
  std::vector<Production> productions;
  std::vector<Rule> rules;
  uint32_t root = 0;
  size_t max_items = 0;
};

/// Reads a grammar in GBNF. Throws kInvalidArgument with line and column.
ContextFree parse_gbnf(std::string_view text, RegexPool& pool, size_t max_items);
/// Sets is_nullable and text. Throws kInvalidArgument where a rule has no text of finite length;
/// `names`: of the rules, for the message.
void complete(ContextFree& grammar, FinishTexts& texts, RegexPool& pool);

/// The readings of a text so far: one set of items for each byte, in a stack.
class EarleyParser {
 public:
  EarleyParser(const ContextFree& grammar, RegexPool& pool, FinishTexts& texts);

  /// Reads a byte; false, and nothing has changed, where no reading goes on so. Throws kUnsupported
  /// for more items than the grammar's limit.
  bool step(uint8_t byte);
  /// Number of bytes read.
  size_t length() const { return sets_.size() - 1; }
  void drop_to(size_t length);
  bool is_complete() const { return sets_.back().is_complete; }
  /// A text that finishes the answer. `text` may be null.
  uint32_t finish(std::string* text);

 private:
  struct Item {
    uint32_t production = 0, dot = 0, origin = 0;
    NodeId state = kEmptyNode;  // within a terminal
    bool operator==(const Item&) const = default;
  };
  struct Way {  // from behind a rule that began in a set to the end
    uint32_t rule = 0;
    Finish finish;
  };
  struct Set {
    size_t begin = 0;  // in items_
    bool is_complete = false;
    bool has_ways = false;
    std::vector<Way> ways;
  };

  void add(Item item);
  void close();
  void advance(const Item& item) { add({item.production, item.dot + 1, item.origin, kEmptyNode}); }
  size_t end_of(size_t set) const {
    return set + 1 < sets_.size() ? sets_[set + 1].begin : items_.size();
  }
  uint32_t rest_of(const Item& item, std::string* text);
  const Finish& way(uint32_t set, uint32_t rule);
  void find_ways(uint32_t set);

  const ContextFree& grammar_;
  RegexPool& pool_;
  FinishTexts& texts_;
  std::vector<Item> items_;
  std::vector<Set> sets_;
};

}  // namespace vitrine::constrain
