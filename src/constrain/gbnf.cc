// GBNF, llama.cpp's notation of grammars: text to expressions, expressions to rules over terminals.
#include <map>
#include <memory>
#include <optional>

#include "char_ranges.h"
#include "context_free.h"

namespace vitrine::constrain {

namespace {

constexpr uint32_t kMaxRepeat = 10000;
constexpr size_t kMaxProductions = 100000;
constexpr int kMaxDepth = 200;

struct Expression {
  enum Kind : uint8_t { kTerminal, kReference, kSequence, kChoice, kRepeat } kind = kTerminal;
  NodeId terminal = kEpsilonNode;
  uint32_t rule = 0;
  std::vector<Expression> parts;
  uint32_t low = 0, high = 0;
};

struct NamedRule {
  std::string name;
  size_t used_at = 0;  // where it was first named
  bool is_defined = false, is_reached = false;
  Expression body;
};

class GbnfParser {
 public:
  GbnfParser(std::string_view text, RegexPool& pool) : text_(text), pool_(pool) {}

  std::vector<NamedRule> parse() {
    if (!is_utf8(text_)) refuse(0, "is not UTF-8");
    skip_space(true);
    while (at_ < text_.size()) parse_rule();
    for (const NamedRule& rule : rules_) {
      if (!rule.is_defined) refuse(rule.used_at, "rule '" + rule.name + "' is not defined");
    }
    if (!ids_.contains("root")) refuse(0, "there is no rule 'root'");
    reach(ids_["root"]);
    for (const NamedRule& rule : rules_) {
      if (!rule.is_reached) {
        refuse(rule.used_at, "rule '" + rule.name + "' cannot be reached from 'root'");
      }
    }
    return std::move(rules_);
  }
  uint32_t root() const { return ids_.at("root"); }

 private:
  [[noreturn]] void refuse(size_t at, const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < text_.size(); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n' ? 1U : 0U;
    }
    throw Error(ErrorKind::kInvalidArgument, "the grammar, line " + std::to_string(line) +
                                                 ", column " + std::to_string(column) + ": " +
                                                 what);
  }
  bool is_at(char character) const { return at_ < text_.size() && text_[at_] == character; }
  static bool is_word(char character) {
    return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
           (character >= '0' && character <= '9') || character == '-' || character == '_';
  }

  void skip_space(bool newlines) {
    while (at_ < text_.size()) {
      const char character = text_[at_];
      if (character == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (character == ' ' || character == '\t' || character == '\r' ||
                 (newlines && character == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  uint32_t rule_id(const std::string& name, size_t at) {
    const auto [found, is_new] = ids_.emplace(name, static_cast<uint32_t>(rules_.size()));
    if (is_new) {
      rules_.emplace_back();
      rules_.back().name = name;
      rules_.back().used_at = at;
    }
    return found->second;
  }
  std::string parse_name() {
    const size_t from = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (at_ == from) refuse(at_, "expected the name of a rule");
    return std::string(text_.substr(from, at_ - from));
  }

  void parse_rule() {
    const size_t from = at_;
    const std::string name = parse_name();
    skip_space(false);
    if (text_.substr(at_, 3) != "::=") refuse(at_, "expected '::=' behind '" + name + "'");
    at_ += 3;
    skip_space(true);
    const uint32_t id = rule_id(name, from);
    if (rules_[id].is_defined) refuse(from, "rule '" + name + "' is defined twice");
    rules_[id].is_defined = true;
    Expression body = parse_choice(false, 0);
    rules_[id].body = std::move(body);
    if (at_ < text_.size() && text_[at_] != '\n') refuse(at_, "expected the end of the rule");
    skip_space(true);
  }

  Expression parse_choice(bool nested, int depth) {
    if (depth > kMaxDepth) refuse(at_, "more than 200 groups within each other");
    Expression choice;
    choice.kind = Expression::kChoice;
    choice.parts.push_back(parse_sequence(nested, depth));
    while (is_at('|')) {
      ++at_;
      skip_space(true);
      choice.parts.push_back(parse_sequence(nested, depth));
    }
    return choice.parts.size() == 1 ? std::move(choice.parts[0]) : choice;
  }

  Expression parse_sequence(bool nested, int depth) {
    Expression sequence;
    sequence.kind = Expression::kSequence;
    while (at_ < text_.size()) {
      Expression one;
      const size_t from = at_;
      const char character = text_[at_];
      if (character == '"') {
        one.terminal = parse_literal();
      } else if (character == '[') {
        one.terminal = parse_class();
      } else if (character == '.') {
        ++at_;
        one.terminal = pool_.any_char();
      } else if (character == '(') {
        ++at_;
        skip_space(true);
        one = parse_choice(true, depth + 1);
        if (!is_at(')')) refuse(at_, "expected ')'");
        ++at_;
      } else if (is_word(character)) {
        one.kind = Expression::kReference;
        one.rule = rule_id(parse_name(), from);
      } else {
        break;
      }
      skip_space(nested);
      parse_repeats(one, nested);
      sequence.parts.push_back(std::move(one));
    }
    return sequence;
  }

  void parse_repeats(Expression& one, bool nested) {
    while (at_ < text_.size()) {
      uint32_t low = 0, high = kUnbounded;
      const size_t from = at_;
      if (is_at('*')) {
      } else if (is_at('+')) {
        low = 1;
      } else if (is_at('?')) {
        high = 1;
      } else if (is_at('{')) {
        ++at_;
        low = high = parse_number();
        if (is_at(',')) {
          ++at_;
          skip_space(nested);
          high = is_at('}') ? kUnbounded : parse_number();
        }
        if (!is_at('}')) refuse(at_, "expected '}'");
        if (low > high) refuse(from, "a repetition whose least number is above its greatest");
      } else {
        return;
      }
      ++at_;
      Expression repeated;
      repeated.kind = Expression::kRepeat;
      repeated.low = low;
      repeated.high = high;
      repeated.parts.push_back(std::move(one));
      one = std::move(repeated);
      skip_space(nested);
    }
  }

  uint32_t parse_number() {
    skip_space(true);
    const size_t from = at_;
    uint32_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<uint32_t>(text_[at_] - '0');
      if (value > kMaxRepeat) refuse(from, "a repetition of more than 10000 times");
    }
    if (at_ == from) refuse(at_, "expected a number");
    skip_space(true);
    return value;
  }

  /// A character or an escape.
  uint32_t parse_character() {
    if (at_ >= text_.size()) refuse(at_, "the grammar ends within quotes or brackets");
    if (text_[at_] != '\\') return decode_utf8(text_, at_);
    const size_t from = at_++;
    const char kind = at_ < text_.size() ? text_[at_++] : '\0';
    size_t digits = 0;
    switch (kind) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
      case '\\': return static_cast<uint32_t>(kind);
      case 'x': digits = 2; break;
      case 'u': digits = 4; break;
      case 'U': digits = 8; break;
      default: refuse(from, "an unknown escape");
    }
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char digit = at_ < text_.size() ? text_[at_++] : '\0';
      const bool is_digit = digit >= '0' && digit <= '9';
      const bool is_letter = (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f';
      if (!is_digit && !is_letter) refuse(from, "an escape that lacks hexadecimal digits");
      code = code * 16 + static_cast<uint32_t>(is_digit ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    if (code > kMaxCodePoint || (code >= 0xD800 && code < 0xE000)) {
      refuse(from, "an escape of something that is no character");
    }
    return code;
  }

  NodeId parse_literal() {
    ++at_;
    std::string literal;
    while (!is_at('"')) {
      uint8_t bytes[4];
      const int length = encode_utf8(parse_character(), bytes);
      literal.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
    }
    ++at_;
    return pool_.literal(literal);
  }

  NodeId parse_class() {
    const size_t from = at_++;
    const bool is_negated = is_at('^');
    if (is_negated) ++at_;
    CharSet set;
    while (!is_at(']')) {
      const size_t begin = at_;
      const uint32_t low = parse_character();
      uint32_t high = low;
      if (is_at('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = parse_character();
        if (high < low) refuse(begin, "a range that ends before it begins");
      }
      set.push_back({low, high});
    }
    ++at_;
    set = complement(normalize(std::move(set)));  // which leaves surrogates out
    if (!is_negated) set = complement(set);
    if (set.empty()) refuse(from, "a class without any character");
    return pool_.characters(set);
  }

  void reach(uint32_t id) {
    std::vector<uint32_t> open = {id};
    while (!open.empty()) {
      const uint32_t at = open.back();
      open.pop_back();
      if (rules_[at].is_reached) continue;
      rules_[at].is_reached = true;
      std::vector<const Expression*> inner = {&rules_[at].body};
      while (!inner.empty()) {
        const Expression* expression = inner.back();
        inner.pop_back();
        if (expression->kind == Expression::kReference) open.push_back(expression->rule);
        for (const Expression& part : expression->parts) inner.push_back(&part);
      }
    }
  }

  std::string_view text_;
  RegexPool& pool_;
  size_t at_ = 0;
  std::vector<NamedRule> rules_;
  std::map<std::string, uint32_t, std::less<>> ids_;
};

/// Expressions to productions. A rule that never leads back to itself is one terminal.
class Lowering {
 public:
  Lowering(const std::vector<NamedRule>& named, RegexPool& pool, ContextFree& out)
      : named_(named), pool_(pool), out_(out), terminals_(named.size()), states_(named.size()) {
    out_.rules.resize(named.size());
  }

  void run() {
    for (uint32_t rule = 0; rule < named_.size(); ++rule) {
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
    out_.rules.emplace_back();
    return static_cast<uint32_t>(out_.rules.size() - 1);
  }

  std::optional<NodeId> terminal_of(uint32_t rule) {
    if (states_[rule] == 2) return terminals_[rule];
    if (states_[rule] == 1) return {};  // leads back to itself
    states_[rule] = 1;
    terminals_[rule] = terminal_of(named_[rule].body);
    states_[rule] = 2;
    return terminals_[rule];
  }
  std::optional<NodeId> terminal_of(const Expression& expression) {
    if (expression.kind == Expression::kTerminal) return expression.terminal;
    if (expression.kind == Expression::kReference) return terminal_of(expression.rule);
    std::vector<NodeId> parts;
    for (const Expression& part : expression.parts) {
      const std::optional<NodeId> one = terminal_of(part);
      if (!one) return {};
      parts.push_back(*one);
    }
    if (expression.kind == Expression::kChoice) return pool_.any_of(std::move(parts));
    if (expression.kind == Expression::kRepeat) {
      return pool_.repeat(parts[0], expression.low, expression.high);
    }
    NodeId sequence = kEpsilonNode;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      sequence = pool_.cat(*part, sequence);
    }
    return sequence;
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
};

}  // namespace

ContextFree parse_gbnf(std::string_view text, RegexPool& pool, size_t max_items) {
  GbnfParser parser(text, pool);
  const std::vector<NamedRule> rules = parser.parse();
  ContextFree grammar;
  grammar.max_items = max_items;
  grammar.root = parser.root();
  Lowering(rules, pool, grammar).run();
  return grammar;
}

}  // namespace vitrine::constrain
