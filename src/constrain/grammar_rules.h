// SPDX-License-Identifier: Apache-2.0
// A grammar as a notation says it: rules whose bodies are expressions over regular languages, other
// rules and JSON. Every notation is read into these; lower() makes productions of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "context_free.h"

namespace vitrine::constrain {

struct Expression {
  enum Kind : uint8_t {
    kTerminal,
    kReference,
    kJson,
    kSequence,
    kChoice,
    kRepeat,
    kShortest,  // of one part, a regular one: its texts of which no beginning is one, too
  } kind = kTerminal;
  NodeId terminal = kEpsilonNode;
  uint32_t rule = 0;  // kReference; kJson: index among ContextFree::json
  std::vector<Expression> parts;
  uint32_t low = 0, high = 0;

  static Expression of(NodeId node) {
    Expression out;
    out.terminal = node;
    return out;
  }
  static Expression reference(uint32_t id) {
    Expression out;
    out.kind = kReference;
    out.rule = id;
    return out;
  }
  static Expression json(uint32_t index) {
    Expression out;
    out.kind = kJson;
    out.rule = index;
    return out;
  }
  static Expression list(Kind kind, std::vector<Expression> parts) {
    Expression out;
    out.kind = kind;
    out.parts = std::move(parts);
    return out;
  }
  static Expression repeat(Expression part, uint32_t low, uint32_t high) {
    Expression out;
    out.kind = kRepeat;
    out.parts.push_back(std::move(part));
    out.low = low;
    out.high = high;
    return out;
  }
};

struct NamedRule {
  std::string name;
  size_t used_at = 0;  // where it was first named
  bool is_defined = false;
  Expression body;
};

struct GrammarRules {
  std::vector<NamedRule> rules;
  uint32_t root = 0;
  std::vector<std::unique_ptr<JsonGrammar>> json;
  std::vector<Weakening> weakened;  // of the schemas in `json`
  /// Rules that must have a text that ends, as an error names them.
  std::vector<std::pair<uint32_t, std::string>> roots;
};

/// Adds a grammar's rules to another's; returns its root's number there.
uint32_t append(GrammarRules& to, GrammarRules from);

/// Reads a grammar in GBNF. Throws kInvalidArgument with line and column.
GrammarRules parse_gbnf(std::string_view text, RegexPool& pool);

/// Reads a grammar in Lark's notation; `schema`: how its %json is read. Throws as parse_gbnf().
GrammarRules parse_lark(std::string_view text, RegexPool& pool, const SchemaOptions& schema);
/// Reads a grammar in the notation that its first rule is in.
GrammarRules parse_grammar(std::string_view text, RegexPool& pool, const SchemaOptions& schema);

/// Expressions to productions. A rule that never leads back to itself and has no JSON in it is one
/// terminal. Throws kUnsupported for repetitions that unfold to too many productions.
ContextFree lower(GrammarRules grammar, RegexPool& pool, size_t max_items);

/// A terminal of Lark's library `common` as a regular expression; null where it has none.
const char* lark_common(std::string_view name);
/// A rule that leads back to itself, among `from` and what those name.
std::optional<uint32_t> rule_within_itself(const std::vector<NamedRule>& rules,
                                           const std::vector<uint32_t>& from);

/// A regular expression with another one for each of its dots.
std::string with_dot(std::string_view pattern, std::string_view dot);
/// Where the braces that open at `at` close; the text's end where they do not.
size_t end_of_braces(std::string_view text, size_t at);
/// The character that so many hexadecimal digits at `at` stand for, and moves behind them; `why`
/// gets a message where they stand for none.
uint32_t read_hex_escape(std::string_view text, size_t& at, size_t digits, std::string& why);

/// By rule: can it be reached from `root`?
std::vector<bool> reached_rules(const std::vector<NamedRule>& rules, uint32_t root);

/// "the grammar, line 2, column 5: "
std::string place_in(std::string_view text, size_t at);

}  // namespace vitrine::constrain
