// SPDX-License-Identifier: Apache-2.0
// GBNF, llama.cpp's notation of grammars.
#include <map>

#include "char_ranges.h"
#include "core/utf8.h"
#include "notation_reader.h"

namespace vitrine::constrain {

namespace {

constexpr int kMaxGbnfDepth = 200;

class GbnfParser : private NotationReader {
 public:
  GbnfParser(std::string_view text, RegexPool& pool)
      : NotationReader(text, /*has_slash_comments=*/false), pool_(pool) {}

  std::vector<NamedRule> parse() {
    if (!is_utf8(text_)) refuse(0, "is not UTF-8");
    skip_space(true);
    while (at_ < text_.size()) parse_rule();
    for (const NamedRule& rule : rules_) {
      if (!rule.is_defined) refuse(rule.used_at, "rule '" + rule.name + "' is not defined");
    }
    if (!ids_.contains("root")) refuse(0, "there is no rule 'root'");
    const std::vector<bool> is_reached = reached_rules(rules_, ids_["root"]);
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
      if (!is_reached[rule]) {
        refuse(rules_[rule].used_at,
               "rule '" + rules_[rule].name + "' cannot be reached from 'root'");
      }
    }
    return std::move(rules_);
  }
  uint32_t root() const { return ids_.at("root"); }

 private:
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
    if (depth > kMaxGbnfDepth) refuse(at_, "more than 200 groups within each other");
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
      one = Expression::repeat(std::move(one), low, high);
      skip_space(nested);
    }
  }

  uint32_t parse_number() {
    skip_space(true);
    const uint32_t value = parse_count();
    skip_space(true);
    return value;
  }

  /// A character or an escape.
  uint32_t parse_character() {
    if (at_ >= text_.size()) refuse(at_, "the grammar ends within quotes or brackets");
    if (text_[at_] != '\\') return decode_utf8(text_, at_);
    ++at_;
    return parse_escape("\"[]-^\\");
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

  RegexPool& pool_;
  std::vector<NamedRule> rules_;
  std::map<std::string, uint32_t, std::less<>> ids_;
};

}  // namespace

GrammarRules parse_gbnf(std::string_view text, RegexPool& pool) {
  GbnfParser parser(text, pool);
  GrammarRules out;
  out.rules = parser.parse();
  out.root = parser.root();
  out.roots.emplace_back(out.root, place_in(text, out.rules[out.root].used_at) + "rule 'root'");
  return out;
}

}  // namespace vitrine::constrain
