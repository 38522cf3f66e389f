// SPDX-License-Identifier: Apache-2.0
// Values as text: str(), repr() and ascii().
#include <charconv>
#include <cmath>
#include <cstdio>

#include "characters.h"
#include "core/utf8.h"
#include "runtime.h"
#include "text.h"
#include "value.h"
#include "writer.h"

namespace vitrine::chat {

namespace {

void append_escape(char32_t c, std::string& out) {
  out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
  append_hex(c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8, out);
}

std::string quote(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char mark = has_single && !has_double ? '"' : '\'';
  std::string out(1, mark);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
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
    } else {
      append_escape(c, out);
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

std::string safe_text(Runtime& runtime, const Value& value) {
  const std::string text = to_text(runtime, value);
  runtime.spend(text.size());
  return value.is_markup() ? text : escape_markup(text);
}

std::string to_repr(Runtime& runtime, const Value& value) {
  Writer writer(runtime);
  write_repr(writer, value, 0);
  return writer.take();
}

std::string ascii_repr(std::string_view repr) {
  std::string out;
  for (size_t at = 0; at < repr.size();) {
    const char32_t c = next_code_point(repr, at);
    c < 0x80 ? void(out += static_cast<char>(c)) : append_escape(c, out);
  }
  return out;
}

}  // namespace vitrine::chat
