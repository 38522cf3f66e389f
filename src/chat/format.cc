// Values as text: str(), repr(), %.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "characters.h"
#include "runtime.h"
#include "text.h"
#include "tokenizer/unicode.h"
#include "value.h"
#include "writer.h"

namespace vitrine::chat {

namespace {

constexpr int kMaxWidth = 10000;
constexpr int kMaxPrecision = 300;

std::string quote(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char mark = has_single && !has_double ? '"' : '\'';
  std::string out(1, mark);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = tokenizer::next_code_point(text, at);
    if (c == static_cast<char32_t>(mark) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(begin, at - begin);
    } else if (c < 0x100) {
      out += "\\x";
      append_hex(c, 2, out);
    } else if (c < 0x10000) {
      out += "\\u";
      append_hex(c, 4, out);
    } else {
      out += "\\U";
      append_hex(c, 8, out);
    }
  }
  return out + mark;
}

void write_repr(Writer& writer, const Value& value, int depth);

void write_items(Writer& writer, const Values& items, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) writer.add(", ");
    write_repr(writer, items[i], depth + 1);
  }
}

void write_list(Writer& writer, const List& list, int depth) {
  switch (list.kind) {
    case ListKind::kTuple:
      writer.add("(");
      write_items(writer, list.items, depth);
      writer.add(list.items.size() == 1 ? ",)" : ")");
      return;
    case ListKind::kRange: writer.add(list.name); return;
    case ListKind::kIterator: writer.add("<generator object>"); return;
    case ListKind::kView:
      writer.add(list.name + "([");
      write_items(writer, list.items, depth);
      writer.add("])");
      return;
    case ListKind::kList:
      writer.add("[");
      write_items(writer, list.items, depth);
      writer.add("]");
  }
}

void write_dict(Writer& writer, const std::vector<std::pair<Value, Value>>& items, int depth) {
  writer.add("{");
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) writer.add(", ");
    write_repr(writer, items[i].first, depth + 1);
    writer.add(": ");
    write_repr(writer, items[i].second, depth + 1);
  }
  writer.add("}");
}

void write_repr(Writer& writer, const Value& value, int depth) {
  if (depth > 2 * kMaxValueDepth) writer.runtime().fail("a namespace holds itself and is printed");
  if (value.is_undefined()) return writer.add("Undefined");
  if (value.is_none()) return writer.add("None");
  if (const auto* flag = value.get_if<bool>()) return writer.add(*flag ? "True" : "False");
  if (const auto* number = value.get_if<int64_t>()) return writer.add(std::to_string(*number));
  if (const auto* number = value.get_if<double>()) return writer.add(float_text(*number));
  if (const Text* text = value.as_text()) {
    return writer.add(text->is_markup ? "Markup(" + quote(text->bytes) + ")" : quote(text->bytes));
  }
  if (const List* list = value.as_list()) return write_list(writer, *list, depth);
  if (const Dict* dict = value.as_dict()) return write_dict(writer, dict->items, depth);
  if (const auto* space = value.get_if<std::shared_ptr<Namespace>>()) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [name, item] : (*space)->attributes)
      items.emplace_back(Value::text(name), item);
    writer.add("<Namespace ");
    write_dict(writer, items, depth + 1);
    return writer.add(">");
  }
  if (const auto* loop = value.get_if<std::shared_ptr<Loop>>()) {
    return writer.add("<LoopContext " + std::to_string((*loop)->index + 1) + "/" +
                      std::to_string((*loop)->items->items.size()) + ">");
  }
  if (const auto* callable = value.get_if<std::shared_ptr<const Callable>>()) {
    return writer.add("<function " + (*callable)->name + ">");
  }
  writer.add("<Macro>");
}

/// One conversion of `%`.
struct Conversion {
  std::string flags;
  int width = 0, precision = -1;
  char type = 0;
};

std::string padded(std::string text, const Conversion& conversion) {
  const size_t length = count_code_points(text);
  const auto width = static_cast<size_t>(conversion.width);
  if (length >= width) return text;
  const std::string space(width - length, ' ');
  return conversion.flags.find('-') != std::string::npos ? text + space : space + text;
}

std::string format_number(Runtime& runtime, const Value& value, const Conversion& conversion) {
  const std::string spec =
      "%" + conversion.flags + (conversion.width > 0 ? std::to_string(conversion.width) : "") +
      (conversion.precision >= 0 ? "." + std::to_string(conversion.precision) : "");
  char buffer[kMaxWidth + kMaxPrecision + 700];
  double number = 0;
  if (!value.as_number(number)) {
    runtime.fail(std::string("'%") + conversion.type + "' gets a " + type_name(value) +
                 "; expected a number");
  }
  if (std::string_view("eEfFgG").find(conversion.type) != std::string_view::npos) {
    std::snprintf(buffer, sizeof(buffer), (spec + conversion.type).c_str(), number);
    return buffer;
  }
  int64_t whole = 0;
  if (!value.as_integer(whole)) {
    if (conversion.type != 'd' || !(std::abs(number) < 9e18)) {
      runtime.fail(std::string("'%") + conversion.type + "' gets " + float_text(number) +
                   "; expected a whole number of 64 bits");
    }
    whole = static_cast<int64_t>(number);
  }
  if (conversion.type == 'd') {
    std::snprintf(buffer, sizeof(buffer), (spec + "lld").c_str(), static_cast<long long>(whole));
    return buffer;
  }
  if (whole < 0) runtime.fail("'%x' and '%o' get a negative number; expected 0 or more");
  std::snprintf(buffer, sizeof(buffer), (spec + "ll" + conversion.type).c_str(),
                static_cast<unsigned long long>(whole));
  return buffer;
}

int read_number(std::string_view text, size_t& at, int limit, Runtime& runtime) {
  int number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    number = 10 * number + (text[at++] - '0');
    if (number > limit) runtime.fail("a width in a format is above " + std::to_string(limit));
  }
  return number;
}

}  // namespace

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto written =
      std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific);
  std::string text(buffer, written.ptr);
  const size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  const std::string sign = text[0] == '-' ? "-" : "";
  std::string digits = text.substr(sign.size(), mark - sign.size());
  std::erase(digits, '.');
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    if (count > 1) digits.insert(1, ".");
    const std::string size = std::to_string(std::abs(exponent));
    return sign + digits + (exponent < 0 ? "e-" : "e+") + (size.size() < 2 ? "0" : "") + size;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  digits.insert(static_cast<size_t>(exponent + 1), ".");
  return sign + digits;
}

std::string to_text(Runtime& runtime, const Value& value) {
  if (const Text* text = value.as_text()) {
    runtime.spend(text->bytes.size());
    return text->bytes;
  }
  if (value.is_undefined()) return {};
  return to_repr(runtime, value);
}

std::string to_repr(Runtime& runtime, const Value& value) {
  Writer writer(runtime);
  write_repr(writer, value, 0);
  return writer.take();
}

std::string format_percent(Runtime& runtime, std::string_view text, const Value& arguments) {
  const List* tuple = arguments.as_list();
  if (tuple != nullptr && tuple->kind != ListKind::kTuple) tuple = nullptr;
  const Dict* dict = arguments.as_dict();
  size_t used = 0;
  bool is_single_used = false;
  Writer out(runtime);
  for (size_t at = 0; at < text.size();) {
    const size_t next = std::min(text.find('%', at), text.size());
    out.add(text.substr(at, next - at));
    if (next == text.size()) break;
    at = next + 1;
    Conversion conversion;
    const Value* value = nullptr;
    if (at < text.size() && text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == text.npos || dict == nullptr) {
        runtime.fail("a format names its argument; expected a dict of arguments");
      }
      const std::string_view name = text.substr(at + 1, close - at - 1);
      value = dict->find(name);
      if (value == nullptr) {
        runtime.fail("a format names the argument '" + std::string(name) + "', which is not given");
      }
      at = close + 1;
    }
    while (at < text.size() && std::string_view("#0- +").find(text[at]) != std::string_view::npos) {
      if (conversion.flags.find(text[at]) == std::string::npos) conversion.flags += text[at];
      ++at;
    }
    conversion.width = read_number(text, at, kMaxWidth, runtime);
    if (at < text.size() && text[at] == '.') {
      conversion.precision = read_number(text, ++at, kMaxPrecision, runtime);
    }
    conversion.type = at < text.size() ? text[at++] : '\0';
    if (conversion.type == '%') {
      out.add("%");
      continue;
    }
    if (value == nullptr) {
      const bool is_missing = tuple != nullptr ? used >= tuple->items.size() : is_single_used;
      if (is_missing) runtime.fail("a format has fewer arguments than conversions");
      value = tuple != nullptr ? &tuple->items[used++] : &arguments;
      is_single_used = true;
    }
    if (conversion.type == 'i' || conversion.type == 'u') conversion.type = 'd';
    switch (conversion.type) {
      case 's':
      case 'r': {
        const std::string shown =
            conversion.type == 's' ? to_text(runtime, *value) : to_repr(runtime, *value);
        const size_t length = conversion.precision < 0
                                  ? shown.size()
                                  : byte_offset(shown, static_cast<size_t>(conversion.precision));
        out.add(padded(shown.substr(0, length), conversion));
        break;
      }
      case 'd':
      case 'x':
      case 'X':
      case 'o':
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': out.add(format_number(runtime, *value, conversion)); break;
      default: runtime.fail("a format has an unknown conversion; expected %s, %d, %f, %x or %%");
    }
  }
  const bool is_left = tuple != nullptr ? used < tuple->items.size()
                                        : dict == nullptr && arguments.as_list() == nullptr &&
                                              !arguments.is_undefined() && !is_single_used;
  if (is_left) runtime.fail("a format has more arguments than conversions");
  return out.take();
}

}  // namespace vitrine::chat
