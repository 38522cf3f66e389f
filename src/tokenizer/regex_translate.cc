// SPDX-License-Identifier: Apache-2.0
// Oniguruma's syntax to PCRE2's. Every construct that is not known to mean the same is refused.
#include <array>
#include <cstdio>
#include <utility>

#include "char_set.h"
#include "regex.h"
#include "unicode.h"

namespace vitrine::tokenizer {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr int kMaxDepth = 64;
constexpr unsigned kMaxRepeat = 65535;  // PCRE2's own limit
[[noreturn]] void malformed(const std::string& message) { throw RegexError{false, message}; }
[[noreturn]] void unsupported(const std::string& message) { throw RegexError{true, message}; }

std::string escape_code_point(char32_t c) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\x{%x}", static_cast<unsigned>(c));
  return buffer.data();
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    std::string valid;
    if (append_lossy(pattern_, true, valid); valid != pattern_) malformed("invalid UTF-8");
    if (pattern_.size() > kMaxPatternBytes) {
      unsupported("longer than " + std::to_string(kMaxPatternBytes) + " bytes");
    }
    Options options;
    // An option at the very start means the same in both syntaxes; elsewhere they differ.
    for (const auto& [text, caseless] : {std::pair{"(?i)", true}, std::pair{"(?-i)", false}}) {
      if (pattern_.substr(pos_).starts_with(text)) {
        pos_ += std::string_view(text).size();
        options.caseless = caseless;
      }
    }
    const std::string body = alternation(options, 0);
    if (pos_ < pattern_.size()) malformed("unmatched ) at byte " + std::to_string(pos_));
    return options.caseless ? "(?i:" + body + ")" : body;
  }

 private:
  struct Options {
    bool caseless = false;
    bool dot_matches_newline = false;
  };

  bool at_end() const { return pos_ >= pattern_.size(); }
  bool looking_at(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }
  bool accept(std::string_view text) {
    if (!looking_at(text)) return false;
    pos_ += text.size();
    return true;
  }
  std::string here() const { return " at byte " + std::to_string(pos_); }

  std::string alternation(const Options& options, int depth) {
    if (depth > kMaxDepth) unsupported("groups nested deeper than " + std::to_string(kMaxDepth));
    std::string out = sequence(options, depth);
    while (accept("|")) out += "|" + sequence(options, depth);
    return out;
  }

  std::string sequence(const Options& options, int depth) {
    std::string out;
    previous_caseless_ = 0;
    while (!at_end() && !looking_at("|") && !looking_at(")")) {
      if (looking_at("*") || looking_at("+") || looking_at("?")) {
        malformed("nothing to repeat" + here());
      }
      if (accept("(?#")) {
        while (!at_end() && !looking_at(")")) ++pos_;
        if (!accept(")")) malformed("unfinished comment");
        continue;
      }
      out += repeats(atom(options, depth));
    }
    return out;
  }

  /// Applies the repeats that follow an atom, one around the other.
  std::string repeats(std::string atom) {
    for (bool is_first = true;; is_first = false) {
      std::string repeat;
      if (looking_at("*") || looking_at("+") || looking_at("?")) {
        repeat = pattern_[pos_++];
        if (looking_at("?") || looking_at("+")) repeat += pattern_[pos_++];
      } else if (!interval(repeat)) {
        return atom;
      }
      previous_caseless_ = 0;
      atom = (is_first ? atom : "(?:" + atom + ")") + repeat;
    }
  }

  /// {n}, {n,}, {,m}, {n,m}; anything else in braces is text. A + behind it repeats the repeat.
  bool interval(std::string& repeat) {
    if (!looking_at("{")) return false;
    size_t pos = pos_ + 1;
    const auto number = [&](std::string& digits) {
      while (pos < pattern_.size() && pattern_[pos] >= '0' && pattern_[pos] <= '9') {
        digits += pattern_[pos++];
      }
    };
    std::string low, high;
    number(low);
    const bool has_comma = pos < pattern_.size() && pattern_[pos] == ',';
    if (has_comma) {
      ++pos;
      number(high);
    }
    if (pos >= pattern_.size() || pattern_[pos] != '}' || (low.empty() && high.empty())) {
      return false;
    }
    pos_ = pos + 1;
    for (const std::string& bound : {low, high}) {
      if (bound.size() > 5 || (!bound.empty() && std::stoul(bound) > kMaxRepeat)) {
        unsupported("repeat of more than " + std::to_string(kMaxRepeat) + " times");
      }
    }
    if (!low.empty() && !high.empty() && std::stoul(low) > std::stoul(high)) {
      unsupported("repeat {" + low + "," + high + "} with its bounds exchanged");
    }
    repeat = "{" + (low.empty() ? "0" : low) + (has_comma ? "," + high : "") + "}";
    if (looking_at("?")) {
      if (!has_comma) unsupported("lazy repeat of a fixed count" + here());
      repeat += pattern_[pos_++];
    }
    return true;
  }

  std::string atom(const Options& options, int depth) {
    if (looking_at("(")) return group(options, depth);
    if (accept("[")) return caseless_checked(char_class(0, options), options);
    if (accept(".")) {
      previous_caseless_ = 0;
      return options.dot_matches_newline ? kAnyChar : "[^\\n]";
    }
    if (accept("^")) return "(?:\\A|(?<=\\n)(?!\\z))";
    if (accept("$")) return "(?:(?=\\n)|\\z)";
    if (looking_at("\\")) return escape(options);
    return literal(next_code_point(pattern_, pos_), options);
  }

  std::string literal(char32_t c, const Options& options) {
    if (options.caseless) {
      // Oniguruma also folds pairs of letters into one ("ss" and U+00DF); PCRE2 does not.
      if (c >= 0x80) unsupported("case-insensitive non-ASCII text" + here());
      const char lower = ascii_lower(static_cast<char>(c));
      const std::string pair{previous_caseless_, lower};
      for (const char* folded : {"ss", "ff", "fi", "fl", "st"}) {
        if (pair == folded) unsupported("case-insensitive '" + pair + "'" + here());
      }
      previous_caseless_ = lower;
    }
    return escape_code_point(c);
  }

  std::string caseless_checked(const CharSet& set, const Options& options) {
    previous_caseless_ = 0;
    if (options.caseless && !set.is_flat()) unsupported("case-insensitive nested class" + here());
    return set.render();
  }

  std::string group(const Options& options, int depth) {
    pos_ += 1;
    Options inner = options;
    std::string open = "(?:";
    if (accept("*")) unsupported("callout (*" + here());
    if (accept("?")) {
      if (accept("<=")) {
        open = "(?<=";
      } else if (accept("<!")) {
        open = "(?<!";
      } else if (accept("<")) {  // a name; nothing refers to it, back references are refused
        while (!at_end() && !looking_at(">") && !looking_at(")")) ++pos_;
        if (!accept(">")) malformed("unfinished group name");
      } else if (accept("=")) {
        open = "(?=";
      } else if (accept("!")) {
        open = "(?!";
      } else if (accept(">")) {
        open = "(?>";
      } else {
        open = option_group(inner);
      }
    }
    std::string out = open + alternation(inner, depth + 1);
    if (!accept(")")) malformed("missing )");
    previous_caseless_ = 0;
    return out + ")";
  }

  /// (?:…), (?i:…), (?m:…) (Ruby's m is PCRE2's s), (?-i:…).
  std::string option_group(Options& inner) {
    bool value = true;
    for (; !at_end() && !looking_at(":"); ++pos_) {
      switch (pattern_[pos_]) {
        case '-': value = false; break;
        case 'i': inner.caseless = value; break;
        case 'm': inner.dot_matches_newline = value; break;
        default: unsupported("group option '" + std::string(1, pattern_[pos_]) + "'" + here());
      }
    }
    if (!accept(":")) malformed("unfinished group");
    return inner.caseless ? "(?i:" : "(?-i:";
  }

  /// A single code point after a backslash; false where the escape is something else.
  bool escaped_code_point(char32_t& c) {
    const char letter = pattern_[pos_];
    constexpr std::pair<char, char> kControls[] = {{'t', 9},  {'n', 10}, {'r', 13}, {'f', 12},
                                                   {'v', 11}, {'a', 7},  {'e', 27}};
    for (const auto& [name, value] : kControls) {
      if (letter == name) {
        ++pos_;
        c = static_cast<char32_t>(value);
        return true;
      }
    }
    if (letter == 'x' || letter == 'u') {
      ++pos_;
      const bool braced = letter == 'x' && accept("{");
      const size_t most = braced ? 8 : letter == 'u' ? 4 : 2;
      size_t digits = 0;
      uint64_t value = 0;
      for (; digits < most && !at_end(); ++digits, ++pos_) {
        const char lower = ascii_lower(pattern_[pos_]);
        if (lower >= '0' && lower <= '9')
          value = value * 16 + static_cast<uint64_t>(lower - '0');
        else if (lower >= 'a' && lower <= 'f')
          value = value * 16 + static_cast<uint64_t>(lower - 'a' + 10);
        else
          break;
      }
      if (digits == 0 || (letter == 'u' && digits != 4) || (braced && !accept("}"))) {
        malformed("unfinished hexadecimal escape" + here());
      }
      if (letter == 'x' && !braced && value > 0x7f) unsupported("escaped raw byte" + here());
      if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
        malformed("escape that is no code point" + here());
      }
      c = static_cast<char32_t>(value);
      return true;
    }
    const bool is_word = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                         (letter >= 'A' && letter <= 'Z');
    if (is_word) return false;
    c = next_code_point(pattern_, pos_);
    return true;
  }

  /// \d \w \s \h \p{…} and their complements; `pos_` stands at the letter.
  bool escaped_set(CharSet& set, bool in_class) {
    const char letter = pattern_[pos_];
    switch (letter) {
      case 'd':
      case 'D':
        set = property_set("Nd", in_class);
        set.negated = letter == 'D';
        break;
      case 'w':
      case 'W':
        set = word_set(in_class);
        set.negated = letter == 'W';
        break;
      case 's':
      case 'S': set = {kWhitespaceItems, {}, {}, letter == 'S'}; break;
      case 'h':
      case 'H': set = {"0-9A-Fa-f", {}, {}, letter == 'H'}; break;
      case 'p':
      case 'P': {
        ++pos_;
        if (!accept("{")) unsupported("property without braces" + here());
        bool negated = letter == 'P';
        if (accept("^")) negated = !negated;
        const size_t end = pattern_.find('}', pos_);
        if (end == std::string_view::npos) malformed("unfinished property" + here());
        set = property_set(pattern_.substr(pos_, end - pos_), in_class);
        set.negated = set.negated != negated;
        pos_ = end + 1;
        return true;
      }
      default: return false;
    }
    ++pos_;
    return true;
  }

  std::string escape(const Options& options) {
    ++pos_;
    if (at_end()) malformed("ends in a backslash");
    CharSet set;
    if (escaped_set(set, false)) {
      if (options.caseless) unsupported("case-insensitive property" + here());
      return caseless_checked(set, options);
    }
    char32_t c = 0;
    if (escaped_code_point(c)) return literal(c, options);
    previous_caseless_ = 0;
    const std::string word = word_set(false).render();
    switch (const char letter = pattern_[pos_++]) {
      case 'A': return "\\A";
      case 'z': return "\\z";
      case 'Z': return "(?=\\n?\\z)";
      case 'R': return "(?>\\r\\n|[\\x{a}-\\x{d}\\x{85}\\x{2028}\\x{2029}])";
      case 'N': return "[^\\n]";
      case 'O': return kAnyChar;
      case 'b': return "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
      case 'B': return "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
      default: unsupported("escape \\" + std::string(1, letter) + here());
    }
  }

  /// The rest of a class whose [ was read.
  CharSet char_class(int depth, const Options& options) {
    if (depth > kMaxDepth) unsupported("classes nested deeper than " + std::to_string(kMaxDepth));
    CharSet whole;
    whole.negated = accept("^");
    CharSet part;  // what stands between two &&
    const auto finish_part = [&] {
      if (part.items.empty() && part.nested.empty()) malformed("empty class" + here());
      if (whole.items.empty() && whole.nested.empty()) {
        whole.items = std::move(part.items);
        whole.nested = std::move(part.nested);
      } else {
        whole.intersections.push_back(std::move(part));
      }
      part = CharSet();
    };
    for (bool is_first = true;; is_first = false) {
      if (at_end()) malformed("missing ]");
      if (!is_first && accept("]")) break;
      if (looking_at("]") && pattern_.find(']', pos_ + 1) == std::string_view::npos) {
        malformed("empty class" + here());
      }
      if (accept("&&")) {
        finish_part();
        continue;
      }
      if (looking_at("[:")) unsupported("POSIX bracket" + here());
      if (accept("[")) {
        add_set(char_class(depth + 1, options), part);
        continue;
      }
      CharSet set;
      char32_t low = 0;
      if (accept("\\")) {
        if (at_end()) malformed("ends in a backslash");
        if (escaped_set(set, true)) {
          if (options.caseless) unsupported("case-insensitive property" + here());
          if (looking_at("-") && !looking_at("-]")) unsupported("range after a property" + here());
          add_set(std::move(set), part);
          continue;
        }
        low = class_escape();
      } else {
        low = next_code_point(pattern_, pos_);
      }
      char32_t high = low;
      if (looking_at("-") && !looking_at("-]") && !looking_at("-[") && !looking_at("-&&")) {
        ++pos_;
        if (at_end()) malformed("missing ]");
        high = accept("\\") ? class_escape() : next_code_point(pattern_, pos_);
        if (high < low) malformed("empty range" + here());
      } else if (looking_at("-[")) {
        unsupported("range before a nested class" + here());
      }
      if (options.caseless && high >= 0x80)
        unsupported("case-insensitive non-ASCII class" + here());
      part.items += escape_code_point(low);
      if (high != low) part.items += "-" + escape_code_point(high);
    }
    finish_part();
    return whole;
  }

  char32_t class_escape() {
    if (at_end()) malformed("ends in a backslash");
    if (accept("b")) return 8;
    char32_t c = 0;
    if (!escaped_code_point(c)) {
      unsupported("escape \\" + std::string(1, pattern_[pos_]) + " in a class" + here());
    }
    return c;
  }

  static void add_set(CharSet set, CharSet& into) {
    if (set.is_flat() && !set.negated) {
      into.items += set.items;
    } else {
      into.nested.push_back(std::move(set));
    }
  }

  std::string_view pattern_;
  size_t pos_ = 0;
  char previous_caseless_ = 0;
};

}  // namespace

std::string translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace vitrine::tokenizer
