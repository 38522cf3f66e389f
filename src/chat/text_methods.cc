// SPDX-License-Identifier: Apache-2.0
// Methods of text, as Python's str has them.
#include <algorithm>
#include <limits>

#include "characters.h"
#include "interpreter.h"
#include "text.h"
#include "text_format.h"

namespace vitrine::chat {

namespace {

using Method = Value (*)(Interpreter&, const Text&, CallArguments&);

/// What a method of safe text gives is safe: a text, or a list of its parts.
Value marked(Runtime& runtime, const Value& result) {
  if (const Text* text = result.as_text()) return make_text(runtime, text->bytes, true);
  const List* list = result.as_list();
  if (list == nullptr) return result;
  Values items;
  for (const Value& item : list->items) items.push_back(marked(runtime, item));
  return make_list(runtime, std::move(items), list->kind);
}

Value make_parts(Runtime& runtime, const std::vector<std::string_view>& parts,
                 ListKind kind = ListKind::kList) {
  Values items;
  for (const std::string_view part : parts) items.push_back(make_text(runtime, std::string(part)));
  return make_list(runtime, std::move(items), kind);
}

/// strip, lstrip and rstrip.
template <bool left, bool right>
Value strip_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"chars"});
  if (bound.get(0) == nullptr || bound.value(0).is_none()) {
    return make_text(runtime, std::string(strip(self.bytes, left, right)));
  }
  const std::string characters = bound.text(0, "");
  const std::string_view view = characters;
  runtime.spend(self.bytes.size() * (1 + characters.size()));
  return make_text(runtime, std::string(strip(self.bytes, left, right, &view)));
}

template <bool from_right>
Value split_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"sep", "maxsplit"});
  const bool by_space = bound.get(0) == nullptr || bound.value(0).is_none();
  const std::string separator = by_space ? "" : bound.text(0, "");
  if (!by_space && separator.empty()) {
    runtime.fail("'" + bound.function() + "' gets empty text as 'sep'; expected a separator");
  }
  runtime.spend(2 * self.bytes.size());
  return make_parts(runtime, split(self.bytes, separator, bound.integer(1, -1), from_right));
}

template <bool from_right>
Value partition_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"sep"}, 1);
  const std::string separator = bound.text(0, "");
  if (separator.empty())
    runtime.fail("'" + bound.function() + "' gets empty text; expected a separator");
  const std::string_view text = self.bytes;
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == text.npos) {
    return from_right ? make_parts(runtime, {"", "", text}, ListKind::kTuple)
                      : make_parts(runtime, {text, "", ""}, ListKind::kTuple);
  }
  return make_parts(runtime, {text.substr(0, at), separator, text.substr(at + separator.size())},
                    ListKind::kTuple);
}

/// The part that find, count, startswith and endswith look at, in bytes. Where it begins behind the
/// text's end, `begin` is above `end`: not even empty text is found there.
std::pair<size_t, size_t> part_of(Runtime& runtime, const Text& self, const BoundArguments& bound) {
  if (bound.get(1) == nullptr && bound.get(2) == nullptr) return {0, self.bytes.size()};
  runtime.spend(self.bytes.size());
  const auto length = static_cast<int64_t>(count_code_points(self.bytes));
  const auto place = [&](size_t index, int64_t otherwise) {
    if (bound.get(index) == nullptr || bound.value(index).is_none()) return otherwise;
    const int64_t number = bound.integer(index, 0);
    return number < 0 ? std::max<int64_t>(number + length, 0) : number;
  };
  const int64_t begin = place(1, 0), end = std::min(place(2, length), length);
  if (begin > end) return {1, 0};
  return {byte_offset(self.bytes, static_cast<size_t>(begin)),
          byte_offset(self.bytes, static_cast<size_t>(end))};
}

template <bool at_end>
Value affix_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"affix", "start", "end"}, 1);
  const auto [begin, end] = part_of(runtime, self, bound);
  const bool is_inside = begin <= end;
  const std::string_view part =
      is_inside ? std::string_view(self.bytes).substr(begin, end - begin) : std::string_view();
  const auto fits = [&, part = part](const std::string& affix) {
    return is_inside && (at_end ? part.ends_with(affix) : part.starts_with(affix));
  };
  const List* several = bound.value(0).as_list();
  if (several == nullptr || several->kind != ListKind::kTuple)
    return Value(fits(bound.text(0, "")));
  for (const Value& item : several->items) {
    runtime.spend(1);
    if (item.as_text() == nullptr)
      runtime.fail("'" + bound.function() + "' gets a tuple without text");
    if (fits(item.as_text()->bytes)) return Value(true);
  }
  return Value(false);
}

template <bool from_right, bool must_find>
Value find_method_of_text(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"sub", "start", "end"}, 1);
  const auto [begin, end] = part_of(runtime, self, bound);
  runtime.spend(2 * self.bytes.size());
  size_t at = std::string::npos;
  if (begin <= end) {
    const std::string_view part = std::string_view(self.bytes).substr(begin, end - begin);
    at = from_right ? part.rfind(bound.text(0, "")) : part.find(bound.text(0, ""));
  }
  if (at == std::string::npos) {
    if (must_find)
      runtime.fail("'" + bound.function() + "' does not find its text; expected it to be there");
    return Value(int64_t{-1});
  }
  const std::string_view before = std::string_view(self.bytes).substr(0, begin + at);
  return Value(static_cast<int64_t>(count_code_points(before)));
}

Value count_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"sub", "start", "end"}, 1);
  const auto [begin, end] = part_of(runtime, self, bound);
  runtime.spend(self.bytes.size());
  if (begin > end) return Value(int64_t{0});
  const std::string wanted = bound.text(0, "");
  const std::string_view part = std::string_view(self.bytes).substr(begin, end - begin);
  if (wanted.empty()) return Value(static_cast<int64_t>(count_code_points(part)) + 1);
  int64_t count = 0;
  for (size_t at = part.find(wanted); at != part.npos; at = part.find(wanted, at + wanted.size())) {
    ++count;
  }
  return Value(count);
}

Value replace_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"old", "new", "count"}, 2);
  const std::string from = bound.text(0, "");
  const std::string to = self.is_markup ? safe_text(runtime, bound.value(1)) : bound.text(1, "");
  const int64_t count = bound.integer(2, -1);
  runtime.spend(self.bytes.size() + replaced_size(self.bytes, from, to, count));
  return make_text(runtime, replace_all(self.bytes, from, to, count));
}

Value join_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"iterable"}, 1);
  std::string text;
  const ListRef items = iterate(runtime, bound.value(0));
  for (size_t i = 0; i < items->items.size(); ++i) {
    const Value& item = items->items[i];
    const Text* part = item.as_text();
    if (part == nullptr && !self.is_markup) {
      runtime.fail("'join' gets a " + type_name(item) + "; expected texts");
    }
    const std::string shown = self.is_markup ? safe_text(runtime, item) : part->bytes;
    runtime.spend(self.bytes.size() + shown.size());
    if (i > 0) text += self.bytes;
    text += shown;
  }
  return make_text(runtime, std::move(text));
}

Value splitlines_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"keepends"});
  return make_parts(runtime, split_lines(self.bytes, bound.boolean(0, false)));
}

template <bool at_end>
Value remove_affix_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"affix"}, 1);
  const std::string affix = bound.text(0, "");
  std::string_view text = self.bytes;
  if (at_end ? text.ends_with(affix) : text.starts_with(affix)) {
    at_end ? text.remove_suffix(affix.size()) : text.remove_prefix(affix.size());
  }
  return make_text(runtime, std::string(text));
}

/// ljust (-1), center (0), rjust (1) and zfill (2).
template <int how>
Value justify_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"width", "fillchar"}, 1);
  const std::string fill = how == 2 ? "0"
                           : self.is_markup && bound.get(1) != nullptr
                               ? safe_text(runtime, bound.value(1))
                               : bound.text(1, " ");
  if (count_code_points(fill) != 1)
    runtime.fail("'" + bound.function() + "' fills with one character; expected that");
  const int64_t width = bound.integer(0, 0);
  const auto length = static_cast<int64_t>(count_code_points(self.bytes));
  if (width <= length) return make_text(runtime, self.bytes);
  const auto missing = static_cast<uint64_t>(width - length);
  runtime.spend(missing > (uint64_t{1} << 40) ? missing : 4 * missing);
  // str.center() puts the odd one to the left where both lengths are odd.
  const uint64_t left = how == -1  ? 0
                        : how != 0 ? missing
                                   : missing / 2 + (missing & static_cast<uint64_t>(width) & 1);
  std::string before, after;
  for (uint64_t i = 0; i < left; ++i) before += fill;
  for (uint64_t i = left; i < missing; ++i) after += fill;
  const bool has_sign = how == 2 && (self.bytes.starts_with('-') || self.bytes.starts_with('+'));
  if (has_sign) return make_text(runtime, self.bytes.substr(0, 1) + before + self.bytes.substr(1));
  return make_text(runtime, before + self.bytes + after);
}

Value expandtabs_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"tabsize"});
  const int64_t size = std::clamp<int64_t>(bound.integer(0, 8), 0, 1000);
  std::u32string out;
  int64_t column = 0;
  for (const char32_t c : decode_utf8(self.bytes)) {
    if (c != '\t') {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + 1;
      continue;
    }
    const int64_t count = size == 0 ? 0 : size - column % size;
    runtime.spend(static_cast<uint64_t>(count));
    out.append(static_cast<size_t>(count), U' ');
    column += count;
  }
  return make_text(runtime, encode_utf8(out));
}

template <std::string (*change)(std::string_view)>
Value change_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  interpreter.runtime().spend(4 * self.bytes.size());
  return make_text(interpreter.runtime(), change(self.bytes));
}

/// True where there is a character and each fits.
template <bool (*fits)(char32_t)>
Value every_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  interpreter.runtime().spend(self.bytes.size());
  const std::u32string characters = decode_utf8(self.bytes);
  return Value(!characters.empty() && std::ranges::all_of(characters, fits));
}

bool is_alphanumeric(char32_t c) { return is_alphabetic(c) || is_numeric(c); }

/// isupper and islower: there is a cased character, and none of the other case.
template <bool (*is_wanted)(char32_t), bool (*is_other)(char32_t)>
Value case_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  interpreter.runtime().spend(self.bytes.size());
  const std::u32string characters = decode_utf8(self.bytes);
  return Value(std::ranges::any_of(characters, is_wanted) &&
               std::ranges::none_of(characters, is_other) &&
               std::ranges::none_of(characters, is_title));
}

Value istitle_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  interpreter.runtime().spend(self.bytes.size());
  bool was_cased = false, has_cased = false;
  for (const char32_t c : decode_utf8(self.bytes)) {
    const bool is_capital = is_upper(c) || is_title(c);
    if (was_cased ? is_capital : is_lower(c)) return Value(false);
    was_cased = is_capital || is_lower(c);
    has_cased |= was_cased;
  }
  return Value(has_cased);
}

Value isascii_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  return Value(self.is_ascii);
}

bool printable(char32_t c) { return is_printable(c); }
Value isprintable_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  interpreter.runtime().spend(self.bytes.size());
  return Value(std::ranges::all_of(decode_utf8(self.bytes), printable));
}

Value isidentifier_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  interpreter.runtime().spend(self.bytes.size());
  const std::u32string characters = decode_utf8(self.bytes);
  return Value(!characters.empty() && is_identifier_start(characters.front()) &&
               std::ranges::all_of(characters, is_identifier_part));
}

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"strip", strip_method<true, true>},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines_method},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"find", find_method_of_text<false, false>},
    {"rfind", find_method_of_text<true, false>},
    {"index", find_method_of_text<false, true>},
    {"rindex", find_method_of_text<true, true>},
    {"count", count_method},
    {"replace", replace_method},
    {"join", join_method},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"ljust", justify_method<-1>},
    {"center", justify_method<0>},
    {"rjust", justify_method<1>},
    {"zfill", justify_method<2>},
    {"expandtabs", expandtabs_method},
    {"upper", change_method<to_upper>},
    {"lower", change_method<to_lower>},
    {"title", change_method<to_title>},
    {"capitalize", change_method<capitalize>},
    {"swapcase", change_method<swap_case>},
    {"isspace", every_method<is_space>},
    {"isalpha", every_method<is_alphabetic>},
    {"isalnum", every_method<is_alphanumeric>},
    {"isdecimal", every_method<is_decimal>},
    {"isdigit", every_method<is_digit>},
    {"isnumeric", every_method<is_numeric>},
    {"isupper", case_method<is_upper, is_lower>},
    {"islower", case_method<is_lower, is_upper>},
    {"istitle", istitle_method},
    {"isascii", isascii_method},
    {"isprintable", isprintable_method},
    {"isidentifier", isidentifier_method},
    {"format", format_method},
    {"format_map", format_map_method},
};

}  // namespace

std::optional<Value> find_text_method(const Value& object, const std::string& name) {
  const auto* found =
      std::ranges::find(kMethods, name, [](const auto& entry) { return entry.first; });
  if (found == std::end(kMethods)) return std::nullopt;
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->call = [self = *object.get_if<TextRef>(), method = found->second](
                       Interpreter& interpreter, CallArguments& arguments) {
    const Value result = method(interpreter, *self, arguments);
    return self->is_markup ? marked(interpreter.runtime(), result) : result;
  };
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

}  // namespace vitrine::chat
