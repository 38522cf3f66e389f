// SPDX-License-Identifier: Apache-2.0
#include "lexer.h"

#include <algorithm>

#include "characters.h"
#include "core/json_text.h"
#include "core/utf8.h"
#include "text.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

/// One kind of line break, and none at the end.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '\r') {
      if (at + 1 < source.size() && source[at + 1] == '\n') ++at;
      out += '\n';
    } else {
      out += source[at];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& name) : source_(std::move(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool starts(std::string_view text) const { return rest().starts_with(text); }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorKind::kBadFile, name_ + ": line " + std::to_string(line_) + ": " + message);
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  /// Moves on, counting lines.
  void advance(size_t count) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                    source_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    is_line_start_ = count > 0 && source_[at_ - 1] == '\n';
  }

  size_t whitespace_length(size_t from) const {
    size_t at = from;
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return at - from;
  }

  /// Writes `count` bytes of text before a tag that begins with `sign`.
  void add_data(size_t count, char sign, bool is_variable) {
    std::string_view text = rest().substr(0, count);
    if (sign == '-') {
      text = strip(text, false, true);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == text.npos ? 0 : newline + 1;
      if ((begin > 0 || is_line_start_) && strip(text.substr(begin), true, true).empty()) {
        text = text.substr(0, begin);
      }
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
    advance(count);
  }

  /// The sign after "{%", "{{" or "{#" at `place`, or 0.
  char sign_at(size_t place) const {
    const char sign = place + 2 < source_.size() ? source_[place + 2] : '\0';
    return sign == '-' || sign == '+' ? sign : '\0';
  }

  void read_data() {
    size_t place = at_;
    while (true) {
      place = source_.find('{', place);
      if (place == std::string::npos || place + 1 >= source_.size()) {
        add(TokenKind::kData, std::string(rest()));
        return advance(source_.size() - at_);
      }
      const char next = source_[place + 1];
      if (next == '%' || next == '{' || next == '#') break;
      ++place;
    }
    const char kind = source_[place + 1];
    const char sign = sign_at(place);
    add_data(place - at_, sign, kind == '{');
    if (kind == '%' && read_raw(sign)) return;
    if (kind == '#') return read_comment(sign);
    add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    advance(sign == '\0' ? 2 : 3);
    while (!read_tag_token(kind == '{')) {
    }
  }

  void read_comment(char sign) {
    advance(sign == '\0' ? 2 : 3);
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment has no end; expected '#}'");
    const char last = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2 - at_);
    if (last == '-') {
      advance(whitespace_length(at_));
    } else if (last != '+' && starts("\n")) {
      advance(1);
    }
  }

  /// Length of "{% WORD %}" at `place`, and the sign before its end; 0 where it is not there.
  size_t match_word_tag(size_t place, std::string_view word, char& end_sign) const {
    size_t at = place + (sign_at(place) == '\0' ? 2 : 3);
    at += whitespace_length(at);
    if (source_.compare(at, word.size(), word) != 0) return 0;
    at += word.size();
    at += whitespace_length(at);
    end_sign =
        at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
    if (end_sign != '\0') ++at;
    return source_.compare(at, 2, "%}") == 0 ? at + 2 - place : 0;
  }

  bool read_raw(char) {
    char end_sign = '\0';
    const size_t length = match_word_tag(at_, "raw", end_sign);
    if (length == 0 || end_sign == '+') return false;
    advance(length);
    if (end_sign == '-') advance(whitespace_length(at_));
    size_t place = at_;
    while (true) {
      place = source_.find("{%", place);
      if (place == std::string::npos) fail("'raw' has no end; expected '{% endraw %}'");
      if (match_word_tag(place, "endraw", end_sign) != 0) break;
      place += 2;
    }
    const size_t end_length = match_word_tag(place, "endraw", end_sign);
    const char before = sign_at(place);
    add_data(place - at_, before, false);
    advance(end_length);
    if (end_sign == '-') {
      advance(whitespace_length(at_));
    } else if (end_sign == '\0' && starts("\n")) {
      advance(1);
    }
    return true;
  }

  /// True where it was the tag's end.
  bool read_tag_token(bool is_variable) {
    if (at_ >= source_.size()) {
      fail(std::string("the template ends within a tag; expected '") +
           (is_variable ? "}}'" : "%}'"));
    }
    if (open_.empty() && read_tag_end(is_variable)) return true;
    if (const size_t space = whitespace_length(at_); space > 0) {
      advance(space);
    } else if (is_ascii_digit(source_[at_])) {
      read_number();
    } else if (source_[at_] == '\'' || source_[at_] == '"') {
      read_string();
    } else {
      read_name_or_operator();
    }
    return false;
  }

  bool read_tag_end(bool is_variable) {
    const std::string_view end = is_variable ? "}}" : "%}";
    const TokenKind kind = is_variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd;
    const char sign = source_[at_];
    const bool has_sign =
        (sign == '-' || (sign == '+' && !is_variable)) && rest().substr(1).starts_with(end);
    if (!has_sign && !starts(end)) return false;
    add(kind, "");
    advance(has_sign ? 3 : 2);
    if (has_sign && sign == '-') {
      if (const size_t space = whitespace_length(at_); space > 0) advance(space);
    } else if (!has_sign && !is_variable && starts("\n")) {
      advance(1);
    }
    return true;
  }

  /// Digits with single underscores between them, from `at`.
  size_t digits_end(size_t at) const {
    while (at < source_.size() &&
           (is_ascii_digit(source_[at]) ||
            (source_[at] == '_' && at + 1 < source_.size() && is_ascii_digit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void read_number() {
    const bool follows_dot = at_ > 0 && source_[at_ - 1] == '.';
    const char marker =
        at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : '\0';
    size_t end = digits_end(at_);
    bool is_float = false;
    if (source_[at_] == '0' && (marker == 'x' || marker == 'o' || marker == 'b')) {
      end = at_ + 2;
      while (end < source_.size() &&
             (std::isxdigit(static_cast<unsigned char>(source_[end])) || source_[end] == '_')) {
        ++end;
      }
    } else if (!follows_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_ascii_digit(source_[end + 1])) {
        end = digits_end(end + 1);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        size_t power = end + 1;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (power < source_.size() && is_ascii_digit(source_[power])) {
          end = digits_end(power);
          is_float = true;
        }
      }
    }
    std::string text(rest().substr(0, end - at_));
    std::erase(text, '_');
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    advance(end - at_);
  }

  void read_string() {
    const char mark = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(std::string("a text has no end; expected ") + mark);
    add(TokenKind::kString, unescape(rest().substr(1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  char32_t read_hex(std::string_view text, size_t& at, size_t digits) const {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at) {
      if (at >= text.size() || !std::isxdigit(static_cast<unsigned char>(text[at]))) {
        fail("an escape in a text is cut off; expected " + std::to_string(digits) +
             " hexadecimal digits");
      }
      const char c = static_cast<char>(text[at] | 0x20);
      value = 16 * value + static_cast<char32_t>(c <= '9' ? text[at] - '0' : c - 'a' + 10);
    }
    return value;
  }

  std::string unescape(std::string_view text) const {
    std::string out;
    const auto append = [&out](char32_t c) {
      append_utf8(c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0xfffd : c, out);
    };
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '\\' || at + 1 >= text.size()) {
        out += text[at++];
        continue;
      }
      const char c = text[at + 1];
      at += 2;
      switch (c) {
        case '\n': break;
        case '\\':
        case '\'':
        case '"': out += c; break;
        case 'a': out += '\a'; break;
        case 'b': out += '\b'; break;
        case 'f': out += '\f'; break;
        case 'n': out += '\n'; break;
        case 'r': out += '\r'; break;
        case 't': out += '\t'; break;
        case 'v': out += '\v'; break;
        case 'x': append(read_hex(text, at, 2)); break;
        case 'u': append(read_hex(text, at, 4)); break;
        case 'U': append(read_hex(text, at, 8)); break;
        case 'N': fail("a text has the escape \\N; expected \\u and four hexadecimal digits");
        default:
          if (c >= '0' && c <= '7') {
            char32_t value = static_cast<char32_t>(c - '0');
            for (int i = 0; i < 2 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++i) {
              value = 8 * value + static_cast<char32_t>(text[at++] - '0');
            }
            append(value);
          } else {
            out += '\\';
            out += c;
          }
      }
    }
    return out;
  }

  void read_name_or_operator() {
    size_t end = at_;
    if (is_word_start(next_code_point(source_, end))) {
      for (size_t next = end; next < source_.size();) {
        if (!is_word(next_code_point(source_, next))) break;
        end = next;
      }
      add(TokenKind::kName, std::string(rest().substr(0, end - at_)));
      return advance(end - at_);
    }
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               "=",  ">",  "<",  ".",  ":",  "|",  ",", ";"};
    const auto* found =
        std::ranges::find_if(kOperators, [&](std::string_view text) { return starts(text); });
    if (found == std::end(kOperators)) {
      fail("a tag holds " + quote_text(rest().substr(0, end - at_)) + "; expected an expression");
    }
    balance((*found)[0]);
    add(TokenKind::kOperator, std::string(*found));
    advance(found->size());
  }

  void balance(char c) {
    if (c == '{' || c == '(' || c == '[') open_ += c == '{' ? '}' : c == '(' ? ')' : ']';
    if (c != '}' && c != ')' && c != ']') return;
    if (open_.empty() || open_.back() != c) {
      fail(std::string("found '") + c + "'; expected " +
           (open_.empty() ? "an open bracket before it" : std::string("'") + open_.back() + "'"));
    }
    open_.pop_back();
  }

  const std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;
  std::string open_;  ///< the brackets that must still be closed
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source, const std::string& name) {
  return Lexer(normalize_newlines(source), name).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd: return "the end of the template";
    case TokenKind::kData: return "text";
    case TokenKind::kVariableBegin: return "'{{'";
    case TokenKind::kVariableEnd: return "'}}'";
    case TokenKind::kBlockBegin: return "'{%'";
    case TokenKind::kBlockEnd: return "'%}'";
    default: return quote_text(token.text);
  }
}

}  // namespace vitrine::chat
