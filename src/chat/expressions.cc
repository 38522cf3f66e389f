// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include <algorithm>
#include <cmath>

#include "interpreter.h"
#include "vitrine/core.h"

namespace vitrine::chat {

Value Interpreter::evaluate(const Expression& expression, const ScopeRef& scope) {
  const Runtime::Level level(runtime_);
  runtime_.spend(8);
  runtime_.line = expression.line;
  const auto child = [&](size_t index) { return evaluate(*expression.children[index], scope); };
  switch (expression.kind) {
    case ExpressionKind::kConstant: return expression.constant;
    case ExpressionKind::kName: return look_up(expression, scope);
    case ExpressionKind::kAttribute: return attribute(child(0), expression.name);
    case ExpressionKind::kItem: {
      const Value object = child(0);
      return item(object, child(1));
    }
    case ExpressionKind::kSlice: return evaluate_slice(expression, scope);
    case ExpressionKind::kCall: return evaluate_call(expression, scope);
    case ExpressionKind::kFilter: {
      const Value input = child(0);
      CallArguments arguments = evaluate_arguments(expression.arguments, scope);
      runtime_.line = expression.line;
      return filter(expression.name, input, arguments);
    }
    case ExpressionKind::kTest: {
      const Value value = child(0);
      CallArguments arguments = evaluate_arguments(expression.arguments, scope);
      return Value(test(expression.name, value, arguments));
    }
    case ExpressionKind::kNot: return Value(!is_true(child(0)));
    case ExpressionKind::kNegative: return binary_operation(runtime_, "neg", child(0), Value());
    case ExpressionKind::kPositive: return binary_operation(runtime_, "pos", child(0), Value());
    case ExpressionKind::kBinary: {
      const Value left = child(0);
      return binary_operation(runtime_, expression.name, left, child(1));
    }
    case ExpressionKind::kCompare: return evaluate_compare(expression, scope);
    case ExpressionKind::kAnd: {
      Value left = child(0);
      return is_true(left) ? child(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = child(0);
      return is_true(left) ? left : child(1);
    }
    case ExpressionKind::kConcat: {
      std::string text;
      for (size_t i = 0; i < expression.children.size(); ++i) text += to_text(runtime_, child(i));
      return make_text(runtime_, std::move(text));
    }
    case ExpressionKind::kConditional: {
      if (is_true(child(0))) return child(1);
      if (expression.children[2] != nullptr) return child(2);
      return Value::undefined("the inline if-expression has no else and its condition is false");
    }
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: {
      Values items;
      for (size_t i = 0; i < expression.children.size(); ++i) items.push_back(child(i));
      return make_list(
          runtime_, std::move(items),
          expression.kind == ExpressionKind::kList ? ListKind::kList : ListKind::kTuple);
    }
    case ExpressionKind::kDict: {
      std::vector<std::pair<Value, Value>> items;
      for (size_t i = 0; i < expression.children.size(); i += 2) {
        Value key = child(i);
        items.emplace_back(std::move(key), child(i + 1));
      }
      return make_dict(runtime_, std::move(items));
    }
  }
  return Value();
}

Value Interpreter::look_up(const Expression& expression, const ScopeRef& scope) {
  const Value* found = scope->find(expression.name);
  return found != nullptr ? *found : Value::undefined("'" + expression.name + "' is undefined");
}

Value Interpreter::evaluate_slice(const Expression& expression, const ScopeRef& scope) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) {
    parts[i] = expression.children[i] == nullptr ? Value(None())
                                                 : evaluate(*expression.children[i], scope);
  }
  return slice(runtime_, parts[0], parts[1], parts[2], parts[3]);
}

Value Interpreter::evaluate_compare(const Expression& expression, const ScopeRef& scope) {
  Value left = evaluate(*expression.children[0], scope);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    const std::string& operation = expression.operators[i];
    Value right = evaluate(*expression.children[i + 1], scope);
    bool holds = false;
    if (operation == "==" || operation == "!=") {
      holds = are_equal(runtime_, left, right) == (operation == "==");
    } else if (operation == "in" || operation == "not in") {
      holds = contains(runtime_, right, left) == (operation == "in");
    } else {
      for (const Value* side : {&left, &right}) {
        if (const auto* undefined = side->get_if<Undefined>()) {
          runtime_.fail(undefined->reason ? *undefined->reason : "a value is undefined");
        }
      }
      bool is_unordered = false;
      const int order = compare(runtime_, left, right, operation.c_str(), &is_unordered);
      holds = operation == "<"    ? order < 0
              : operation == "<=" ? order <= 0
              : operation == ">"  ? order > 0
                                  : order >= 0;
      holds = holds && !is_unordered;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

CallArguments Interpreter::evaluate_arguments(const std::vector<Argument>& arguments,
                                              const ScopeRef& scope) {
  CallArguments result;
  for (const Argument& argument : arguments) {
    Value value = evaluate(*argument.value, scope);
    if (argument.stars == 1) {
      const ListRef items = iterate(runtime_, value);
      runtime_.spend(64 * items->items.size());
      result.positional.insert(result.positional.end(), items->items.begin(), items->items.end());
    } else if (argument.stars == 2) {
      const Dict* dict = value.as_dict();
      if (dict == nullptr) {
        runtime_.fail("a " + type_name(value) + " stands after '**'; expected a dict");
      }
      runtime_.spend(128 * dict->items.size());
      for (const auto& [key, item] : dict->items) {
        if (key.as_text() == nullptr) runtime_.fail("a key after '**' is no text; expected names");
        result.named.emplace_back(key.as_text()->bytes, item);
      }
    } else if (!argument.name.empty()) {
      result.named.emplace_back(argument.name, std::move(value));
    } else {
      result.positional.push_back(std::move(value));
    }
  }
  return result;
}

Value Interpreter::evaluate_call(const Expression& expression, const ScopeRef& scope,
                                 const Value* caller) {
  const Value callee = evaluate(*expression.children[0], scope);
  CallArguments arguments = evaluate_arguments(expression.arguments, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  runtime_.line = expression.line;
  return call(callee, arguments);
}

Value Interpreter::call(const Value& callee, CallArguments& arguments) {
  if (const auto* function = callee.get_if<std::shared_ptr<const Callable>>()) {
    const auto held = *function;
    arguments.function = held->name;
    return held->call(*this, arguments);
  }
  if (const auto* macro = callee.get_if<std::shared_ptr<Macro>>()) {
    const auto held = *macro;
    if (held->scope == nullptr) runtime_.fail("a macro is called after its end");
    return call_macro(held, arguments);
  }
  if (const auto* loop = callee.get_if<std::shared_ptr<Loop>>()) {
    const auto held = *loop;
    return call_loop(*held, arguments);
  }
  if (const auto* undefined = callee.get_if<Undefined>()) {
    runtime_.fail((undefined->reason ? *undefined->reason : "a value is undefined") +
                  "; expected a function or macro");
  }
  runtime_.fail("a " + type_name(callee) + " is called; expected a function or macro");
}

Value Interpreter::filter_block(const Expression& expression, const Value& input,
                                const ScopeRef& scope) {
  const Value inner = expression.children[0] == nullptr
                          ? input
                          : filter_block(*expression.children[0], input, scope);
  CallArguments arguments = evaluate_arguments(expression.arguments, scope);
  runtime_.line = expression.line;
  return filter(expression.name, inner, arguments);
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (const auto* undefined = object.get_if<Undefined>()) {
    runtime_.fail((undefined->reason ? *undefined->reason : "a value is undefined") +
                  ", and its attribute '" + name + "' is read");
  }
  if (name.starts_with('_')) {
    return Value::undefined("access to the attribute '" + name + "' is not allowed");
  }
  if (const auto* space = object.get_if<std::shared_ptr<Namespace>>()) {
    if (const Value* found = (*space)->find(name)) return *found;
  } else if (std::optional<Value> method = find_method(*this, object, name)) {
    return *method;
  } else if (const Dict* dict = object.as_dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return Value::undefined("a " + type_name(object) + " has no attribute '" + name + "'");
}

Value Interpreter::item(const Value& object, const Value& key) {
  const Text* name = key.as_text();
  if (object.is_undefined()) return attribute(object, name == nullptr ? "item" : name->bytes);
  if (const Dict* dict = object.as_dict()) {
    const bool can_be_key = key.as_dict() == nullptr &&
                            (key.as_list() == nullptr || key.as_list()->kind == ListKind::kTuple);
    const Value* found = can_be_key ? find_key(runtime_, *dict, key) : nullptr;
    if (found != nullptr) return *found;
  }
  int64_t index = 0;
  if (key.as_integer(index)) {
    const List* list = object.as_list();
    if (list != nullptr && list->is_sequence()) {
      const auto count = static_cast<int64_t>(list->items.size());
      if (index < 0) index += count;
      if (index >= 0 && index < count) return list->items[static_cast<size_t>(index)];
    } else if (object.as_text() != nullptr) {
      const Value end = index == -1 ? Value(None()) : Value(index == INT64_MAX ? index : index + 1);
      const Value character = slice(runtime_, object, key, end, Value(None()));
      if (!character.as_text()->bytes.empty()) return character;
    }
  }
  if (name != nullptr) {
    if (name->bytes.starts_with('_') || object.get_if<std::shared_ptr<Namespace>>()) {
      return attribute(object, name->bytes);
    }
    if (std::optional<Value> method = find_method(*this, object, name->bytes)) return *method;
    return Value::undefined("a " + type_name(object) + " has no item '" + name->bytes + "'");
  }
  return Value::undefined("a " + type_name(object) + " has no item " + to_repr(runtime_, key));
}

BoundArguments::BoundArguments(Runtime& runtime, CallArguments& arguments,
                               std::initializer_list<const char*> names, size_t required)
    : runtime_(runtime), function_(arguments.function), names_(names), values_(names.size()) {
  std::string known;
  for (const char* name : names_) known += (known.empty() ? "" : ", ") + std::string(name);
  if (arguments.positional.size() > names_.size()) {
    runtime_.fail("'" + function_ + "' gets " + std::to_string(arguments.positional.size()) +
                  " values; expected " + (known.empty() ? "none" : "at most " + known));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(names_, std::string_view(name));
    if (found == names_.end()) {
      runtime_.fail("'" + function_ + "' gets '" + name + "'; expected " +
                    (known.empty() ? "nothing" : known));
    }
    values_[static_cast<size_t>(found - names_.begin())] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) runtime_.fail("'" + function_ + "' lacks '" + names_[i] + "'");
  }
}

void BoundArguments::refuse(size_t index, const char* expected) const {
  runtime_.fail("'" + function_ + "' gets a " + type_name(*values_[index]) + " as '" +
                names_[index] + "'; expected " + expected);
}

int64_t BoundArguments::integer(size_t index, int64_t otherwise) const {
  if (values_[index] == nullptr) return otherwise;
  int64_t number = 0;
  if (!values_[index]->as_integer(number)) refuse(index, "a whole number");
  return number;
}

bool BoundArguments::boolean(size_t index, bool otherwise) const {
  return values_[index] == nullptr ? otherwise : is_true(*values_[index]);
}

std::string BoundArguments::text(size_t index, std::string_view otherwise) const {
  if (values_[index] == nullptr) return std::string(otherwise);
  const Text* text = values_[index]->as_text();
  if (text == nullptr) refuse(index, "text");
  return text->bytes;
}

}  // namespace vitrine::chat
