// SPDX-License-Identifier: Apache-2.0
// `format % arguments`, as Python's str and MarkupSafe's Markup do it.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/json_text.h"
#include "core/utf8.h"
#include "number_text.h"
#include "runtime.h"
#include "text.h"
#include "value.h"
#include "writer.h"

namespace vitrine::chat {

namespace {

constexpr int kMaxWidth = 10000;
constexpr int kMaxPrecision = 300;

struct Conversion {
  std::string_view flags;
  bool is_left = false;  ///< '-', or a negative width
  int width = 0, precision = -1;
  char type = 0;

  bool has(char flag) const { return flags.find(flag) != std::string_view::npos; }
};

/// A number's parts: zeros of a width stand between its prefix and its digits.
struct NumberText {
  bool is_negative = false;
  std::string prefix, digits;
};

std::string fill(const std::string& text, const Conversion& conversion) {
  const auto missing = conversion.width - static_cast<int64_t>(count_code_points(text));
  if (missing <= 0) return text;
  const std::string space(static_cast<size_t>(missing), ' ');
  return conversion.is_left ? text + space : space + text;
}

std::string fill(const NumberText& number, const Conversion& conversion) {
  std::string before = number.is_negative    ? "-"
                       : conversion.has('+') ? "+"
                       : conversion.has(' ') ? " "
                                             : "";
  before += number.prefix;
  const auto size = static_cast<int64_t>(before.size() + number.digits.size());
  if (conversion.has('0') && !conversion.is_left && size < conversion.width) {
    before.append(static_cast<size_t>(conversion.width - size), '0');
  }
  return fill(before + number.digits, conversion);
}

/// As C's printf in the "C" locale, whatever the host's is.
std::string digits_of(double number, std::chars_format format, int precision) {
  char buffer[kMaxPrecision + 400];
  const auto written = std::to_chars(buffer, buffer + sizeof(buffer), number, format, precision);
  return {buffer, written.ptr};
}

/// '#': a point in any case; and %g keeps its zeros, so its form is chosen here.
std::string alternate_digits(double number, char type, int precision) {
  bool is_fixed = type == 'f';
  if (type == 'g') {
    precision = std::max(precision, 1) - 1;
    const std::string sample = digits_of(number, std::chars_format::scientific, precision);
    const int exponent = std::atoi(sample.c_str() + sample.find('e') + 1);
    is_fixed = exponent >= -4 && exponent <= precision;
    if (is_fixed) precision -= exponent;
  }
  std::string digits = digits_of(
      number, is_fixed ? std::chars_format::fixed : std::chars_format::scientific, precision);
  if (precision == 0) digits.insert(std::min(digits.find('e'), digits.size()), 1, '.');
  return digits;
}

NumberText float_number(double number, const Conversion& conversion) {
  NumberText text;
  text.is_negative = std::signbit(number) && !std::isnan(number);
  const int precision = conversion.precision < 0 ? 6 : static_cast<int>(conversion.precision);
  const char type = static_cast<char>(std::tolower(conversion.type));
  const double size = std::abs(number);
  if (conversion.has('#') && std::isfinite(size)) {
    text.digits = alternate_digits(size, type, precision);
  } else {
    text.digits = digits_of(size,
                            type == 'f'   ? std::chars_format::fixed
                            : type == 'e' ? std::chars_format::scientific
                                          : std::chars_format::general,
                            precision);
  }
  if (type != conversion.type) std::ranges::transform(text.digits, text.digits.begin(), ::toupper);
  return text;
}

NumberText whole_number(int64_t number, const Conversion& conversion) {
  NumberText text;
  text.is_negative = number < 0;
  const auto bits = static_cast<uint64_t>(number);
  const int base = conversion.type == 'd' ? 10 : conversion.type == 'o' ? 8 : 16;
  char buffer[32];
  const auto written =
      std::to_chars(buffer, buffer + sizeof(buffer), number < 0 ? 0 - bits : bits, base);
  text.digits.assign(buffer, written.ptr);
  for (char& digit : text.digits) {
    if (conversion.type == 'X') digit = static_cast<char>(std::toupper(digit));
  }
  const auto least = static_cast<size_t>(std::max(conversion.precision, 0));
  if (text.digits.size() < least) text.digits.insert(0, least - text.digits.size(), '0');
  if (conversion.has('#') && base != 10) text.prefix = std::string("0") + conversion.type;
  return text;
}

class PercentFormat {
 public:
  PercentFormat(Runtime& runtime, const Text& format, const Value& arguments)
      : runtime_(runtime), text_(format.bytes), escapes_(format.is_markup), arguments_(arguments) {
    const List* list = arguments.as_list();
    if (list != nullptr && list->kind == ListKind::kTuple) tuple_ = list;
    dict_ = arguments.as_dict();
  }

  std::string run() {
    Writer out(runtime_);
    while (at_ < text_.size()) {
      const size_t next = std::min(text_.find('%', at_), text_.size());
      out.add(text_.substr(at_, next - at_));
      at_ = next;
      if (at_ < text_.size()) {
        ++at_;
        out.add(read_conversion());
      }
    }
    const List* list = arguments_.as_list();
    const bool takes_keys =
        dict_ != nullptr || arguments_.is_undefined() || (list != nullptr && list->is_sequence());
    if (tuple_ != nullptr ? used_ < tuple_->items.size() : !takes_keys && used_ == 0) {
      runtime_.fail("a format has more arguments than conversions");
    }
    return out.take();
  }

 private:
  const Value& next_argument() {
    const size_t count = tuple_ != nullptr ? tuple_->items.size() : 1;
    if (used_ >= count) runtime_.fail("a format has fewer arguments than conversions");
    ++used_;
    if (named_ != nullptr) return *named_;
    return tuple_ != nullptr ? tuple_->items[used_ - 1] : arguments_;
  }

  void read_name() {
    size_t depth = 1, close = at_ + 1;
    for (; close < text_.size(); ++close) {
      if (text_[close] == '(') ++depth;
      if (text_[close] == ')' && --depth == 0) break;
    }
    if (close >= text_.size() || dict_ == nullptr) {
      runtime_.fail("a format names its argument; expected a dict of arguments");
    }
    const std::string_view name = text_.substr(at_ + 1, close - at_ - 1);
    named_ = dict_->find(name);
    if (named_ == nullptr) {
      runtime_.fail("a format names the argument " + quote_text(name) + ", which is not given");
    }
    used_ = 0;
    at_ = close + 1;
  }

  /// Digits, or '*' for an argument.
  int read_number(int limit) {
    int64_t number = 0;
    if (at_ < text_.size() && text_[at_] == '*') {
      ++at_;
      const Value& given = next_argument();
      if (!given.as_integer(number) || escapes_) {
        runtime_.fail("'*' in a format gets a " + type_name(given) + "; expected a whole number");
      }
    } else {
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && number <= limit) {
        number = 10 * number + (text_[at_++] - '0');
      }
    }
    if (number > limit || number < -limit) {
      runtime_.fail("a width in a format is above " + std::to_string(limit));
    }
    return static_cast<int>(number);
  }

  std::string read_conversion() {
    Conversion conversion;
    if (at_ < text_.size() && text_[at_] == '%') return std::string(1, text_[at_++]);
    if (at_ < text_.size() && text_[at_] == '(') read_name();
    const size_t flags_end = std::min(text_.find_first_not_of("#0- +", at_), text_.size());
    conversion.flags = text_.substr(at_, flags_end - at_);
    at_ = flags_end;
    const int width = read_number(kMaxWidth);
    conversion.width = std::abs(width);
    conversion.is_left = width < 0 || conversion.has('-');
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      conversion.precision = std::max(read_number(kMaxPrecision), 0);
    }
    // Lengths of C's types mean nothing here.
    if (at_ < text_.size() && std::string_view("hlL").find(text_[at_]) != std::string_view::npos)
      ++at_;
    if (at_ >= text_.size()) runtime_.fail("a format ends within a conversion; expected %%");
    conversion.type = text_[at_++];
    if (std::string_view("iu").find(conversion.type) != std::string_view::npos)
      conversion.type = 'd';
    return shown(next_argument(), conversion);
  }

  std::string shown(const Value& value, const Conversion& conversion) {
    switch (conversion.type) {
      case 's':
      case 'r':
      case 'a': return fill(cut(text_of(value, conversion.type), conversion), conversion);
      case 'c': return fill(character(value), conversion);
      case 'd':
      case 'x':
      case 'X':
      case 'o': return fill(whole_number(whole(value, conversion), conversion), conversion);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': return fill(float_number(number(value, conversion), conversion), conversion);
      default: runtime_.fail("a format has an unknown conversion; expected %s, %d, %f, %x or %%");
    }
  }

  static std::string cut(const std::string& text, const Conversion& conversion) {
    if (conversion.precision < 0) return text;
    return text.substr(0, byte_offset(text, static_cast<size_t>(conversion.precision)));
  }

  std::string text_of(const Value& value, char type) {
    if (type == 's') return escapes_ ? safe_text(runtime_, value) : to_text(runtime_, value);
    std::string repr = to_repr(runtime_, value);
    if (escapes_) repr = escape_markup(repr);
    return type == 'a' ? ascii_repr(repr) : repr;
  }

  std::string character(const Value& value) {
    int64_t code = -1;
    const Text* text = value.as_text();
    const bool is_text = text != nullptr && count_code_points(text->bytes) == 1;
    const bool is_code = value.as_integer(code) && code >= 0 && code <= 0x10ffff &&
                         !(code >= 0xd800 && code < 0xe000);
    if (escapes_ || (!is_text && !is_code)) refuse(value, 'c', "a character or its number");
    std::string result = is_text ? text->bytes : "";
    if (is_code) append_utf8(static_cast<char32_t>(code), result);
    return result;
  }

  int64_t whole(const Value& value, const Conversion& conversion) {
    int64_t whole = 0;
    double number = 0;
    const Text* text = value.as_text();
    // A safe format asks int() for %d, which reads text, and has none of the others.
    if (escapes_ && conversion.type != 'd')
      refuse(value, conversion.type, "%d or %s in a safe format");
    if (escapes_ && text != nullptr) {
      runtime_.spend(text->bytes.size());
      const WholeText found = parse_whole(text->bytes, 10, whole);
      if (found == WholeText::kTooLarge) refuse(value, 'd', "a whole number of 64 bits");
      if (found == WholeText::kWhole) return whole;
    }
    if (value.as_integer(whole)) return whole;
    if (conversion.type != 'd' || !value.as_number(number)) {
      refuse(value, conversion.type, "a whole number");
    }
    if (!(std::abs(number) < 9.2e18)) {
      runtime_.fail("'%d' gets " + float_text(number) + "; expected a whole number of 64 bits");
    }
    return static_cast<int64_t>(number);
  }

  double number(const Value& value, const Conversion& conversion) {
    double number = 0;
    const Text* text = value.as_text();
    if (escapes_ && text != nullptr) {
      runtime_.spend(text->bytes.size());
      if (parse_float(text->bytes, number)) return number;
    }
    if (!value.as_number(number)) refuse(value, conversion.type, "a number");
    return number;
  }

  [[noreturn]] void refuse(const Value& value, char type, const std::string& expected) {
    runtime_.fail(std::string("'%") + type + "' gets a " + type_name(value) + "; expected " +
                  expected);
  }

  Runtime& runtime_;
  std::string_view text_;
  bool escapes_;
  const Value& arguments_;
  const List* tuple_ = nullptr;
  const Dict* dict_ = nullptr;
  const Value* named_ = nullptr;  ///< what the last name stood for: its one argument
  size_t used_ = 0, at_ = 0;
};

}  // namespace

Value format_percent(Runtime& runtime, const Text& format, const Value& arguments) {
  return make_text(runtime, PercentFormat(runtime, format, arguments).run(), format.is_markup);
}

}  // namespace vitrine::chat
