// SPDX-License-Identifier: Apache-2.0
// Arithmetic, joining, repeating and slicing.
#include <algorithm>
#include <cmath>

#include "interpreter.h"
#include "text.h"

namespace vitrine::chat {

namespace {

[[noreturn]] void refuse(Runtime& runtime, const std::string& name, const Value& left,
                         const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (const auto* undefined = side->get_if<Undefined>(); undefined && undefined->reason) {
      runtime.fail(*undefined->reason);
    }
  }
  runtime.fail("'" + name + "' stands between a " + type_name(left) + " and a " + type_name(right) +
               "; expected values that go together");
}

[[noreturn]] void overflow(Runtime& runtime, const std::string& name) {
  runtime.fail("'" + name + "' gives a whole number beyond 64 bits; expected a smaller one");
}

Value whole_power(Runtime& runtime, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) runtime.fail("0 has a negative power; expected another base");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      overflow(runtime, "**");
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow(runtime, "**");
  }
  return Value(result);
}

Value whole_operation(Runtime& runtime, const std::string& name, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflows = false;
  if (name == "+") {
    overflows = __builtin_add_overflow(left, right, &result);
  } else if (name == "-") {
    overflows = __builtin_sub_overflow(left, right, &result);
  } else if (name == "*") {
    overflows = __builtin_mul_overflow(left, right, &result);
  } else if (name == "**") {
    return whole_power(runtime, left, right);
  } else {
    if (right == 0) runtime.fail("'" + name + "' divides by 0; expected another number");
    if (name == "/") return Value(static_cast<double>(left) / static_cast<double>(right));
    if (left == INT64_MIN && right == -1) {
      if (name == "%") return Value(int64_t{0});
      overflow(runtime, name);
    }
    // Python rounds towards minus infinity.
    const int64_t rest = left % right;
    const bool is_lower = rest != 0 && (rest < 0) != (right < 0);
    result = name == "%" ? rest + (is_lower ? right : 0) : left / right - (is_lower ? 1 : 0);
  }
  if (overflows) overflow(runtime, name);
  return Value(result);
}

Value float_operation(Runtime& runtime, const std::string& name, double left, double right) {
  if (name == "+") return Value(left + right);
  if (name == "-") return Value(left - right);
  if (name == "*") return Value(left * right);
  if (name == "**") {
    if (left == 0 && right < 0) runtime.fail("0 has a negative power; expected another base");
    if (left < 0 && std::trunc(right) != right) {
      runtime.fail("a negative number has a power that is no whole number; expected a real result");
    }
    const double result = std::pow(left, right);
    if (std::isinf(result) && std::isfinite(left) && std::isfinite(right)) {
      runtime.fail("'**' gives a number beyond float64; expected a smaller one");
    }
    return Value(result);
  }
  if (right == 0) runtime.fail("'" + name + "' divides by 0; expected another number");
  if (name == "/") return Value(left / right);
  double rest = std::fmod(left, right);
  double quotient = (left - rest) / right;
  if (rest != 0 && (rest < 0) != (right < 0)) {
    rest += right;
    quotient -= 1;
  } else if (rest == 0) {
    rest = std::copysign(0.0, right);
  }
  if (name == "%") return Value(rest);
  if (quotient == 0) return Value(std::copysign(0.0, left / right));
  const double whole = std::floor(quotient);
  return Value(quotient - whole > 0.5 ? whole + 1 : whole);
}

std::string escaped(const Text& text) {
  return text.is_markup ? text.bytes : escape_markup(text.bytes);
}

/// Text or a list so many times.
Value repeat(Runtime& runtime, const Value& value, int64_t count) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const Text* text = value.as_text();
  const List* list = value.as_list();
  const uint64_t size = text != nullptr ? text->bytes.size() : 48 * list->items.size();
  uint64_t total = 0;
  if (__builtin_mul_overflow(size, times, &total)) total = UINT64_MAX;
  runtime.spend(total);
  if (text != nullptr) {
    std::string result;
    result.reserve(total);
    for (uint64_t i = 0; size > 0 && i < times; ++i) result += text->bytes;
    return make_text(runtime, std::move(result), text->is_markup);
  }
  Values items;
  for (uint64_t i = 0; size > 0 && i < times; ++i) {
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return make_list(runtime, std::move(items), list->kind);
}

bool can_repeat(const Value& value) {
  const List* list = value.as_list();
  return value.as_text() != nullptr || (list != nullptr && list->kind <= ListKind::kTuple);
}

Value sign_operation(Runtime& runtime, bool is_negative, const Value& value) {
  if (const auto* number = value.get_if<double>()) return Value(is_negative ? -*number : *number);
  int64_t whole = 0;
  if (!value.as_integer(whole)) {
    if (const auto* undefined = value.get_if<Undefined>(); undefined && undefined->reason) {
      runtime.fail(*undefined->reason);
    }
    runtime.fail("a sign stands before a " + type_name(value) + "; expected a number");
  }
  if (is_negative && whole == INT64_MIN) overflow(runtime, "-");
  return Value(is_negative ? -whole : whole);
}

Value add_texts(Runtime& runtime, const Text& left, const Text& right) {
  if (left.is_markup || right.is_markup) {
    runtime.spend(6 * (left.bytes.size() + right.bytes.size()));
    return make_text(runtime, escaped(left) + escaped(right), true);
  }
  return make_text(runtime, left.bytes + right.bytes);
}

}  // namespace

Value binary_operation(Runtime& runtime, const std::string& name, const Value& left,
                       const Value& right) {
  if (name == "neg" || name == "pos") return sign_operation(runtime, name == "neg", left);
  int64_t whole_left = 0, whole_right = 0;
  const bool is_left_whole = left.as_integer(whole_left);
  const bool is_right_whole = right.as_integer(whole_right);
  if (is_left_whole && is_right_whole) {
    return whole_operation(runtime, name, whole_left, whole_right);
  }
  double number_left = 0, number_right = 0;
  if (left.as_number(number_left) && right.as_number(number_right)) {
    return float_operation(runtime, name, number_left, number_right);
  }
  if (name == "+") {
    if (left.as_text() != nullptr && right.as_text() != nullptr) {
      return add_texts(runtime, *left.as_text(), *right.as_text());
    }
    const List *list_left = left.as_list(), *list_right = right.as_list();
    if (list_left != nullptr && list_right != nullptr && list_left->kind == list_right->kind &&
        list_left->kind <= ListKind::kTuple) {
      runtime.spend(48 * (list_left->items.size() + list_right->items.size()));
      Values items = list_left->items;
      items.insert(items.end(), list_right->items.begin(), list_right->items.end());
      return make_list(runtime, std::move(items), list_left->kind);
    }
  }
  if (name == "*" && can_repeat(left) && is_right_whole) return repeat(runtime, left, whole_right);
  if (name == "*" && can_repeat(right) && is_left_whole) return repeat(runtime, right, whole_left);
  if (name == "%" && left.as_text() != nullptr) {
    return format_percent(runtime, *left.as_text(), right);
  }
  refuse(runtime, name, left, right);
}

Value slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step) {
  const Text* text = object.as_text();
  const List* list = object.as_list();
  if (const auto* undefined = object.get_if<Undefined>()) {
    runtime.fail((undefined->reason ? *undefined->reason : "a value is undefined") +
                 ", and a part of it is read");
  }
  if (text == nullptr && (list == nullptr || !list->is_sequence())) {
    runtime.fail("a part of a " + type_name(object) + " is read; expected text or a list");
  }
  const auto bound = [&](const Value& value, int64_t otherwise) {
    int64_t number = otherwise;
    if (!value.is_none() && !value.as_integer(number)) {
      runtime.fail("a part begins or ends at a " + type_name(value) + "; expected a whole number");
    }
    return number;
  };
  const int64_t stride = bound(step, 1);
  if (stride == 0) runtime.fail("a part has the step 0; expected another");
  runtime.spend(text != nullptr ? text->bytes.size() : list->items.size());
  const auto count = static_cast<int64_t>(text == nullptr  ? list->items.size()
                                          : text->is_ascii ? text->bytes.size()
                                                           : count_code_points(text->bytes));
  // As Python's slice.indices().
  const int64_t lowest = stride > 0 ? 0 : -1, highest = stride > 0 ? count : count - 1;
  const auto place = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    int64_t number = bound(value, 0);
    if (number < 0) number = number < -count ? lowest : number + count;
    return std::clamp(number, lowest, highest);
  };
  const int64_t first = place(begin, stride > 0 ? lowest : highest);
  const int64_t last = place(end, stride > 0 ? highest : lowest);
  if (text != nullptr) {
    if (stride == 1) {
      if (first >= last) return make_text(runtime, "");
      const auto offset = [&](int64_t index) {
        return text->is_ascii ? static_cast<size_t>(index)
                              : byte_offset(text->bytes, static_cast<size_t>(index));
      };
      const size_t from = offset(first);
      return make_text(runtime, text->bytes.substr(from, offset(last) - from), text->is_markup);
    }
    runtime.spend(4 * text->bytes.size());
    const std::u32string characters = decode_utf8(text->bytes);
    std::u32string chosen;
    for (int64_t i = first; stride > 0 ? i < last : i > last;) {
      chosen += characters[static_cast<size_t>(i)];
      if (__builtin_add_overflow(i, stride, &i)) break;
    }
    return make_text(runtime, encode_utf8(chosen), text->is_markup);
  }
  Values items;
  for (int64_t i = first; stride > 0 ? i < last : i > last;) {
    items.push_back(list->items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  const bool is_tuple = list->kind == ListKind::kTuple;
  return make_list(runtime, std::move(items), is_tuple ? ListKind::kTuple : ListKind::kList);
}

}  // namespace vitrine::chat
