// SPDX-License-Identifier: Apache-2.0
#include "number_text.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

#include "characters.h"
#include "core/utf8.h"

namespace vitrine::chat {

namespace {

/// Without spaces around, digits of any script as ASCII's. Of ASCII, only C's spaces are spaces
/// here.
std::string ascii_digits(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (is_decimal(c)) {
      result += static_cast<char>('0' + decimal_value(c));
    } else if (c >= 0x80 && is_space(c)) {
      result += ' ';
    } else {
      result += text.substr(begin, at - begin);
    }
  }
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const size_t first = std::min(result.find_first_not_of(kSpaces), result.size());
  return result.substr(first, result.find_last_not_of(kSpaces) + 1 - first);
}

/// The base that "0x", "0o" or "0b" stands for; 0 where there is no prefix.
int64_t prefixed_base(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 0;
  const char letter = static_cast<char>(digits[1] | 0x20);
  return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
}

/// Tells of the text of a number beyond what a double holds whether it is too large, rather than
/// too small.
bool is_huge(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  int64_t exponent = 0;
  const bool is_negative = text.substr(e).starts_with("e-") || text.substr(e).starts_with("E-");
  for (const char c : text.substr(e)) {
    if (c >= '0' && c <= '9') exponent = std::min<int64_t>(10 * exponent + (c - '0'), 1 << 30);
  }
  const std::string_view mantissa = text.substr(0, e);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const size_t first = mantissa.find_first_of("123456789");
  return static_cast<int64_t>(point) - static_cast<int64_t>(first) +
             (is_negative ? -exponent : exponent) >
         0;
}

}  // namespace

WholeText parse_whole(std::string_view text, int64_t base, int64_t& out) {
  if (base != 0 && (base < 2 || base > 36)) return WholeText::kNone;
  const std::string ascii = ascii_digits(text);
  std::string_view view = ascii;
  const bool is_negative = view.starts_with('-');
  if (is_negative || view.starts_with('+')) view.remove_prefix(1);
  const int64_t prefix = prefixed_base(view);
  // Without a prefix, base 0 takes no leading zeros: only zero itself.
  const bool must_be_zero = base == 0 && prefix == 0 && view.starts_with('0');
  if (base == 0) base = prefix == 0 ? 10 : prefix;
  if (prefix == base) {
    view.remove_prefix(2);
    if (view.starts_with('_')) view.remove_prefix(1);
  }
  if (view.empty() || view.front() == '_' || view.back() == '_' || view.find("__") != view.npos ||
      view.front() == '-') {
    return WholeText::kNone;
  }
  std::string digits = is_negative ? "-" : "";
  for (const char c : view) {
    if (c != '_') digits += c;
  }
  const char* end = digits.data() + digits.size();
  const auto [stop, status] = std::from_chars(digits.data(), end, out, static_cast<int>(base));
  if (stop != end) return WholeText::kNone;
  if (status == std::errc::result_out_of_range) return WholeText::kTooLarge;
  if (status != std::errc() || (must_be_zero && out != 0)) return WholeText::kNone;
  return WholeText::kWhole;
}

bool parse_float(std::string_view text, double& out) {
  const std::string ascii = ascii_digits(text);
  std::string digits;
  for (size_t i = 0; i < ascii.size(); ++i) {
    const char c = ascii[i];
    const auto is_digit_at = [&](size_t at) {
      return at < ascii.size() && ascii[at] >= '0' && ascii[at] <= '9';
    };
    if (c == '_' && i > 0 && is_digit_at(i - 1) && is_digit_at(i + 1)) continue;
    digits += c;
  }
  // from_chars reads no leading '+', and "nan(…)".
  std::string_view view = digits;
  if (view.starts_with('+')) view.remove_prefix(1);
  if (view.empty() || view.starts_with('+') || view.find('(') != view.npos) return false;
  const bool has_two_signs = view.size() != digits.size() && view.starts_with('-');
  if (has_two_signs) return false;
  const auto [stop, status] = std::from_chars(view.data(), view.data() + view.size(), out);
  if (status == std::errc::result_out_of_range && stop == view.data() + view.size()) {
    out = is_huge(view) ? std::numeric_limits<double>::infinity() : 0.0;
    if (view.starts_with('-')) out = -out;
    return true;
  }
  return status == std::errc() && stop == view.data() + view.size();
}

}  // namespace vitrine::chat
