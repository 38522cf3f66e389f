// SPDX-License-Identifier: Apache-2.0
// Filters of numbers.
#include <charconv>
#include <cmath>

#include "core/json_text.h"
#include "filters.h"
#include "number_text.h"

namespace vitrine::chat {

namespace {

Value int_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"default", "base"});
  refuse_undefined(interpreter, input);
  const Value otherwise = bound.get(0) != nullptr ? bound.value(0) : Value(int64_t{0});
  int64_t whole = 0;
  double number = 0;
  if (const Text* text = input.as_text()) {
    runtime.spend(text->bytes.size());
    const WholeText found = parse_whole(text->bytes, bound.integer(1, 10), whole);
    if (found == WholeText::kWhole) return Value(whole);
    if (found == WholeText::kTooLarge) {
      runtime.fail("'int' gets " + quote_text(text->bytes) + "; expected a number of 64 bits");
    }
    if (!parse_float(text->bytes, number) || std::isinf(number)) return otherwise;
  } else if (input.as_integer(whole)) {
    return Value(whole);
  } else if (!input.as_number(number)) {
    return otherwise;
  }
  if (std::isnan(number)) return otherwise;
  if (!(std::abs(number) < 9.2e18)) {
    runtime.fail("'int' gets " + float_text(number) + "; expected a number of 64 bits");
  }
  return Value(static_cast<int64_t>(number));
}

Value float_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {"default"});
  refuse_undefined(interpreter, input);
  double number = 0;
  const Text* text = input.as_text();
  if (text != nullptr) interpreter.runtime().spend(text->bytes.size());
  if (text != nullptr ? parse_float(text->bytes, number) : input.as_number(number)) {
    return Value(number);
  }
  return bound.get(0) != nullptr ? bound.value(0) : Value(0.0);
}

Value abs_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(interpreter.runtime(), arguments, {});
  double number = 0;
  refuse_undefined(interpreter, input);
  if (!input.as_number(number)) {
    interpreter.runtime().fail("'abs' gets a " + type_name(input) + "; expected a number");
  }
  if (input.is_float()) return Value(std::abs(number));
  return binary_operation(interpreter.runtime(), number < 0 ? "neg" : "pos", input, Value());
}

Value round_filter(Interpreter& interpreter, const Value& input, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"precision", "method"});
  refuse_undefined(interpreter, input);
  const std::string method = bound.text(1, "common");
  const int64_t precision = bound.integer(0, 0);
  double number = 0;
  if (!input.as_number(number)) {
    runtime.fail("'round' gets a " + type_name(input) + "; expected a number");
  }
  if (precision < 0 || precision > 100) {
    runtime.fail("'round' gets the precision " + std::to_string(precision) +
                 "; expected 0 to 100 digits");
  }
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = number * scale;
    return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (method != "common")
    runtime.fail("'round' gets an unknown method; expected common, ceil, floor");
  if (!input.is_float() || !std::isfinite(number)) {
    int64_t whole = 0;
    return input.as_integer(whole) ? Value(whole) : input;
  }
  char buffer[512];
  const char* end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed,
                                  static_cast<int>(precision))
                        .ptr;
  std::from_chars(buffer, end, number);
  return Value(number);
}

}  // namespace

std::span<const FilterEntry> number_filters() {
  static constexpr FilterEntry kFilters[] = {
      {"abs", abs_filter}, {"float", float_filter}, {"int", int_filter}, {"round", round_filter}};
  return kFilters;
}

}  // namespace vitrine::chat
