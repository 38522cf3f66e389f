// SPDX-License-Identifier: Apache-2.0
#include "value.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/json_text.h"
#include "runtime.h"
#include "text.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {

constexpr uint64_t kItemCost = 48;

int depth_of(const Value& value) {
  if (const List* list = value.as_list()) return list->depth;
  if (const Dict* dict = value.as_dict()) return dict->depth;
  const auto* callable = value.get_if<std::shared_ptr<const Callable>>();
  return callable == nullptr ? 0 : (*callable)->depth;
}

int next_depth(Runtime& runtime, int deepest) {
  if (deepest >= kMaxValueDepth) {
    runtime.fail("lists and dicts stand in one another more than " +
                 std::to_string(kMaxValueDepth) + " levels deep; expected fewer levels");
  }
  return deepest + 1;
}

template <typename T>
int order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

int order_of_int_and_float(int64_t a, double b) {
  if (b >= 9223372036854775808.0) return -1;
  if (b < -9223372036854775808.0) return 1;
  const auto whole = static_cast<int64_t>(b);
  return a != whole ? order(a, whole) : order(0.0, b - static_cast<double>(whole));
}

/// Both are numbers.
int order_of_numbers(const Value& a, const Value& b, bool& is_unordered) {
  int64_t left = 0, right = 0;
  double left_float = 0, right_float = 0;
  a.as_number(left_float);
  b.as_number(right_float);
  is_unordered = std::isnan(left_float) || std::isnan(right_float);
  if (is_unordered) return 0;
  const bool is_left_whole = a.as_integer(left), is_right_whole = b.as_integer(right);
  if (is_left_whole && is_right_whole) return order(left, right);
  if (is_left_whole) return order_of_int_and_float(left, right_float);
  if (is_right_whole) return -order_of_int_and_float(right, left_float);
  return order(left_float, right_float);
}

bool are_lists_equal(Runtime& runtime, const List& a, const List& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || a.kind == ListKind::kIterator) return false;
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!are_equal(runtime, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool are_dicts_equal(Runtime& runtime, const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, item] : a.items) {
    const Value* other = find_key(runtime, b, key);
    if (other == nullptr || !are_equal(runtime, item, *other)) return false;
  }
  return true;
}

/// What tells two objects apart that are equal only to themselves.
const void* identity(const Value& value) {
  if (const auto* object = value.get_if<std::shared_ptr<Namespace>>()) return object->get();
  if (const auto* object = value.get_if<std::shared_ptr<const Callable>>()) return object->get();
  if (const auto* object = value.get_if<std::shared_ptr<Loop>>()) return object->get();
  if (const auto* object = value.get_if<std::shared_ptr<Macro>>()) return object->get();
  return nullptr;
}

}  // namespace

void Runtime::fail(const std::string& message) const {
  std::string text = name_ + ": line " + std::to_string(line) + ": " + message;
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  throw Error(ErrorKind::kBadFile, text);
}

void Runtime::refuse_work() const {
  fail(
      "the template asks for more work than a conversation needs; expected one that comes to an "
      "end");
}

void Runtime::refuse_depth() const {
  fail("macros and expressions stand in one another more than " + std::to_string(kMaxDepth) +
       " levels deep; expected fewer levels");
}

Value Value::undefined(std::string reason) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(reason))});
}

Value Value::text(std::string bytes, bool is_markup) {
  const bool is_ascii = std::ranges::all_of(bytes, [](char c) { return c >= 0; });
  return Value(TextRef(std::make_shared<const Text>(Text{std::move(bytes), is_ascii, is_markup})));
}

const Text* Value::as_text() const {
  const auto* text = get_if<TextRef>();
  return text == nullptr ? nullptr : text->get();
}
const List* Value::as_list() const {
  const auto* list = get_if<ListRef>();
  return list == nullptr ? nullptr : list->get();
}
const Dict* Value::as_dict() const {
  const auto* dict = get_if<DictRef>();
  return dict == nullptr ? nullptr : dict->get();
}

bool Value::as_integer(int64_t& out) const {
  if (const auto* number = get_if<int64_t>()) {
    out = *number;
    return true;
  }
  if (const auto* flag = get_if<bool>()) {
    out = *flag ? 1 : 0;
    return true;
  }
  return false;
}

bool Value::as_number(double& out) const {
  if (const auto* number = get_if<double>()) {
    out = *number;
    return true;
  }
  int64_t whole = 0;
  if (!as_integer(whole)) return false;
  out = static_cast<double>(whole);
  return true;
}

bool Value::is_markup() const { return as_text() != nullptr && as_text()->is_markup; }

bool Value::is_number() const {
  double ignored = 0;
  return as_number(ignored);
}

bool Value::is_callable() const {
  if (get_if<std::shared_ptr<const Callable>>() || get_if<std::shared_ptr<Macro>>()) return true;
  return get_if<std::shared_ptr<Loop>>() != nullptr;
}

const Value* Dict::find(std::string_view text) const {
  const auto found = index.find("s" + std::string(text));
  return found == index.end() ? nullptr : &items[found->second].second;
}

Value* Namespace::find(std::string_view name) {
  const auto found =
      std::ranges::find(attributes, name, [](const auto& entry) { return entry.first; });
  return found == attributes.end() ? nullptr : &found->second;
}

std::string type_name(const Value& value) {
  struct Namer {
    std::string operator()(const Undefined&) const { return "Undefined"; }
    std::string operator()(const None&) const { return "NoneType"; }
    std::string operator()(bool) const { return "bool"; }
    std::string operator()(int64_t) const { return "int"; }
    std::string operator()(double) const { return "float"; }
    std::string operator()(const TextRef&) const { return "str"; }
    std::string operator()(const ListRef& list) const {
      switch (list->kind) {
        case ListKind::kList: return "list";
        case ListKind::kTuple: return "tuple";
        case ListKind::kRange: return "range";
        case ListKind::kView: return list->name;
        case ListKind::kIterator: return "generator";
      }
      return "list";
    }
    std::string operator()(const DictRef&) const { return "dict"; }
    std::string operator()(const std::shared_ptr<Namespace>&) const { return "Namespace"; }
    std::string operator()(const std::shared_ptr<const Callable>&) const { return "function"; }
    std::string operator()(const std::shared_ptr<Loop>&) const { return "LoopContext"; }
    std::string operator()(const std::shared_ptr<Macro>&) const { return "Macro"; }
  };
  return std::visit(Namer(), value.data());
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  double number = 0;
  if (value.as_number(number)) return number != 0;
  if (const Text* text = value.as_text()) return !text->bytes.empty();
  if (const List* list = value.as_list()) {
    return list->kind == ListKind::kIterator || !list->items.empty();
  }
  if (const Dict* dict = value.as_dict()) return !dict->items.empty();
  return true;
}

std::string hash_key(Runtime& runtime, const Value& value) {
  if (const Text* text = value.as_text()) {
    runtime.spend(text->bytes.size());
    return "s" + text->bytes;
  }
  if (value.is_undefined()) return "u";
  if (value.is_none()) return "n";
  int64_t whole = 0;
  if (value.as_integer(whole)) return "i" + std::to_string(whole);
  if (const auto* number = value.get_if<double>()) {
    if (std::trunc(*number) == *number && std::abs(*number) < 9e18) {
      return "i" + std::to_string(static_cast<int64_t>(*number));
    }
    return "f" + std::to_string(std::bit_cast<uint64_t>(*number));
  }
  if (const List* list = value.as_list(); list != nullptr && list->kind == ListKind::kTuple) {
    std::string key = "t" + std::to_string(list->items.size());
    for (const Value& item : list->items) {
      runtime.spend(kItemCost);
      const std::string part = hash_key(runtime, item);
      runtime.spend(part.size());
      key += ":" + std::to_string(part.size()) + ":" + part;
    }
    return key;
  }
  if (const void* object = identity(value)) {
    return "o" + std::to_string(reinterpret_cast<uintptr_t>(object));
  }
  runtime.fail("a " + type_name(value) + " is used as a key; expected text, a number or a tuple");
}

const Value* find_key(Runtime& runtime, const Dict& dict, const Value& key) {
  const auto found = dict.index.find(hash_key(runtime, key));
  return found == dict.index.end() ? nullptr : &dict.items[found->second].second;
}

bool are_equal(Runtime& runtime, const Value& a, const Value& b) {
  runtime.spend(1);
  if (a.is_number() && b.is_number()) {
    bool is_unordered = false;
    return order_of_numbers(a, b, is_unordered) == 0 && !is_unordered;
  }
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const Text* text = a.as_text()) {
    runtime.spend(text->bytes.size());
    return text->bytes == b.as_text()->bytes;
  }
  if (const List* list = a.as_list()) return are_lists_equal(runtime, *list, *b.as_list());
  if (const Dict* dict = a.as_dict()) return are_dicts_equal(runtime, *dict, *b.as_dict());
  return identity(a) == identity(b);
}

int compare(Runtime& runtime, const Value& a, const Value& b, const char* operation,
            bool* is_unordered) {
  runtime.spend(1);
  bool ignored = false;
  bool& unordered = is_unordered == nullptr ? ignored : *is_unordered;
  unordered = false;
  if (a.is_number() && b.is_number()) return order_of_numbers(a, b, unordered);
  const Text *left_text = a.as_text(), *right_text = b.as_text();
  if (left_text != nullptr && right_text != nullptr) {
    runtime.spend(std::min(left_text->bytes.size(), right_text->bytes.size()));
    return left_text->bytes.compare(right_text->bytes);  // the order of UTF-8 is that of characters
  }
  const List *left = a.as_list(), *right = b.as_list();
  if (left != nullptr && right != nullptr && left->kind == right->kind &&
      (left->kind == ListKind::kList || left->kind == ListKind::kTuple)) {
    const size_t common = std::min(left->items.size(), right->items.size());
    for (size_t i = 0; i < common; ++i) {
      if (are_equal(runtime, left->items[i], right->items[i])) continue;
      return compare(runtime, left->items[i], right->items[i], operation, &unordered);
    }
    return order(left->items.size(), right->items.size());
  }
  runtime.fail(std::string("'") + operation + "' stands between a " + type_name(a) + " and a " +
               type_name(b) + "; expected two numbers, texts or lists");
}

bool contains(Runtime& runtime, const Value& container, const Value& element) {
  if (const Text* text = container.as_text()) {
    const Text* part = element.as_text();
    if (part == nullptr) {
      runtime.fail("'in' looks for a " + type_name(element) + " in text; expected text");
    }
    runtime.spend(text->bytes.size());
    return text->bytes.find(part->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) return find_key(runtime, *dict, element) != nullptr;
  const ListRef list = iterate(runtime, container);
  if (list->kind == ListKind::kView && list->name == "dict_keys") hash_key(runtime, element);
  return std::ranges::any_of(list->items,
                             [&](const Value& item) { return are_equal(runtime, item, element); });
}

Value make_text(Runtime& runtime, std::string bytes, bool is_markup) {
  runtime.spend(kItemCost + bytes.size());
  return Value::text(std::move(bytes), is_markup);
}

Value make_list(Runtime& runtime, Values items, ListKind kind, std::string name) {
  runtime.spend(kItemCost * (1 + items.size()));
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, depth_of(item));
  auto list = std::make_shared<List>();
  list->kind = kind;
  list->depth = next_depth(runtime, deepest);
  list->items = std::move(items);
  list->name = std::move(name);
  return Value(ListRef(std::move(list)));
}

Value make_dict(Runtime& runtime, std::vector<std::pair<Value, Value>> items) {
  runtime.spend(4 * kItemCost * (1 + items.size()));
  auto dict = std::make_shared<Dict>();
  int deepest = 0;
  for (auto& [key, item] : items) {
    deepest = std::max({deepest, depth_of(key), depth_of(item)});
    const auto [place, is_new] = dict->index.emplace(hash_key(runtime, key), dict->items.size());
    if (is_new) {
      dict->items.emplace_back(std::move(key), std::move(item));
    } else {
      dict->items[place->second].second = std::move(item);
    }
  }
  dict->depth = next_depth(runtime, deepest);
  return Value(DictRef(std::move(dict)));
}

ListRef iterate(Runtime& runtime, const Value& value) {
  if (const auto* list = value.get_if<ListRef>()) {
    runtime.spend((*list)->items.size());
    if ((*list)->kind != ListKind::kIterator) return *list;
    if ((*list)->was_read) return std::make_shared<const List>();
    (*list)->was_read = true;
    return *list;
  }
  if (value.is_undefined()) return std::make_shared<const List>();
  auto list = std::make_shared<List>();
  if (const Text* text = value.as_text()) {
    runtime.spend(2 * kItemCost * text->bytes.size());
    for (size_t at = 0; at < text->bytes.size();) {
      const std::string_view rest = std::string_view(text->bytes).substr(at);
      const size_t length = text->is_ascii ? 1 : byte_offset(rest, 1);
      list->items.push_back(Value::text(std::string(rest.substr(0, length))));
      at += length;
    }
    return list;
  }
  if (const Dict* dict = value.as_dict()) {
    runtime.spend(kItemCost * dict->items.size());
    for (const auto& [key, item] : dict->items) list->items.push_back(key);
    return list;
  }
  runtime.fail("a " + type_name(value) + " is looped over; expected a list, a dict or text");
}

}  // namespace vitrine::chat
