#include "text.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/unicode.h"

namespace vitrine::chat {

namespace {

using tokenizer::append_utf8;
using tokenizer::next_code_point;

// Characters whose upper or title case is several characters (Unicode's SpecialCasing.txt without
// its conditional part).
struct LongCase {
  char32_t code_point;
  const char32_t *upper, *title;
};
constexpr LongCase kLongCases[] = {
    {0xdf, U"SS", U"Ss"},
    {0x149, U"\u02bcN", U"\u02bcN"},
    {0x1f0, U"J\u030c", U"J\u030c"},
    {0x390, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
    {0x3b0, U"\u03a5\u0308\u0301", U"\u03a5\u0308\u0301"},
    {0x587, U"\u0535\u0552", U"\u0535\u0582"},
    {0x1e96, U"H\u0331", U"H\u0331"},
    {0x1e97, U"T\u0308", U"T\u0308"},
    {0x1e98, U"W\u030a", U"W\u030a"},
    {0x1e99, U"Y\u030a", U"Y\u030a"},
    {0x1e9a, U"A\u02be", U"A\u02be"},
    {0xfb00, U"FF", U"Ff"},
    {0xfb01, U"FI", U"Fi"},
    {0xfb02, U"FL", U"Fl"},
    {0xfb03, U"FFI", U"Ffi"},
    {0xfb04, U"FFL", U"Ffl"},
    {0xfb05, U"ST", U"St"},
    {0xfb06, U"ST", U"St"},
};

const LongCase* find_long_case(char32_t code_point) {
  if (code_point < 0xdf) return nullptr;
  const auto* found = std::ranges::find(kLongCases, code_point, &LongCase::code_point);
  return found == std::end(kLongCases) ? nullptr : found;
}

utf8proc_category_t category(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

void append_upper(char32_t code_point, std::u32string& out) {
  if (const LongCase* special = find_long_case(code_point)) {
    out += special->upper;
  } else {
    out += static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point)));
  }
}

void append_title(char32_t code_point, std::u32string& out) {
  if (const LongCase* special = find_long_case(code_point)) {
    out += special->title;
  } else {
    out += static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code_point)));
  }
}

bool is_cased(char32_t code_point) {
  return is_upper(code_point) || is_lower(code_point) || is_title(code_point);
}

/// What final sigma looks through.
bool is_case_ignorable(char32_t c) {
  if (c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xb7 || c == 0x2019) {
    return true;
  }
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME ||
         kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_SK;
}

void append_lower(const std::u32string& text, size_t at, std::u32string& out) {
  const char32_t code_point = text[at];
  if (code_point == 0x130) {  // capital I with a dot
    out += U"i\u0307";
  } else if (code_point == 0x3a3) {  // sigma has another form at the end of a word
    size_t before = at, after = at + 1;
    while (before > 0 && is_case_ignorable(text[before - 1])) --before;
    while (after < text.size() && is_case_ignorable(text[after])) ++after;
    const bool is_final =
        before > 0 && is_cased(text[before - 1]) && !(after < text.size() && is_cased(text[after]));
    out += is_final ? char32_t{0x3c2} : char32_t{0x3c3};
  } else {
    out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
  }
}

bool is_line_break(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_boundary(std::string_view text, size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

size_t previous_start(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && !is_boundary(text, at));
  return at;
}

/// Calls `found` with each place where `from` stands, from the left, at most `max_count` times. An
/// empty `from` stands before every character and at the end.
template <typename Found>
void for_each_match(std::string_view text, std::string_view from, int64_t max_count,
                    const Found& found) {
  int64_t count = 0;
  for (size_t at = 0; at <= text.size() && (max_count < 0 || count < max_count); ++count) {
    if (!from.empty()) {
      at = text.find(from, at);
      if (at == text.npos) return;
    } else {
      while (!is_boundary(text, at)) ++at;
    }
    found(at);
    at += std::max<size_t>(from.size(), 1);
  }
}

}  // namespace

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (is_boundary(text, at) && index-- == 0) break;
  }
  return at;
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string result;
  for (size_t at = 0; at < text.size();) result += next_code_point(text, at);
  return result;
}

std::string encode_utf8(std::u32string_view text) {
  std::string result;
  for (const char32_t code_point : text) append_utf8(code_point, result);
  return result;
}

std::string valid_utf8(std::string_view text) {
  std::string result;
  tokenizer::append_lossy(text, true, result);
  return result;
}

bool is_space(char32_t c) { return (c >= 0x1c && c <= 0x1f) || tokenizer::is_whitespace(c); }

bool is_alphabetic(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) {
  // Superscripts, subscripts and circled digits are digits, but no decimals.
  return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247c) ||
         (c >= 0x2488 && c <= 0x2490);
}
bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216f) ||
         (c >= 0x24b6 && c <= 0x24cf);
}
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba ||
         (c >= 0x2170 && c <= 0x217f) || (c >= 0x24d0 && c <= 0x24e9);
}
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_word(char32_t c) { return c == '_' || is_alphabetic(c) || is_numeric(c); }
bool is_word_start(char32_t c) { return c == '_' || is_alphabetic(c); }

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}

std::string to_upper(std::string_view text) {
  std::u32string result;
  for (const char32_t c : decode_utf8(text)) append_upper(c, result);
  return encode_utf8(result);
}

std::string to_lower(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string result;
  for (size_t at = 0; at < source.size(); ++at) append_lower(source, at, result);
  return encode_utf8(result);
}

std::string capitalize(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string result;
  for (size_t at = 0; at < source.size(); ++at) {
    at == 0 ? append_title(source[0], result) : append_lower(source, at, result);
  }
  return encode_utf8(result);
}

std::string to_title(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string result;
  bool was_cased = false;
  for (size_t at = 0; at < source.size(); ++at) {
    was_cased ? append_lower(source, at, result) : append_title(source[at], result);
    was_cased = is_cased(source[at]);
  }
  return encode_utf8(result);
}

std::string swap_case(std::string_view text) {
  const std::u32string source = decode_utf8(text);
  std::u32string result;
  for (size_t at = 0; at < source.size(); ++at) {
    if (is_upper(source[at])) {
      append_lower(source, at, result);
    } else if (is_lower(source[at])) {
      append_upper(source[at], result);
    } else {
      result += source[at];
    }
  }
  return encode_utf8(result);
}

std::string_view strip(std::string_view text, bool left, bool right,
                       const std::string_view* characters) {
  const std::u32string set = characters == nullptr ? std::u32string() : decode_utf8(*characters);
  const auto matches = [&](size_t at) {
    const char32_t c = next_code_point(text, at);
    return characters == nullptr ? is_space(c) : set.find(c) != set.npos;
  };
  while (right && !text.empty()) {
    const size_t last = previous_start(text, text.size());
    if (!matches(last)) break;
    text = text.substr(0, last);
  }
  while (left && !text.empty() && matches(0)) {
    size_t next = 0;
    next_code_point(text, next);
    text.remove_prefix(next);
  }
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text, at);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t max_splits, bool from_right) {
  std::vector<std::string_view> parts;
  const auto may_split = [&] {
    return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits;
  };
  if (separator.empty()) {  // runs of whitespace; none at the ends, however many splits are left
    text = from_right ? strip(text, false, true) : strip(text, true, false);
    while (!text.empty() && may_split()) {
      if (from_right) {
        size_t begin = text.size();
        while (begin > 0) {
          const size_t last = previous_start(text, begin);
          size_t next = last;
          if (is_space(next_code_point(text, next))) break;
          begin = last;
        }
        parts.push_back(text.substr(begin));
        text = strip(text.substr(0, begin), false, true);
      } else {
        size_t end = 0;
        while (end < text.size()) {
          size_t next = end;
          if (is_space(next_code_point(text, next))) break;
          end = next;
        }
        parts.push_back(text.substr(0, end));
        text = strip(text.substr(end), true, false);
      }
    }
    if (!text.empty()) parts.push_back(from_right ? strip(text, false, true) : text);
  } else {
    while (may_split()) {
      const size_t at = from_right ? text.rfind(separator) : text.find(separator);
      if (at == text.npos) break;
      const std::string_view before = text.substr(0, at),
                             after = text.substr(at + separator.size());
      parts.push_back(from_right ? after : before);
      text = from_right ? before : after;
    }
    parts.push_back(text);
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t max_count) {
  std::string result;
  size_t copied = 0;
  for_each_match(text, from, max_count, [&](size_t at) {
    result += text.substr(copied, at - copied);
    result += to;
    copied = at + from.size();
  });
  result += text.substr(copied);
  return result;
}

size_t replaced_size(std::string_view text, std::string_view from, std::string_view to,
                     int64_t max_count) {
  size_t count = 0;
  for_each_match(text, from, max_count, [&](size_t) { ++count; });
  return text.size() - count * from.size() + count * to.size();
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace vitrine::chat
