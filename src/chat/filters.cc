// SPDX-License-Identifier: Apache-2.0
// Filters of single values; those of numbers and lists are in number_filters.cc and
// sequence_filters.cc.
#include "filters.h"

#include <algorithm>

#include "characters.h"
#include "text.h"

namespace vitrine::chat {

namespace {

std::string input_text(Interpreter& interpreter, const Value& input) {
  return to_text(interpreter.runtime(), input);
}

template <std::string (*change)(std::string_view), bool keeps_mark = true>
Value change_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {});
  const std::string text = input_text(interpreter, input);
  runtime.spend(4 * text.size());
  return make_text(runtime, change(text), keeps_mark && input.is_markup());
}

/// Jinja's own: words begin after whitespace and opening brackets.
std::string title_words(std::string_view text) {
  std::string out;
  const std::u32string characters = decode_utf8(text);
  const auto separates = [](char32_t c) {
    return is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  };
  for (size_t at = 0; at < characters.size();) {
    size_t end = at + 1;
    while (end < characters.size() && separates(characters[end]) == separates(characters[at]))
      ++end;
    out += to_upper(encode_utf8(std::u32string_view(characters).substr(at, 1)));
    out += to_lower(encode_utf8(std::u32string_view(characters).substr(at + 1, end - at - 1)));
    at = end;
  }
  return out;
}

Value trim_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"chars"});
  const std::string text = input_text(interpreter, input);
  if (bound.get(0) == nullptr || bound.value(0).is_none()) {
    return make_text(runtime, std::string(strip(text, true, true)), input.is_markup());
  }
  const std::string characters = bound.text(0, "");
  const std::string_view view = characters;
  runtime.spend(text.size() * (1 + characters.size()));
  return make_text(runtime, std::string(strip(text, true, true, &view)), input.is_markup());
}

Value string_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  if (input.as_text() != nullptr) return input;
  return make_text(interpreter.runtime(), input_text(interpreter, input));
}

Value safe_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  return make_text(interpreter.runtime(), input_text(interpreter, input), true);
}

template <bool is_forced>
Value escape_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {});
  if (!is_forced && input.is_markup()) return input;
  return make_text(runtime, escape_markup(input_text(interpreter, input)), true);
}

Value replace_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"old", "new", "count"}, 2);
  const std::string text = input_text(interpreter, input);
  const std::string from = to_text(runtime, bound.value(0)), to = to_text(runtime, bound.value(1));
  const bool has_count = bound.get(2) != nullptr && !bound.value(2).is_none();
  const int64_t count = has_count ? bound.integer(2, -1) : -1;
  runtime.spend(text.size() + replaced_size(text, from, to, count));
  return make_text(runtime, replace_all(text, from, to, count));
}

Value default_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {"default_value", "boolean"});
  const bool is_missing = input.is_undefined() || (bound.boolean(1, false) && !is_true(input));
  if (!is_missing) return input;
  return bound.get(0) != nullptr ? bound.value(0) : Value::text("");
}

Value indent_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"width", "first", "blank"});
  refuse_undefined(interpreter, input);
  if (input.as_text() == nullptr) {
    runtime.fail("'indent' gets a " + type_name(input) + "; expected text");
  }
  const bool is_text = bound.get(0) != nullptr && bound.value(0).as_text() != nullptr;
  const int64_t width = is_text ? 0 : std::max<int64_t>(bound.integer(0, 4), 0);
  runtime.spend(static_cast<uint64_t>(width));
  const std::string space =
      is_text ? bound.text(0, "") : std::string(static_cast<size_t>(width), ' ');
  const std::string source = input.as_text()->bytes + "\n";
  const bool begins_first = bound.boolean(1, false), with_blank = bound.boolean(2, false);
  // A safe `width` escapes what it is joined to: not the first line, which only `first` reaches.
  const bool escapes = is_text && bound.value(0).is_markup() && !input.is_markup();
  std::string out;
  bool is_first = true;
  for (const std::string_view line : split_lines(source)) {
    const bool escapes_line = escapes && (with_blank || !is_first);
    const std::string shown = escapes_line ? escape_markup(line) : std::string(line);
    runtime.spend(line.size() + shown.size() + space.size());
    if (!is_first) out += "\n";
    if (!is_first && (with_blank || !line.empty())) out += space;
    out += shown;
    is_first = false;
  }
  if (begins_first) out = space + (escapes && !with_blank ? escape_markup(out) : out);
  runtime.spend(out.size());
  return make_text(runtime, std::move(out),
                   input.is_markup() || (escapes && (with_blank || begins_first)));
}

Value truncate_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"length", "killwords", "end", "leeway"});
  const std::string end = bound.text(2, "...");
  const int64_t length = bound.integer(0, 255), leeway = bound.integer(3, 5);
  const auto end_length = static_cast<int64_t>(count_code_points(end));
  if (length < end_length || leeway < 0) {
    runtime.fail("'truncate' gets a length below that of its end; expected a larger one");
  }
  // Without an overflow: no text is that long.
  const int64_t most =
      std::min<int64_t>(length, int64_t{1} << 40) + std::min<int64_t>(leeway, int64_t{1} << 40);
  CallArguments none;
  int64_t size = 0;
  interpreter.filter("length", input, none).as_integer(size);
  if (size <= most) return input;
  if (input.as_text() == nullptr) {
    runtime.fail("'truncate' gets a " + type_name(input) + "; expected text");
  }
  const std::string& text = input.as_text()->bytes;
  std::string_view kept =
      std::string_view(text).substr(0, byte_offset(text, static_cast<size_t>(length - end_length)));
  if (!bound.boolean(1, false)) {
    const size_t space = kept.rfind(' ');
    if (space != kept.npos) kept = kept.substr(0, space);
  }
  const Value end_text = bound.get(2) != nullptr ? bound.value(2) : Value::text(end);
  return binary_operation(runtime, "+", make_text(runtime, std::string(kept), input.is_markup()),
                          end_text);
}

Value center_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"width"});
  CallArguments method_arguments;
  method_arguments.positional.emplace_back(bound.integer(0, 80));
  const Value text = make_text(runtime, input_text(interpreter, input), input.is_markup());
  return interpreter.call(*find_text_method(text, "center"), method_arguments);
}

Value wordcount_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  int64_t count = 0;
  bool was_word = false;
  for (const char32_t c : decode_utf8(input_text(interpreter, input))) {
    if (is_word(c) && !was_word) ++count;
    was_word = is_word(c);
  }
  return Value(count);
}

Value format_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const Value format =
      input.as_text() != nullptr ? input : make_text(runtime, input_text(interpreter, input));
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    runtime.fail("'format' gets both values and named values; expected one kind");
  }
  if (arguments.named.empty()) {
    const Value values = make_list(runtime, arguments.positional, ListKind::kTuple);
    return format_percent(runtime, *format.as_text(), values);
  }
  std::vector<std::pair<Value, Value>> items;
  for (auto& [name, value] : arguments.named) items.emplace_back(Value::text(name), value);
  return format_percent(runtime, *format.as_text(), make_dict(runtime, std::move(items)));
}

Value tojson_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments,
                             {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.boolean(0, false);
  style.sort_keys = bound.boolean(3, false);
  if (bound.get(1) != nullptr && !bound.value(1).is_none()) {
    style.has_indent = true;
    style.item_separator = ",";
    const int64_t width = bound.value(1).as_text() != nullptr ? 0 : bound.integer(1, 0);
    runtime.spend(static_cast<uint64_t>(std::max<int64_t>(width, 0)));
    style.indent = bound.value(1).as_text() != nullptr
                       ? bound.text(1, "")
                       : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  if (bound.get(2) != nullptr && !bound.value(2).is_none()) {
    const ListRef pair = iterate(runtime, bound.value(2));
    if (pair->items.size() != 2) runtime.fail("'tojson' gets separators; expected two texts");
    style.item_separator = to_text(runtime, pair->items[0]);
    style.key_separator = to_text(runtime, pair->items[1]);
  }
  return make_text(runtime, to_json(runtime, input, style));
}

Value attr_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"name"}, 1);
  const std::string name = bound.text(0, "");
  refuse_undefined(interpreter, input);
  const bool has_it = input.get_if<std::shared_ptr<Namespace>>() != nullptr ||
                      find_method(interpreter, input, name).has_value();
  return has_it ? interpreter.attribute(input, name)
                : Value::undefined("a " + type_name(input) + " has no attribute '" + name + "'");
}

}  // namespace

void refuse_undefined(Interpreter& interpreter, const Value& input) {
  if (const auto* undefined = input.get_if<Undefined>()) {
    interpreter.runtime().fail(undefined->reason ? *undefined->reason : "a value is undefined");
  }
}

std::span<const FilterEntry> value_filters() {
  static constexpr FilterEntry kFilters[] = {
      {"attr", attr_filter},
      {"capitalize", change_filter<capitalize>},
      {"center", center_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"e", escape_filter<false>},
      {"escape", escape_filter<false>},
      {"forceescape", escape_filter<true>},
      {"format", format_filter},
      {"indent", indent_filter},
      {"lower", change_filter<to_lower>},
      {"replace", replace_filter},
      {"safe", safe_filter},
      {"string", string_filter},
      {"title", change_filter<title_words, false>},
      {"tojson", tojson_filter},
      {"trim", trim_filter},
      {"truncate", truncate_filter},
      {"upper", change_filter<to_upper>},
      {"wordcount", wordcount_filter},
  };
  return kFilters;
}

}  // namespace vitrine::chat
