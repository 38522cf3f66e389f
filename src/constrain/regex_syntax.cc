// SPDX-License-Identifier: Apache-2.0
#include "regex_syntax.h"

#include <algorithm>
#include <optional>
#include <string>

#include "regex_parse.h"

namespace vitrine::constrain {

namespace {

constexpr uint32_t kMaxRegexRepeat = 10000;
constexpr int kMaxRegexDepth = 100;
constexpr uint32_t kNone = 0xFFFFFFFF;

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) {
    for (size_t at = 0; at < pattern.size();) {
      const uint32_t code = decode_utf8(pattern, at);
      if (code == kNone) throw PatternError{"it is not UTF-8"};
      text_.push_back(code);
    }
  }

  Syntax parse() {
    if (starts_with("(?i)")) {
      at_ += 4;
      ignore_case_ = true;
    }
    Syntax tree = alternatives(0);
    if (at_ < text_.size()) fail("a ')' that closes nothing");
    return tree;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw PatternError{what + " at character " + std::to_string(at_ + 1)};
  }
  bool at_end() const { return at_ >= text_.size(); }
  uint32_t peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : kNone;
  }
  bool take(uint32_t code) {
    if (peek() != code) return false;
    ++at_;
    return true;
  }
  bool starts_with(std::string_view ascii) const {
    for (size_t i = 0; i < ascii.size(); ++i) {
      if (peek(i) != static_cast<uint8_t>(ascii[i])) return false;
    }
    return true;
  }

  static void adopt(Syntax& parent, Syntax child) {
    parent.has_assertion |= child.has_assertion;
    if (parent.kind != Syntax::kLookbehind) parent.has_start |= child.has_start;
    parent.has_lookbehind |= child.has_lookbehind;
    parent.children.push_back(std::move(child));
  }

  Syntax alternatives(int depth) {
    if (depth > kMaxRegexDepth) fail("groups nested deeper than 100");
    Syntax out;
    out.kind = Syntax::kAlternatives;
    adopt(out, sequence(depth));
    while (take('|')) adopt(out, sequence(depth));
    if (out.children.size() == 1) return std::move(out.children[0]);
    return out;
  }

  Syntax sequence(int depth) {
    Syntax out;
    while (!at_end() && peek() != '|' && peek() != ')') {
      const size_t start = at_;
      Syntax item = atom(depth);
      while (const auto bounds = quantifier()) {
        if (item.position == start + 1) {
          at_ = start;
          fail("an assertion that is repeated");
        }
        Syntax repeat;
        repeat.kind = Syntax::kRepeat;
        repeat.low = bounds->first;
        repeat.high = bounds->second;
        adopt(repeat, std::move(item));
        item = std::move(repeat);
        // One quantifier, and one mark for lazy, which changes no language.
        take('?');
        const size_t behind = at_;
        if (quantifier()) {
          at_ = behind;
          fail("a quantifier after a quantifier");
        }
        break;
      }
      adopt(out, std::move(item));
    }
    return out;
  }

  std::optional<uint32_t> decimal() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    uint64_t value = 0;
    while (peek() >= '0' && peek() <= '9')
      value = std::min<uint64_t>(value * 10 + (text_[at_++] - '0'), kNone - 1);
    return static_cast<uint32_t>(value);
  }

  std::optional<std::pair<uint32_t, uint32_t>> quantifier() {
    if (take('*')) return std::pair{0U, kUnbounded};
    if (take('+')) return std::pair{1U, kUnbounded};
    if (take('?')) return std::pair{0U, 1U};
    if (peek() != '{') return std::nullopt;
    const size_t start = at_++;
    const auto low = decimal();
    std::optional<uint32_t> high = low;
    if (low && take(',')) {
      high = decimal();
      if (!high) high = kUnbounded;
    }
    if (!low || !take('}')) {  // a brace that stands for itself
      at_ = start;
      return std::nullopt;
    }
    if (*low > *high) fail("a repetition with its bounds the wrong way round");
    if (*low > kMaxRegexRepeat || (*high != kUnbounded && *high > kMaxRegexRepeat)) {
      fail("a repetition of more than " + std::to_string(kMaxRegexRepeat));
    }
    return std::pair{*low, *high};
  }

  Syntax chars(CharSet set) const {
    Syntax out;
    out.kind = Syntax::kChars;
    out.chars = ignore_case_ ? fold_ascii_case(std::move(set)) : normalize(std::move(set));
    return out;
  }

  static Syntax assertion(Syntax::Kind kind, size_t at) {
    Syntax out;
    out.kind = kind;
    out.has_assertion = true;
    out.has_start = kind == Syntax::kStart;
    out.has_lookbehind = kind == Syntax::kLookbehind;
    out.position = at + 1;
    return out;
  }

  /// A word's character on one side and none on the other, or (`negative`) on both or neither.
  Syntax word_boundary(bool negative) {
    const size_t at = at_;
    at_ += 2;
    Syntax out;
    out.kind = Syntax::kAlternatives;
    for (const bool is_behind_word : {false, true}) {
      Syntax both;
      for (const bool is_ahead : {false, true}) {
        Syntax side = assertion(is_ahead ? Syntax::kLookahead : Syntax::kLookbehind, at);
        side.negative = is_ahead ? is_behind_word != negative : !is_behind_word;
        adopt(side, chars(word_chars()));
        adopt(both, std::move(side));
      }
      adopt(out, std::move(both));
    }
    out.position = at + 1;
    return out;
  }

  Syntax group(int depth) {
    const size_t start = at_++;
    if (take('?')) {
      const bool is_behind = peek() == '<' && (peek(1) == '=' || peek(1) == '!');
      if (is_behind || peek() == '=' || peek() == '!') {
        if (is_behind) ++at_;
        Syntax out = assertion(is_behind ? Syntax::kLookbehind : Syntax::kLookahead, start);
        out.negative = take('!');
        if (!out.negative) ++at_;
        adopt(out, alternatives(depth + 1));
        if (!take(')')) fail("a group that does not end");
        return out;
      }
      if (starts_with("P<")) ++at_;
      if (take('<')) {
        const auto is_name = [this] {
          const uint32_t letter = peek() | 0x20;
          return peek() == '_' || peek() == '$' || peek() >= 0x80 ||
                 (letter >= 'a' && letter <= 'z');
        };
        if (at_end() || !is_name()) fail("a group whose name does not begin with a letter");
        while (!at_end() && (is_name() || (peek() >= '0' && peek() <= '9'))) ++at_;
        if (!take('>')) fail("a group name that does not end");
      } else if (!take(':')) {
        fail("a kind of group that is not supported");
      }
    }
    Syntax out = alternatives(depth + 1);
    if (!take(')')) fail("a group that does not end");
    return out;
  }

  Syntax atom(int depth) {
    const size_t start = at_;
    const uint32_t code = text_[at_];
    switch (code) {
      case '^': return assertion(Syntax::kStart, at_++);
      case '$': return assertion(Syntax::kEnd, at_++);
      case '.': ++at_; return chars(dot_chars());
      case '(': return group(depth);
      case '[': ++at_; return chars(char_class());
      case '*':
      case '+':
      case '?': fail("a quantifier that repeats nothing");
      case '{':  // else it stands for itself
        if (quantifier()) {
          at_ = start;
          fail("a quantifier that repeats nothing");
        }
        ++at_;
        return chars({{code, code}});
      case '\\': {
        if (peek(1) == 'b' || peek(1) == 'B') return word_boundary(peek(1) == 'B');
        if ((peek(1) >= '1' && peek(1) <= '9') || peek(1) == 'k') {
          fail("a back reference, which is not supported,");
        }
        ++at_;
        return chars(escape(false));
      }
      default: ++at_; return chars({{code, code}});
    }
  }

  uint32_t hexadecimal(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const uint32_t c = peek();
      const uint32_t digit = c >= '0' && c <= '9'                 ? c - '0'
                             : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                                  : 16;
      if (c == kNone || digit == 16) fail("an escape that lacks hexadecimal digits");
      value = value << 4 | digit;
      ++at_;
    }
    return value;
  }

  CharSet unicode_escape() {
    if (take('{')) {
      uint32_t value = 0;
      while (peek() != '}') {
        value = value << 4 | hexadecimal(1);
        if (value > kMaxCodePoint) fail("a code point above 10FFFF");
      }
      ++at_;
      return {{value, value}};
    }
    const uint32_t value = hexadecimal(4);
    if (value >= 0xD800 && value <= 0xDBFF && peek() == '\\' && peek(1) == 'u') {
      const size_t start = at_;
      at_ += 2;
      const uint32_t low = hexadecimal(4);
      if (low >= 0xDC00 && low <= 0xDFFF) {
        const uint32_t code = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
        return {{code, code}};
      }
      at_ = start;
    }
    return {{value, value}};
  }

  CharSet property(bool negative) {
    std::string name;
    if (take('{')) {
      while (!at_end() && peek() != '}') name += static_cast<char>(text_[at_++]);
      if (!take('}')) fail("a property name that does not end");
    } else if (!at_end()) {
      name = static_cast<char>(text_[at_++]);
    }
    const CharSet set = property_chars(name);
    if (set.empty()) {
      for (char& character : name) {
        if (character < ' ' || character > '~') character = '?';
      }
      fail("the property '" + name + "', which is not supported,");
    }
    return negative ? complement(set) : set;
  }

  /// Behind the backslash.
  CharSet escape(bool in_class) {
    if (at_end()) fail("a backslash at the end");
    const uint32_t code = text_[at_++];
    const auto one = [](uint32_t c) { return CharSet{{c, c}}; };
    switch (code) {
      case 'd': return digit_chars();
      case 'D': return complement(digit_chars());
      case 'w': return word_chars();
      case 'W': return complement(word_chars());
      case 's': return space_chars();
      case 'S': return complement(space_chars());
      case 'p': return property(false);
      case 'P': return property(true);
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 'a': return one('\a');
      case '0':
        if (peek() >= '0' && peek() <= '9') fail("an octal escape, which is not supported,");
        return one(0);
      case 'b':
        if (in_class) return one('\b');
        break;
      case 'x': {
        const uint32_t value = hexadecimal(2);
        return one(value);
      }
      case 'u': return unicode_escape();
      case 'c':
        if ((peek() | 32) >= 'a' && (peek() | 32) <= 'z') return one(text_[at_++] & 31);
        break;
      default: break;
    }
    const bool is_letter =
        (code >= '0' && code <= '9') || ((code | 32) >= 'a' && (code | 32) <= 'z');
    if (is_letter) {
      --at_;
      fail("the unknown escape '\\" + std::string(1, static_cast<char>(code)) + "'");
    }
    return one(code);
  }

  /// Behind the opening bracket.
  CharSet char_class() {
    const bool negative = take('^');
    CharSet out;
    while (true) {
      if (at_end()) fail("a character class that does not end");
      if (take(']')) break;
      CharSet low = class_member();
      const bool single = low.size() == 1 && low[0].low == low[0].high;
      if (single && peek() == '-' && peek(1) != ']' && peek(1) != kNone) {
        const size_t dash = at_++;
        const CharSet high = class_member();
        if (high.size() == 1 && high[0].low == high[0].high) {
          if (high[0].low < low[0].low) {
            at_ = dash;
            fail("a character range the wrong way round");
          }
          out.push_back({low[0].low, high[0].low});
          continue;
        }
        out.push_back({'-', '-'});  // [a-\d]: a dash that stands for itself
        out.insert(out.end(), high.begin(), high.end());
      }
      out.insert(out.end(), low.begin(), low.end());
    }
    out = normalize(std::move(out));
    if (ignore_case_) out = fold_ascii_case(std::move(out));
    return negative ? complement(out) : out;
  }

  CharSet class_member() {
    if (take('\\')) return escape(true);
    const uint32_t code = text_[at_++];
    return {{code, code}};
  }

  std::vector<uint32_t> text_;
  size_t at_ = 0;
  bool ignore_case_ = false;
};

}  // namespace

Syntax parse_syntax(std::string_view pattern) { return RegexParser(pattern).parse(); }

}  // namespace vitrine::constrain
