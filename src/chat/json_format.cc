// SPDX-License-Identifier: Apache-2.0
// Values as JSON, as Python's json.dumps() writes them.
#include <algorithm>
#include <cmath>

#include "core/utf8.h"
#include "runtime.h"
#include "value.h"
#include "writer.h"

namespace vitrine::chat {

namespace {

std::string quoted_text(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  const auto escape = [&out](char32_t unit) {
    out += "\\u";
    append_hex(unit, 4, out);
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    switch (c) {
      case '"': out += "\\\""; continue;
      case '\\': out += "\\\\"; continue;
      case '\n': out += "\\n"; continue;
      case '\r': out += "\\r"; continue;
      case '\t': out += "\\t"; continue;
      case '\f': out += "\\f"; continue;
      case '\b': out += "\\b"; continue;
      default: break;
    }
    if (c >= 0x20 && (c < 0x7f || !ensure_ascii)) {
      out += text.substr(begin, at - begin);
    } else if (c < 0x10000) {
      escape(c);
    } else {
      escape(0xd800 + ((c - 0x10000) >> 10));
      escape(0xdc00 + ((c - 0x10000) & 0x3ff));
    }
  }
  return out + "\"";
}

std::string json_number(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return float_text(number);
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : writer_(runtime), style_(style) {}

  void write(const Value& value) {
    if (const Text* text = value.as_text()) {
      writer_.add(quoted_text(text->bytes, style_.ensure_ascii));
    } else if (value.is_none()) {
      writer_.add("null");
    } else if (const auto* flag = value.get_if<bool>()) {
      writer_.add(*flag ? "true" : "false");
    } else if (const auto* number = value.get_if<int64_t>()) {
      writer_.add(std::to_string(*number));
    } else if (const auto* number = value.get_if<double>()) {
      writer_.add(json_number(*number));
    } else if (const List* list = value.as_list();
               list != nullptr && list->kind <= ListKind::kTuple) {
      write_list(list->items);
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict);
    } else {
      writer_.runtime().fail("a " + type_name(value) +
                             " cannot be written as JSON; expected text, numbers, lists and dicts");
    }
  }
  std::string take() { return writer_.take(); }

 private:
  void break_line() {
    if (!style_.has_indent) return;
    writer_.add("\n");
    for (int i = 0; i < level_; ++i) writer_.add(style_.indent);
  }

  void write_list(const Values& items) {
    if (items.empty()) return writer_.add("[]");
    writer_.add("[");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) writer_.add(style_.item_separator);
      break_line();
      write(items[i]);
    }
    --level_;
    break_line();
    writer_.add("]");
  }

  std::string key(const Value& value) {
    if (const Text* text = value.as_text()) return text->bytes;
    if (value.is_none()) return "null";
    if (const auto* flag = value.get_if<bool>()) return *flag ? "true" : "false";
    if (const auto* number = value.get_if<int64_t>()) return std::to_string(*number);
    if (const auto* number = value.get_if<double>()) return json_number(*number);
    writer_.runtime().fail("a " + type_name(value) +
                           " is a key in JSON; expected text or a number");
  }

  void write_dict(const Dict& dict) {
    if (dict.items.empty()) return writer_.add("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    writer_.runtime().spend(8 * items.size());
    if (style_.sort_keys) {
      std::ranges::stable_sort(items, [&](const auto* a, const auto* b) {
        return compare(writer_.runtime(), a->first, b->first, "<") < 0;
      });
    }
    writer_.add("{");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) writer_.add(style_.item_separator);
      break_line();
      writer_.add(quoted_text(key(items[i]->first), style_.ensure_ascii));
      writer_.add(style_.key_separator);
      write(items[i]->second);
    }
    --level_;
    break_line();
    writer_.add("}");
  }

  Writer writer_;
  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value);
  return writer.take();
}

}  // namespace vitrine::chat
