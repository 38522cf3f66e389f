// SPDX-License-Identifier: Apache-2.0
// Filters of lists and dicts.
#include <algorithm>
#include <charconv>
#include <set>

#include "characters.h"
#include "filters.h"
#include "text.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {

/// "a.0.b": what `attribute=` names, read item by item.
/// `fallback`: in place of each part that is undefined; null: none.
Value read_path(Interpreter& interpreter, const Value& object, const Value& path,
                const Value* fallback = nullptr) {
  const auto defined = [&](Value value) {
    return value.is_undefined() && fallback != nullptr ? *fallback : std::move(value);
  };
  const Text* text = path.as_text();
  if (text == nullptr) return defined(interpreter.item(object, path));
  Value value = object;
  for (const std::string_view part : split(text->bytes, ".", -1, false)) {
    int64_t index = 0;
    const auto [end, status] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index =
        status == std::errc() && end == part.data() + part.size() && !part.starts_with('-');
    value = defined(interpreter.item(
        value, is_index ? Value(index) : make_text(interpreter.runtime(), std::string(part))));
  }
  return value;
}

Value without_case(Runtime& runtime, const Value& value, bool keeps_case) {
  if (keeps_case || value.as_text() == nullptr) return value;
  runtime.spend(4 * value.as_text()->bytes.size());
  return make_text(runtime, to_lower(value.as_text()->bytes));
}

/// What sort, unique, min and max compare.
Value key_of(Interpreter& interpreter, const Value& item, const Value* attribute, bool keeps_case) {
  const bool has_attribute = attribute != nullptr && !attribute->is_none();
  const Value value = has_attribute ? read_path(interpreter, item, *attribute) : item;
  return without_case(interpreter.runtime(), value, keeps_case);
}

/// The second values as a list, ordered by the first.
Value sorted_by_key(Runtime& runtime, std::vector<std::pair<Value, Value>> keyed,
                    bool is_reversed) {
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return is_reversed ? compare(runtime, b.first, a.first, "<") < 0
                       : compare(runtime, a.first, b.first, "<") < 0;
  });
  Values items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return make_list(runtime, std::move(items));
}

Value list_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  return make_list(interpreter.runtime(), iterate(interpreter.runtime(), input)->items);
}

Value length_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {});
  const auto size = [](size_t count) { return Value(static_cast<int64_t>(count)); };
  if (input.is_undefined()) return Value(int64_t{0});
  if (const Text* text = input.as_text()) {
    runtime.spend(text->bytes.size());
    return size(count_code_points(text->bytes));
  }
  if (const Dict* dict = input.as_dict()) return size(dict->items.size());
  if (const List* list = input.as_list(); list && list->kind != ListKind::kIterator) {
    return size(list->items.size());
  }
  if (const auto* loop = input.get_if<std::shared_ptr<Loop>>()) {
    return size((*loop)->items->items.size());
  }
  runtime.fail("'" + bound.function() + "' gets a " + type_name(input) +
               "; expected text, a list or a dict");
}

template <bool is_last>
Value end_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {});
  const List* list = input.as_list();
  if (is_last && list != nullptr && list->kind == ListKind::kIterator) {
    runtime.fail("'last' gets a generator; expected a list (… | list | last)");
  }
  // Python reads text from its end by index, which keeps the mark of safe text, as loops do not.
  if (is_last && input.is_markup() && is_true(input)) {
    return slice(runtime, input, Value(int64_t{-1}), Value(None()), Value(None()));
  }
  const ListRef items = iterate(runtime, input);
  if (items->items.empty()) return Value::undefined("the sequence is empty");
  return is_last ? items->items.back() : items->items.front();
}

Value join_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"d", "attribute"});
  const std::string between = bound.get(0) == nullptr ? "" : to_text(runtime, bound.value(0));
  const bool has_attribute = bound.get(1) != nullptr && !bound.value(1).is_none();
  std::string text;
  bool is_first = true;
  const ListRef all = iterate(runtime, input);
  for (const Value& item : all->items) {
    const Value part = has_attribute ? read_path(interpreter, item, bound.value(1)) : item;
    runtime.spend(between.size());
    if (!is_first) text += between;
    text += to_text(runtime, part);
    is_first = false;
  }
  return make_text(runtime, std::move(text));
}

Value reverse_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {});
  if (input.as_text() != nullptr) {
    return slice(runtime, input, Value(None()), Value(None()), Value(int64_t{-1}));
  }
  const bool was_iterator =
      input.as_list() != nullptr && input.as_list()->kind == ListKind::kIterator;
  Values items = iterate(runtime, input)->items;
  std::ranges::reverse(items);
  return make_list(runtime, std::move(items), was_iterator ? ListKind::kList : ListKind::kIterator);
}

Value items_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {});
  Values items;
  if (const Dict* dict = input.as_dict()) {
    for (const auto& [key, value] : dict->items) {
      items.push_back(make_list(runtime, {key, value}, ListKind::kTuple));
    }
  } else if (!input.is_undefined()) {
    runtime.fail("'items' gets a " + type_name(input) + "; expected a dict");
  }
  return make_list(runtime, std::move(items), ListKind::kIterator);
}

Value dictsort_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"case_sensitive", "by", "reverse"});
  const Dict* dict = input.as_dict();
  if (dict == nullptr) {
    runtime.fail("'dictsort' gets a " + type_name(input) + "; expected a dict");
  }
  const std::string by = bound.text(1, "key");
  if (by != "key" && by != "value") runtime.fail("'dictsort' sorts by 'key' or 'value'");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : dict->items) {
    keyed.emplace_back(without_case(runtime, by == "key" ? key : value, bound.boolean(0, false)),
                       make_list(runtime, {key, value}, ListKind::kTuple));
  }
  return sorted_by_key(runtime, std::move(keyed), bound.boolean(2, false));
}

Value sort_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"reverse", "case_sensitive", "attribute"});
  const bool keeps_case = bound.boolean(1, false);
  const Text* names = bound.get(2) == nullptr ? nullptr : bound.value(2).as_text();
  std::vector<std::pair<Value, Value>> keyed;
  const ListRef all = iterate(runtime, input);
  for (const Value& item : all->items) {
    Values parts;  // several attributes have commas between them
    if (names != nullptr) {
      for (const std::string_view name : split(names->bytes, ",", -1, false)) {
        const Value path = make_text(runtime, std::string(name));
        parts.push_back(key_of(interpreter, item, &path, keeps_case));
      }
    } else {
      parts.push_back(key_of(interpreter, item, bound.get(2), keeps_case));
    }
    keyed.emplace_back(make_list(runtime, std::move(parts)), item);
  }
  return sorted_by_key(runtime, std::move(keyed), bound.boolean(0, false));
}

Value unique_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"case_sensitive", "attribute"});
  std::set<std::string> seen;
  Values items;
  const ListRef all = iterate(runtime, input);
  for (const Value& item : all->items) {
    const Value key = key_of(interpreter, item, bound.get(1), bound.boolean(0, false));
    if (seen.insert(hash_key(runtime, key)).second) items.push_back(item);
  }
  return make_list(runtime, std::move(items), ListKind::kIterator);
}

template <bool is_max>
Value extreme_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"case_sensitive", "attribute"});
  const ListRef items = iterate(runtime, input);
  if (items->items.empty()) return Value::undefined("the sequence is empty");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items->items) {
    Value key = key_of(interpreter, item, bound.get(1), bound.boolean(0, false));
    const int order = best == nullptr ? 0 : compare(runtime, key, best_key, is_max ? ">" : "<");
    if (best != nullptr && (is_max ? order <= 0 : order >= 0)) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value sum_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"attribute", "start"});
  const bool has_attribute = bound.get(0) != nullptr && !bound.value(0).is_none();
  Value total = bound.get(1) != nullptr ? bound.value(1) : Value(int64_t{0});
  if (total.as_text() != nullptr) {
    runtime.fail("'sum' gets text as 'start'; expected a number or list (… | join)");
  }
  const ListRef all = iterate(runtime, input);
  for (const Value& item : all->items) {
    total = binary_operation(runtime, "+", total,
                             has_attribute ? read_path(interpreter, item, bound.value(0)) : item);
  }
  return total;
}

Value batch_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = bound.integer(0, 1);
  Values batches, batch;
  const ListRef all = iterate(runtime, input);
  for (const Value& item : all->items) {
    if (!batch.empty() && static_cast<int64_t>(batch.size()) == size) {
      batches.push_back(make_list(runtime, std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  const bool fills = bound.get(1) != nullptr && !bound.value(1).is_none();
  while (fills && !batch.empty() && static_cast<int64_t>(batch.size()) < size) {
    runtime.spend(64);
    batch.push_back(bound.value(1));
  }
  if (!batch.empty()) batches.push_back(make_list(runtime, std::move(batch)));
  return make_list(runtime, std::move(batches), ListKind::kIterator);
}

Value slice_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"slices", "fill_with"}, 1);
  const int64_t count = bound.integer(0, 1);
  if (count < 1) runtime.fail("'slice' gets a number below 1; expected how many slices");
  const ListRef all = iterate(runtime, input);
  const auto length = static_cast<int64_t>(all->items.size());
  const bool fills = bound.get(1) != nullptr && !bound.value(1).is_none();
  Values slices;
  auto next = all->items.begin();
  for (int64_t i = 0; i < count; ++i) {
    runtime.spend(64);
    const bool has_extra = i < length % count;
    const auto end = next + length / count + (has_extra ? 1 : 0);
    Values part(next, end);
    next = end;
    if (fills && !has_extra) part.push_back(bound.value(1));
    slices.push_back(make_list(runtime, std::move(part)));
  }
  return make_list(runtime, std::move(slices), ListKind::kIterator);
}

/// Takes the first positional argument away: the name of a filter, test or attribute.
Value take_first(Runtime& runtime, CallArguments& arguments) {
  if (arguments.positional.empty()) {
    runtime.fail("'" + std::string(arguments.function) + "' gets nothing; expected a name");
  }
  Value first = arguments.positional.front();
  arguments.positional.erase(arguments.positional.begin());
  return first;
}

/// Takes the name of a filter or test, which must be text.
std::string take_name(Runtime& runtime, CallArguments& arguments) {
  const Value first = take_first(runtime, arguments);
  if (first.as_text() == nullptr) {
    runtime.fail("'" + std::string(arguments.function) + "' gets a " + type_name(first) +
                 "; expected a name");
  }
  return first.as_text()->bytes;
}

Value map_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  Values results;
  if (is_true(input)) {
    if (arguments.positional.empty()) {
      const BoundArguments bound(runtime, arguments, {"attribute", "default"}, 1);
      const bool has_default = bound.get(1) != nullptr && !bound.value(1).is_none();
      const ListRef all = iterate(runtime, input);
      for (const Value& item : all->items) {
        results.push_back(
            read_path(interpreter, item, bound.value(0), has_default ? &bound.value(1) : nullptr));
      }
    } else {
      const std::string name = take_name(runtime, arguments);
      const ListRef all = iterate(runtime, input);
      for (const Value& item : all->items) {
        CallArguments copy = arguments;
        results.push_back(interpreter.filter(name, item, copy));
      }
    }
  }
  return make_list(runtime, std::move(results), ListKind::kIterator);
}

template <bool is_wanted, bool by_attribute>
Value select_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  Values results;
  if (is_true(input)) {
    const Value path = by_attribute ? take_first(runtime, arguments) : Value();
    const bool has_test = !arguments.positional.empty();
    const std::string name = has_test ? take_name(runtime, arguments) : "";
    const ListRef all = iterate(runtime, input);
    for (const Value& item : all->items) {
      const Value value = by_attribute ? read_path(interpreter, item, path) : item;
      CallArguments copy = arguments;
      const bool fits = has_test ? interpreter.test(name, value, copy) : is_true(value);
      if (fits == is_wanted) results.push_back(item);
    }
  }
  return make_list(runtime, std::move(results), ListKind::kIterator);
}

}  // namespace

std::span<const FilterEntry> sequence_filters() {
  static constexpr FilterEntry kFilters[] = {
      {"batch", batch_filter},
      {"count", length_filter},
      {"dictsort", dictsort_filter},
      {"first", end_filter<false>},
      {"items", items_filter},
      {"join", join_filter},
      {"last", end_filter<true>},
      {"length", length_filter},
      {"list", list_filter},
      {"map", map_filter},
      {"max", extreme_filter<true>},
      {"min", extreme_filter<false>},
      {"reject", select_filter<false, false>},
      {"rejectattr", select_filter<false, true>},
      {"reverse", reverse_filter},
      {"select", select_filter<true, false>},
      {"selectattr", select_filter<true, true>},
      {"slice", slice_filter},
      {"sort", sort_filter},
      {"sum", sum_filter},
      {"unique", unique_filter},
  };
  return kFilters;
}

namespace {

const FilterEntry* find_filter(std::string_view name) {
  for (const auto& entries : {value_filters(), number_filters(), sequence_filters()}) {
    const auto found = std::ranges::find(entries, name, &FilterEntry::name);
    if (found != entries.end()) return &*found;
  }
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value Interpreter::filter(std::string_view name, const Value& input, CallArguments& arguments) {
  const Runtime::Level level(runtime_);
  const FilterEntry* found = find_filter(name);
  if (found != nullptr) {
    arguments.function = found->name;
    return found->filter(*this, input, arguments);
  }
  std::set<std::string_view> names;
  for (const auto& entries : {value_filters(), number_filters(), sequence_filters()}) {
    for (const FilterEntry& entry : entries) names.insert(entry.name);
  }
  std::string known;
  for (const std::string_view other : names)
    known += (known.empty() ? "" : ", ") + std::string(other);
  runtime_.fail("the filter '" + std::string(name) + "' is unknown; expected one of " + known);
}

}  // namespace vitrine::chat
