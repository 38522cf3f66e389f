// SPDX-License-Identifier: Apache-2.0
#include "characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "text.h"
#include "tokenizer/unicode.h"

namespace vitrine::chat {

namespace {

struct LongCase {
  char32_t code_point;
  const char32_t *upper, *title;
};

struct Range {
  char32_t first, last;
};

#include "character_tables.inc"

bool holds(std::span<const Range> ranges, char32_t code_point) {
  const auto after = std::ranges::upper_bound(ranges, code_point, {}, &Range::first);
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

const LongCase* find_long_case(char32_t code_point) {
  const auto* found = std::ranges::lower_bound(kLongCases, code_point, {}, &LongCase::code_point);
  return found == std::end(kLongCases) || found->code_point != code_point ? nullptr : found;
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
  const utf8proc_category_t kind = category(c);
  const bool by_category = kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME ||
                           kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_LM ||
                           kind == UTF8PROC_CATEGORY_SK;
  return by_category != holds(kCaseIgnorableOthers, c);
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

}  // namespace

bool is_space(char32_t c) { return (c >= 0x1c && c <= 0x1f) || tokenizer::is_whitespace(c); }

bool is_alphabetic(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

int decimal_value(char32_t decimal) {
  // Each script has its ten in order; where sets stand side by side, every tenth begins one.
  char32_t zero = decimal;
  while (zero > 0 && is_decimal(zero - 1)) --zero;
  return static_cast<int>((decimal - zero) % 10);
}

bool is_digit(char32_t c) { return is_decimal(c) != holds(kDigits, c); }
bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  const bool by_category = kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
  return by_category != holds(kNumericLetters, c);
}
bool is_upper(char32_t c) {
  return (category(c) == UTF8PROC_CATEGORY_LU) != holds(kUpperOthers, c);
}
bool is_lower(char32_t c) {
  return (category(c) == UTF8PROC_CATEGORY_LL) != holds(kLowerOthers, c);
}
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_word(char32_t c) { return c == '_' || is_alphabetic(c) || is_numeric(c); }
bool is_word_start(char32_t c) { return c == '_' || is_alphabetic(c); }

bool is_identifier_start(char32_t c) {
  const bool by_category = is_word_start(c) || category(c) == UTF8PROC_CATEGORY_NL;
  return by_category != holds(kIdentifierStartSwaps, c);
}

bool is_identifier_part(char32_t c) {
  const utf8proc_category_t kind = category(c);
  const bool by_category = is_alphabetic(c) || is_decimal(c) || kind == UTF8PROC_CATEGORY_NL ||
                           kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
                           kind == UTF8PROC_CATEGORY_PC;
  return by_category != holds(kIdentifierPartSwaps, c);
}

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

}  // namespace vitrine::chat
