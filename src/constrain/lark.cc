// SPDX-License-Identifier: Apache-2.0
// Grammars in the notation of PyPI's `lark`, in the variant that llguidance reads: rules in lower
// case, terminals in upper case, white space and the like ignored between terminals.
#include <map>

#include "char_ranges.h"
#include "core/utf8.h"
#include "lenient.h"
#include "notation_reader.h"
#include "regex_parse.h"

namespace vitrine::constrain {

namespace {

constexpr int kMaxLarkDepth = 200;

class LarkParser : private NotationReader {
 public:
  LarkParser(std::string_view text, RegexPool& pool, const SchemaOptions& schema)
      : NotationReader(text, /*has_slash_comments=*/true), pool_(pool), schema_(schema) {}

  GrammarRules parse() {
    if (!is_utf8(text_)) refuse(0, "is not UTF-8");
    ignored_ = rule_id("%ignore", 0);
    rule(ignored_).is_defined = true;
    for (skip_space(true); at_ < text_.size(); skip_space(true)) {
      if (text_[at_] == '%') {
        parse_directive();
      } else {
        parse_rule();
      }
      skip_space(false);
      if (at_ < text_.size() && text_[at_] != '\n') refuse(at_, "expected the end of the rule");
    }
    if (!ignores_.empty()) {
      rule(ignored_).body = Expression::repeat(
          Expression::list(Expression::kChoice, std::move(ignores_)), 0, kUnbounded);
    }
    for (const NamedRule& one : out_.rules) {
      if (!one.is_defined) refuse(one.used_at, kind_of(one.name) + " is not defined");
    }
    const auto start = ids_.find("start");
    if (start == ids_.end()) refuse(0, "there is no rule 'start'");
    check_terminals();
    // What is ignored may come behind the last terminal, too.
    out_.root = static_cast<uint32_t>(out_.rules.size());
    out_.rules.push_back(
        {"start", rule(start->second).used_at, true,
         Expression::list(Expression::kSequence, {Expression::reference(start->second),
                                                  Expression::reference(ignored_)})});
    const std::vector<bool> is_reached = reached_rules(out_.rules, out_.root);
    for (size_t id = 0; id < out_.rules.size(); ++id) {
      if (is_reached[id] || id == ignored_ || imported_.contains(static_cast<uint32_t>(id))) {
        continue;
      }
      refuse(out_.rules[id].used_at,
             kind_of(out_.rules[id].name) + " cannot be reached from 'start'");
    }
    out_.roots.emplace_back(out_.root, place_in(text_, rule(out_.root).used_at) + "rule 'start'");
    return std::move(out_);
  }

 private:
  NamedRule& rule(uint32_t id) { return out_.rules[id]; }
  /// A terminal's first letter is a capital.
  static bool is_terminal(std::string_view name) {
    const size_t first = name.find_first_not_of("_-0123456789");
    return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
  }
  static std::string kind_of(const std::string& name) {
    return (is_terminal(name) ? "terminal '" : "rule '") + name + "'";
  }

  /// An alternative may begin on a line of its own.
  bool take_bar(bool nested) {
    const size_t from = at_;
    skip_space(true);
    if (take("|")) {
      skip_space(nested);
      return true;
    }
    if (!nested) at_ = from;
    return false;
  }

  uint32_t rule_id(const std::string& name, size_t at) {
    const auto [found, is_new] = ids_.emplace(name, static_cast<uint32_t>(out_.rules.size()));
    if (is_new) out_.rules.push_back({name, at, false, {}});
    return found->second;
  }
  std::string parse_name(const char* what) {
    const size_t from = at_;
    while (at_ < text_.size() && is_word(text_[at_]) && !is_at("->")) ++at_;
    if (at_ == from) refuse(at_, std::string("expected ") + what);
    return std::string(text_.substr(from, at_ - from));
  }
  uint32_t define(const std::string& name, size_t at) {
    const uint32_t id = rule_id(name, at);
    if (rule(id).is_defined) refuse(at, kind_of(name) + " is defined twice");
    rule(id).is_defined = true;
    return id;
  }

  void parse_rule() {
    if (is_at("?") || is_at("!")) ++at_;  // what a tree would look like
    const size_t from = at_;
    const std::string name = parse_name("a rule, a terminal or a directive");
    if (is_at("{")) refuse(at_, "templates are not supported", ErrorKind::kUnsupported);
    bool is_lazy = false;
    if (take("[")) is_lazy = parse_attributes();
    if (take(".")) {  // a priority: which reading a tree would show
      take("-");
      parse_name("a number");
    }
    skip_space(false);
    if (!take(":")) refuse(at_, "expected ':' behind '" + name + "'");
    const uint32_t id = define(name, from);
    in_terminal_ = is_terminal(name) || is_lazy;
    skip_space(false);
    Expression body = parse_choice(false, 0);
    if (is_lazy) body = Expression::list(Expression::kShortest, {std::move(body)});
    if (is_lazy && !is_terminal(name)) body = behind_ignored(std::move(body));
    rule(id).body = std::move(body);
  }

  /// `lazy` is true; what tells only of captures counts for nothing here.
  bool parse_attributes() {
    bool is_lazy = false;
    for (bool more = true; more;) {
      skip_space(false);
      const size_t from = at_;
      const std::string name = parse_name("an attribute");
      if (name == "lazy") {
        is_lazy = true;
      } else if (name != "capture") {
        refuse(from, "the attribute '" + name + "' is not supported; expected lazy or capture",
               ErrorKind::kUnsupported);
      }
      skip_space(false);
      if (name == "capture" && take("=")) {
        skip_space(false);
        parse_string();
        skip_space(false);
      }
      more = take(",");
    }
    if (!take("]")) refuse(at_, "expected ']'");
    return is_lazy;
  }

  void parse_directive() {
    const size_t from = at_++;
    const std::string name = parse_name("a directive");
    skip_space(false);
    if (name == "ignore") {
      in_terminal_ = true;
      ignores_.push_back(parse_choice(false, 0));
    } else if (name == "import") {
      parse_import();
    } else if (name == "llguidance" && take("{")) {
      skip_space(true);
      if (!take("}"))
        refuse(at_, "options are not supported; expected '{}'", ErrorKind::kUnsupported);
    } else {
      refuse(from, "the directive '%" + name + "' is not supported; expected %ignore or %import",
             ErrorKind::kUnsupported);
    }
  }

  void parse_import() {
    const size_t from = at_;
    if (parse_name("a library") != "common") {
      refuse(from, "only the library 'common' can be imported", ErrorKind::kUnsupported);
    }
    skip_space(false);
    if (take("(")) {
      do {
        skip_space(true);
        const size_t at = at_;
        const std::string name = parse_name("a terminal");
        import(name, name, at);
        skip_space(true);
      } while (take(","));
      if (!take(")")) refuse(at_, "expected ')'");
      return;
    }
    if (!take(".")) refuse(at_, "expected '.' and a terminal's name");
    const size_t at = at_;
    const std::string name = parse_name("a terminal");
    skip_space(false);
    std::string alias = name;
    if (take("->")) {
      skip_space(false);
      alias = parse_name("a name");
      if (!is_terminal(alias)) refuse(at, "expected a terminal's name behind '->'");
    }
    import(name, alias, at);
  }
  void import(const std::string& name, const std::string& alias, size_t at) {
    const char* pattern = lark_common(name);
    if (pattern == nullptr) refuse(at, "the library 'common' has no terminal '" + name + "'");
    const uint32_t id = define(alias, at);
    rule(id).body = Expression::of(compile_pattern(pool_, pattern, PatternScope::kWhole));
    imported_[id] = true;
  }

  // ---- expressions ----------------------------------------------------------------------------

  Expression parse_choice(bool nested, int depth) {
    if (depth > kMaxLarkDepth) refuse(at_, "more than 200 groups within each other");
    std::vector<Expression> parts;
    if (nested) skip_space(true);
    do {
      parts.push_back(parse_sequence(nested, depth));
      if (take("->")) {  // a name in a tree
        skip_space(nested);
        parse_name("a name");
        skip_space(nested);
      }
    } while (take_bar(nested));
    return parts.size() == 1 ? std::move(parts[0])
                             : Expression::list(Expression::kChoice, std::move(parts));
  }

  Expression parse_sequence(bool nested, int depth) {
    Expression sequence;
    sequence.kind = Expression::kSequence;
    while (at_ < text_.size()) {
      std::optional<Expression> one = parse_atom(depth);
      if (!one) break;
      skip_space(nested);
      parse_repeats(*one, nested);
      sequence.parts.push_back(std::move(*one));
    }
    return sequence;
  }

  /// Between terminals of a rule may stand what is ignored.
  Expression behind_ignored(Expression one) {
    return Expression::list(Expression::kSequence,
                            {Expression::reference(ignored_), std::move(one)});
  }
  Expression terminal(NodeId node) {
    Expression one = Expression::of(node);
    return in_terminal_ ? one : behind_ignored(std::move(one));
  }

  std::optional<Expression> parse_atom(int depth) {
    const size_t from = at_;
    if (take("(")) {
      Expression one = parse_choice(true, depth + 1);
      if (!take(")")) refuse(at_, "expected ')'");
      return one;
    }
    if (take("[")) {
      Expression one = parse_choice(true, depth + 1);
      if (!take("]")) refuse(at_, "expected ']'");
      return Expression::repeat(std::move(one), 0, 1);
    }
    if (is_at("\"")) return terminal(parse_literal());
    if (is_at("/")) return terminal(parse_regex());
    if (is_at("%")) return parse_json_schema();
    for (const char* other : {"<", "@", "&", "~"}) {
      if (is_at(other)) {
        refuse(from, std::string("'") + other + "' is not supported here", ErrorKind::kUnsupported);
      }
    }
    if (!is_word(text_[at_]) || is_at("->")) return {};
    const std::string name = parse_name("a name");
    if (is_at("{") && at_ + 1 < text_.size() && is_word(text_[at_ + 1]) &&
        (text_[at_ + 1] < '0' || text_[at_ + 1] > '9')) {
      refuse(at_, "templates are not supported", ErrorKind::kUnsupported);
    }
    if (in_terminal_ && !is_terminal(name)) {
      refuse(from, "a terminal is made of terminals; '" + name + "' is a rule");
    }
    Expression one = Expression::reference(rule_id(name, from));
    return in_terminal_ || !is_terminal(name) ? one : behind_ignored(std::move(one));
  }

  void parse_repeats(Expression& one, bool nested) {
    while (at_ < text_.size()) {
      uint32_t low = 0, high = kUnbounded;
      const size_t from = at_;
      if (take("*")) {
      } else if (take("+")) {
        low = 1;
      } else if (take("?")) {
        high = 1;
      } else if (take("~")) {
        low = high = parse_number();
        if (take("..")) high = parse_number();
      } else if (take("{")) {
        skip_space(true);
        low = is_at(",") ? 0 : parse_number();
        high = low;
        skip_space(true);
        if (take(",")) {
          skip_space(true);
          high = is_at("}") ? kUnbounded : parse_number();
        }
        skip_space(true);
        if (!take("}")) refuse(at_, "expected '}'");
      } else {
        return;
      }
      if (low > high) refuse(from, "a repetition whose least number is above its greatest");
      one = Expression::repeat(std::move(one), low, high);
      skip_space(nested);
    }
  }
  uint32_t parse_number() {
    skip_space(false);
    return parse_count();
  }

  // ---- terminals ------------------------------------------------------------------------------

  std::vector<uint32_t> parse_string() {
    const size_t from = at_;
    if (!take("\"")) refuse(at_, "expected a string");
    std::vector<uint32_t> out;
    while (!is_at("\"")) {
      if (at_ >= text_.size() || text_[at_] == '\n') refuse(from, "a string that does not end");
      if (take("\\f")) {
        out.push_back('\f');
      } else {
        out.push_back(take("\\") ? parse_escape("\"/\\") : decode_utf8(text_, at_));
      }
    }
    ++at_;
    return out;
  }

  NodeId parse_literal() {
    const size_t from = at_;
    const std::vector<uint32_t> text = parse_string();
    const bool folds = at_ < text_.size() && text_[at_] == 'i';
    if (folds) ++at_;
    const size_t behind = at_;
    skip_space(false);
    if (!folds && take("..")) {
      skip_space(false);
      const std::vector<uint32_t> last = parse_string();
      if (text.size() != 1 || last.size() != 1 || text[0] > last[0]) {
        refuse(from, "expected a range of two characters, the lesser one first");
      }
      return characters({{text[0], last[0]}}, from);
    }
    at_ = behind;
    NodeId out = kEpsilonNode;
    for (auto code = text.rbegin(); code != text.rend(); ++code) {
      CharSet one = {{*code, *code}};
      out = pool_.cat(characters(folds ? fold_ascii_case(one) : one, from), out);
    }
    return out;
  }
  NodeId characters(CharSet set, size_t at) {
    set = complement(complement(normalize(std::move(set))));  // which leaves surrogates out
    if (set.empty()) refuse(at, "a range without any character");
    return pool_.characters(set);
  }

  NodeId parse_regex() {
    const size_t from = at_++;
    std::string pattern;
    while (!is_at("/")) {
      if (at_ >= text_.size() || text_[at_] == '\n') {
        refuse(from, "a regular expression that does not end");
      }
      const char character = text_[at_++];
      if (character == '\\' && at_ < text_.size() && text_[at_] != '\n') {
        pattern += {character, text_[at_++]};
        continue;
      }
      pattern += character;
    }
    ++at_;
    bool folds = false, dot_is_all = false;
    for (; at_ < text_.size() && is_word(text_[at_]); ++at_) {
      if (text_[at_] == 'i') {
        folds = true;
      } else if (text_[at_] == 's') {
        dot_is_all = true;
      } else if (text_[at_] != 'u') {
        refuse(at_, "a flag that is not supported; expected i, s or u", ErrorKind::kUnsupported);
      }
    }
    // Python's and Rust's dot: any character but a line feed.
    pattern = with_dot(pattern, dot_is_all ? "[\\s\\S]" : "[^\\n]");
    try {
      const NodeId out = compile_pattern(pool_, pattern, PatternScope::kPart, folds);
      if (!pool_.is_live(out)) refuse(from, "a regular expression that matches no text at all");
      return out;
    } catch (const PatternError& error) {
      refuse(from, "the regular expression has " + error.message);
    }
  }

  Expression parse_json_schema() {
    const size_t from = at_++;
    if (parse_name("a directive") != "json" || in_terminal_) {
      refuse(from, "expected %json, in a rule", ErrorKind::kUnsupported);
    }
    skip_space(true);
    const size_t begin = at_;
    at_ = end_of_braces(text_, at_);
    if (!is_at("}")) refuse(begin, "expected a JSON Schema in braces");
    ++at_;
    try {
      out_.json.push_back(
          make_json_grammar(text_.substr(begin, at_ - begin), schema_, "", out_.weakened));
    } catch (const Error& error) {
      refuse(from, error.what(), error.kind());
    }
    return behind_ignored(Expression::json(static_cast<uint32_t>(out_.json.size() - 1)));
  }

  /// A terminal that leads back to itself would be no regular language.
  void check_terminals() const {
    std::vector<uint32_t> terminals;
    for (uint32_t id = 0; id < out_.rules.size(); ++id) {
      if (is_terminal(out_.rules[id].name)) terminals.push_back(id);
    }
    if (const auto id = rule_within_itself(out_.rules, terminals)) {
      const NamedRule& one = out_.rules[*id];
      refuse(one.used_at, kind_of(one.name) + " leads back to itself; make it a rule");
    }
  }

  RegexPool& pool_;
  const SchemaOptions& schema_;
  bool in_terminal_ = false;
  uint32_t ignored_ = 0;
  std::vector<Expression> ignores_;
  std::map<uint32_t, bool> imported_;
  std::map<std::string, uint32_t, std::less<>> ids_;
  GrammarRules out_;
};

}  // namespace

GrammarRules parse_lark(std::string_view text, RegexPool& pool, const SchemaOptions& schema) {
  return LarkParser(text, pool, schema).parse();
}

}  // namespace vitrine::constrain
