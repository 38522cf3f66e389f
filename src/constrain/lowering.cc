// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "grammar_rules.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxProductions = 100000;
constexpr int kMaxTerminalDepth = 1000;  // of rules within rules: bounds the stack

class Lowering {
 public:
  Lowering(const std::vector<NamedRule>& named, RegexPool& pool, ContextFree& out)
      : named_(named), pool_(pool), out_(out), terminals_(named.size()), states_(named.size()) {
    out_.rules.resize(named.size());
  }

  void run() {
    for (uint32_t rule = 0; rule < named_.size(); ++rule) {
      out_.rules[rule].named = within_ = rule;
      const std::optional<NodeId> terminal = terminal_of(rule);
      if (terminal) {
        produce(rule, {{false, *terminal}});
      } else {
        produce_body(rule, named_[rule].body);
      }
    }
  }

 private:
  using Symbol = ContextFree::Symbol;

  void produce(uint32_t rule, std::vector<Symbol> symbols) {
    if (out_.productions.size() >= kMaxProductions) {
      throw Error(ErrorKind::kUnsupported,
                  "the grammar unfolds to more than 100000 productions; use smaller repetitions of "
                  "what refers to rules");
    }
    out_.productions.push_back({rule, std::move(symbols)});
  }
  uint32_t fresh() {
    out_.rules.emplace_back().named = within_;
    return static_cast<uint32_t>(out_.rules.size() - 1);
  }

  std::optional<NodeId> terminal_of(uint32_t rule) {
    if (states_[rule] == 2) return terminals_[rule];
    if (states_[rule] == 1) return {};          // leads back to itself
    if (depth_ > kMaxTerminalDepth) return {};  // stays a rule, which reads the same
    states_[rule] = 1;
    ++depth_;
    terminals_[rule] = terminal_of(named_[rule].body);
    --depth_;
    states_[rule] = 2;
    return terminals_[rule];
  }
  std::optional<NodeId> terminal_of(const Expression& expression) {
    if (expression.kind == Expression::kTerminal) return expression.terminal;
    if (expression.kind == Expression::kReference) return terminal_of(expression.rule);
    if (expression.kind == Expression::kJson) return {};
    std::vector<NodeId> parts;
    for (const Expression& part : expression.parts) {
      const std::optional<NodeId> one = terminal_of(part);
      if (!one) return {};
      parts.push_back(*one);
    }
    if (expression.kind == Expression::kChoice) return pool_.any_of(std::move(parts));
    if (expression.kind == Expression::kShortest) return shortest_of(parts[0]);
    if (expression.kind == Expression::kRepeat) {
      return pool_.repeat(parts[0], expression.low, expression.high);
    }
    NodeId sequence = kEpsilonNode;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      sequence = pool_.cat(*part, sequence);
    }
    return sequence;
  }

  NodeId shortest_of(NodeId all) {
    const NodeId more = pool_.cat(pool_.bytes(ByteSet::range(0, 255)), pool_.raw_not(kEmptyNode));
    return pool_.all_of(all, pool_.raw_not(pool_.cat(all, more)));
  }

  void produce_body(uint32_t rule, const Expression& body) {
    if (body.kind != Expression::kChoice) return produce(rule, symbols_of(body));
    for (const Expression& part : body.parts) produce(rule, symbols_of(part));
  }

  std::vector<Symbol> symbols_of(const Expression& expression) {
    if (const auto terminal = terminal_of(expression)) {
      if (*terminal == kEpsilonNode) return {};
      return {{false, *terminal}};
    }
    switch (expression.kind) {
      case Expression::kReference: return {{true, expression.rule}};
      case Expression::kJson: return {{false, kJsonPlace | expression.rule}};
      case Expression::kSequence: {
        std::vector<Symbol> symbols;
        for (const Expression& part : expression.parts) {
          const std::vector<Symbol> more = symbols_of(part);
          symbols.insert(symbols.end(), more.begin(), more.end());
        }
        return symbols;
      }
      case Expression::kRepeat: return repeat(expression);
      default: break;
    }
    const uint32_t rule = fresh();
    produce_body(rule, expression);
    return {{true, rule}};
  }

  std::vector<Symbol> repeat(const Expression& expression) {
    std::vector<Symbol> one = symbols_of(expression.parts[0]);
    if (one.size() != 1) {
      const uint32_t group = fresh();
      produce(group, one);
      one = {{true, group}};
    }
    std::vector<Symbol> symbols(expression.low, one[0]);
    if (expression.high == kUnbounded) {
      const uint32_t more = fresh();
      produce(more, {});
      produce(more, {{true, more}, one[0]});
      symbols.push_back({true, more});
      return symbols;
    }
    uint32_t last = 0;  // up to so many more, each within the one before
    for (uint32_t left = 0; left < expression.high - expression.low; ++left) {
      const uint32_t more = fresh();
      produce(more, {});
      if (left == 0) {
        produce(more, one);
      } else {
        produce(more, {one[0], {true, last}});
      }
      last = more;
    }
    if (expression.high > expression.low) symbols.push_back({true, last});
    return symbols;
  }

  const std::vector<NamedRule>& named_;
  RegexPool& pool_;
  ContextFree& out_;
  std::vector<std::optional<NodeId>> terminals_;
  std::vector<uint8_t> states_;  // 1: being looked at, 2: known
  uint32_t within_ = 0;          // the rule whose body is lowered
  int depth_ = 0;
};

}  // namespace

ContextFree lower(GrammarRules grammar, RegexPool& pool, size_t max_items) {
  ContextFree out;
  out.max_items = max_items;
  out.root = grammar.root;
  out.roots = std::move(grammar.roots);
  for (std::unique_ptr<JsonGrammar>& json : grammar.json) {
    out.json.push_back(std::make_unique<ContextFree::Json>());
    out.json.back()->grammar = std::move(json);
  }
  Lowering(grammar.rules, pool, out).run();
  for (NamedRule& rule : grammar.rules) out.names.push_back(std::move(rule.name));
  return out;
}

GrammarRules parse_grammar(std::string_view text, RegexPool& pool, const SchemaOptions& schema) {
  return grammar_notation(text) == GrammarNotation::kLark ? parse_lark(text, pool, schema)
                                                          : parse_gbnf(text, pool);
}

uint32_t append(GrammarRules& to, GrammarRules from) {
  const auto first_rule = static_cast<uint32_t>(to.rules.size());
  const auto first_json = static_cast<uint32_t>(to.json.size());
  for (NamedRule& rule : from.rules) {
    std::vector<Expression*> open = {&rule.body};
    while (!open.empty()) {
      Expression& expression = *open.back();
      open.pop_back();
      if (expression.kind == Expression::kReference) expression.rule += first_rule;
      if (expression.kind == Expression::kJson) expression.rule += first_json;
      for (Expression& part : expression.parts) open.push_back(&part);
    }
    to.rules.push_back(std::move(rule));
  }
  for (std::unique_ptr<JsonGrammar>& json : from.json) to.json.push_back(std::move(json));
  to.weakened.insert(to.weakened.end(), from.weakened.begin(), from.weakened.end());
  return first_rule + from.root;
}

std::vector<bool> reached_rules(const std::vector<NamedRule>& rules, uint32_t root) {
  std::vector<bool> is_reached(rules.size(), false);
  std::vector<uint32_t> open = {root};
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    if (is_reached[at]) continue;
    is_reached[at] = true;
    std::vector<const Expression*> inner = {&rules[at].body};
    while (!inner.empty()) {
      const Expression* expression = inner.back();
      inner.pop_back();
      if (expression->kind == Expression::kReference) open.push_back(expression->rule);
      for (const Expression& part : expression->parts) inner.push_back(&part);
    }
  }
  return is_reached;
}

uint32_t read_hex_escape(std::string_view text, size_t& at, size_t digits, std::string& why) {
  uint32_t code = 0;
  for (size_t i = 0; i < digits; ++i) {
    const char digit = at < text.size() ? text[at++] : '\0';
    const bool is_digit = digit >= '0' && digit <= '9';
    const bool is_letter = (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f';
    if (!is_digit && !is_letter) {
      why = "an escape that lacks hexadecimal digits";
      return 0;
    }
    code = code * 16 + static_cast<uint32_t>(is_digit ? digit - '0' : (digit | 0x20) - 'a' + 10);
  }
  if (code > kMaxCodePoint || (code >= 0xD800 && code < 0xE000)) {
    why = "an escape of something that is no character";
  }
  return code;
}

std::string place_in(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return "the grammar, line " + std::to_string(line) + ", column " +
         std::to_string(before.size() - begin + 1) + ": ";
}

}  // namespace vitrine::constrain

namespace vitrine {

GrammarNotation grammar_notation(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    at += line.size() + 1;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#' ||
        line.substr(first).starts_with("//")) {
      continue;
    }
    // A name and what stands behind it.
    const size_t behind = line.find_first_of(" \t\r:[{.", first);
    if (behind == std::string_view::npos) continue;
    const size_t sign = line.find_first_not_of(" \t\r", behind);
    if (line[first] == '%' || sign == std::string_view::npos) return GrammarNotation::kLark;
    return line.substr(sign).starts_with("::=") ? GrammarNotation::kGbnf : GrammarNotation::kLark;
  }
  return GrammarNotation::kGbnf;
}

}  // namespace vitrine
