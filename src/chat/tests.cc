// SPDX-License-Identifier: Apache-2.0
// What stands after `is`.
#include <algorithm>

#include "characters.h"
#include "filters.h"
#include "text.h"

namespace vitrine::chat {

namespace {

using Test = bool (*)(Interpreter&, const Value&, CallArguments&);

void take_nothing(Interpreter& interpreter, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
}

template <bool (*holds)(const Value&)>
bool plain_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  take_nothing(interpreter, arguments);
  return holds(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_exactly_true(const Value& value) { return value.is_bool() && *value.get_if<bool>(); }
bool is_exactly_false(const Value& value) { return value.is_bool() && !*value.get_if<bool>(); }
bool is_integer(const Value& value) { return value.get_if<int64_t>() != nullptr; }
bool is_float(const Value& value) { return value.is_float(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.as_text() != nullptr; }
bool is_mapping(const Value& value) { return value.as_dict() != nullptr; }
bool is_callable(const Value& value) { return value.is_callable(); }
bool is_escaped(const Value& value) { return value.is_markup(); }
bool is_sequence(const Value& value) {
  const List* list = value.as_list();
  // Undefined has a length and items, as far as they are asked for.
  return value.as_text() != nullptr || value.as_dict() != nullptr || value.is_undefined() ||
         (list != nullptr && list->is_sequence());
}
bool is_iterable(const Value& value) {
  return value.as_text() != nullptr || value.as_dict() != nullptr || value.as_list() != nullptr ||
         value.is_undefined() || value.get_if<std::shared_ptr<Loop>>() != nullptr;
}

/// The remainder's test: odd (1), even (0).
template <int wanted>
bool parity_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  take_nothing(interpreter, arguments);
  const Value rest = binary_operation(interpreter.runtime(), "%", value, Value(int64_t{2}));
  return are_equal(interpreter.runtime(), rest, Value(int64_t{wanted}));
}

bool divisible_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {"num"}, 1);
  const Value rest = binary_operation(interpreter.runtime(), "%", value, bound.value(0));
  return are_equal(interpreter.runtime(), rest, Value(int64_t{0}));
}

template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
bool case_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  take_nothing(interpreter, arguments);
  const std::u32string text = decode_utf8(to_text(interpreter.runtime(), value));
  return std::ranges::any_of(text, wanted) && std::ranges::none_of(text, other) &&
         std::ranges::none_of(text, is_title);
}

template <bool is_wanted>
bool equal_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {"other"}, 1);
  return are_equal(interpreter.runtime(), value, bound.value(0)) == is_wanted;
}

/// <, <=, > and >=: with the sign of the order, and whether equal values fit.
template <int sign, bool with_equal>
bool order_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {"other"}, 1);
  bool is_unordered = false;
  const int order =
      compare(interpreter.runtime(), value, bound.value(0), sign < 0 ? "<" : ">", &is_unordered);
  return !is_unordered && (order == 0 ? with_equal : (order < 0) == (sign < 0));
}

bool same_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"other"}, 1);
  const Value& other = bound.value(0);
  if (value.data().index() != other.data().index()) return false;
  if (value.as_list() != nullptr) return value.as_list() == other.as_list();
  if (value.as_dict() != nullptr) return value.as_dict() == other.as_dict();
  return are_equal(runtime, value, other);
}

bool in_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {"seq"}, 1);
  return contains(interpreter.runtime(), bound.value(0), value);
}

bool filter_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  take_nothing(interpreter, arguments);
  hash_key(interpreter.runtime(), value);  // refuses what cannot be a name's like
  return value.as_text() != nullptr && is_filter(value.as_text()->bytes);
}

bool test_test(Interpreter& interpreter, const Value& value, CallArguments& arguments);

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", plain_test<is_defined>},
    {"undefined", plain_test<is_undefined>},
    {"none", plain_test<is_none>},
    {"boolean", plain_test<is_boolean>},
    {"true", plain_test<is_exactly_true>},
    {"false", plain_test<is_exactly_false>},
    {"integer", plain_test<is_integer>},
    {"float", plain_test<is_float>},
    {"number", plain_test<is_number>},
    {"string", plain_test<is_string>},
    {"mapping", plain_test<is_mapping>},
    {"sequence", plain_test<is_sequence>},
    {"iterable", plain_test<is_iterable>},
    {"callable", plain_test<is_callable>},
    {"escaped", plain_test<is_escaped>},
    {"odd", parity_test<1>},
    {"even", parity_test<0>},
    {"divisibleby", divisible_test},
    {"lower", case_test<is_lower, is_upper>},
    {"upper", case_test<is_upper, is_lower>},
    {"sameas", same_test},
    {"in", in_test},
    {"filter", filter_test},
    {"test", test_test},
    {"==", equal_test<true>},
    {"eq", equal_test<true>},
    {"equalto", equal_test<true>},
    {"!=", equal_test<false>},
    {"ne", equal_test<false>},
    {"<", order_test<-1, false>},
    {"lt", order_test<-1, false>},
    {"lessthan", order_test<-1, false>},
    {"<=", order_test<-1, true>},
    {"le", order_test<-1, true>},
    {">", order_test<1, false>},
    {"gt", order_test<1, false>},
    {"greaterthan", order_test<1, false>},
    {">=", order_test<1, true>},
    {"ge", order_test<1, true>},
};

const std::pair<std::string_view, Test>* find_test(std::string_view name) {
  const auto* found =
      std::ranges::find(kTests, name, [](const auto& entry) { return entry.first; });
  return found == std::end(kTests) ? nullptr : found;
}

bool test_test(Interpreter& interpreter, const Value& value, CallArguments& arguments) {
  take_nothing(interpreter, arguments);
  hash_key(interpreter.runtime(), value);
  return value.as_text() != nullptr && find_test(value.as_text()->bytes) != nullptr;
}

}  // namespace

bool Interpreter::test(std::string_view name, const Value& value, CallArguments& arguments) {
  const auto* found = find_test(name);
  if (found != nullptr) {
    arguments.function = found->first;
    return found->second(*this, value, arguments);
  }
  std::string known;
  for (const auto& [test, function] : kTests)
    known += (known.empty() ? "" : ", ") + std::string(test);
  runtime_.fail("the test '" + std::string(name) + "' is unknown; expected one of " + known);
}

}  // namespace vitrine::chat
