// SPDX-License-Identifier: Apache-2.0
// Statements.
#include "interpreter.h"

#include <algorithm>

#include "core/json_text.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {
constexpr uint64_t kStepCost = 16;
constexpr uint64_t kScopeCost = 128;
}  // namespace

void Scope::set(const std::string& name, Value value) {
  for (auto& [known, current] : variables) {
    if (known != name) continue;
    current = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

Interpreter::Interpreter(std::string name, Values variables_and_names, uint64_t max_work,
                         size_t max_output, int64_t now)
    : runtime_(std::move(name), max_work), max_output_(max_output), now_(now) {
  globals_ = std::make_shared<Scope>(nullptr);
  globals_->variables = global_functions();
  auto context = std::make_shared<Scope>(globals_);
  for (size_t i = 0; i + 1 < variables_and_names.size(); i += 2) {
    context->set(variables_and_names[i].as_text()->bytes, variables_and_names[i + 1]);
  }
  globals_ = std::move(context);
}

Interpreter::~Interpreter() {
  for (const auto& macro : macros_) macro->scope.reset();
  for (const auto& space : namespaces_) space->attributes.clear();
  for (const auto& loop : loops_) {
    loop->scope.reset();
    loop->last_changed.clear();
    loop->items = std::make_shared<const List>();
  }
}

std::string Interpreter::run(const Block& block) {
  std::string out;
  out_ = &out;
  run_block(block, std::make_shared<Scope>(globals_));
  return out;
}

void Interpreter::write(std::string_view text) {
  runtime_.spend(text.size());
  if (text.size() > max_output_ - std::min(max_output_, out_->size())) {
    runtime_.fail("the template writes more than " + std::to_string(max_output_) +
                  " bytes; expected a prompt");
  }
  *out_ += text;
}

template <typename Body>
std::string Interpreter::capture(const Body& body) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  try {
    body();
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

Interpreter::Flow Interpreter::run_block(const Block& block, const ScopeRef& scope) {
  for (const StatementRef& statement : block) {
    const Flow flow = run_statement(*statement, scope);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const ScopeRef& scope) {
  const Runtime::Level level(runtime_);
  runtime_.spend(kStepCost);
  runtime_.line = statement.line;
  const auto inner_text = [&] {
    return capture([&] { run_block(statement.body, std::make_shared<Scope>(scope)); });
  };
  switch (statement.kind) {
    case StatementKind::kText: write(statement.text); break;
    case StatementKind::kOutput: {
      const Value value = evaluate(*statement.expression, scope);
      if (const Text* text = value.as_text()) {
        write(text->bytes);
      } else {
        write(to_text(runtime_, value));
      }
      break;
    }
    case StatementKind::kIf: return run_if(statement, scope);
    case StatementKind::kFor: run_for(statement, scope); break;
    case StatementKind::kSet:
      assign(statement.target, evaluate(*statement.expression, scope), scope);
      break;
    case StatementKind::kSetBlock: {
      Value text = make_text(runtime_, inner_text());
      if (statement.expression) text = filter_block(*statement.expression, text, scope);
      assign(statement.target, text, scope);
      break;
    }
    case StatementKind::kMacro:
      scope->set(statement.text, Value(make_macro(statement, scope)));
      break;
    case StatementKind::kCall: run_call(statement, scope); break;
    case StatementKind::kFilter: {
      const Value text = make_text(runtime_, inner_text());
      write(to_text(runtime_, filter_block(*statement.expression, text, scope)));
      break;
    }
    case StatementKind::kWith: run_with(statement, scope); break;
    case StatementKind::kScope: run_block(statement.body, std::make_shared<Scope>(scope)); break;
    case StatementKind::kBreak: return Flow::kBreak;
    case StatementKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement, const ScopeRef& scope) {
  for (const auto& [condition, block] : statement.branches) {
    if (condition == nullptr || is_true(evaluate(*condition, scope))) {
      return run_block(block, scope);
    }
  }
  return Flow::kNormal;
}

void Interpreter::run_for(const Statement& statement, const ScopeRef& scope) {
  const ListRef items = iterate(runtime_, evaluate(*statement.expression, scope));
  run_loop(statement, items, scope, 1);
}

void Interpreter::run_loop(const Statement& statement, const ListRef& all, const ScopeRef& scope,
                           int depth) {
  const Runtime::Level level(runtime_);
  ListRef items = all;
  if (statement.condition) {
    auto chosen = std::make_shared<List>();
    for (const Value& item : all->items) {
      runtime_.spend(kScopeCost);
      const auto inner = std::make_shared<Scope>(scope);
      assign(statement.target, item, inner);
      if (is_true(evaluate(*statement.condition, inner))) chosen->items.push_back(item);
    }
    items = chosen;
  }
  runtime_.spend(kScopeCost);
  const auto loop = std::make_shared<Loop>();
  loops_.push_back(loop);
  loop->items = items;
  loop->depth = depth;
  if (statement.is_recursive) {
    loop->statement = &statement;
    loop->scope = scope;
  }
  // As in Jinja, a pass that `break` or `continue` leaves does not count for `else`.
  bool has_whole_pass = false;
  for (size_t index = 0; index < items->items.size(); ++index) {
    runtime_.spend(kScopeCost);
    loop->index = index;
    const auto inner = std::make_shared<Scope>(scope);
    inner->variables.emplace_back("loop", Value(loop));
    assign(statement.target, items->items[index], inner);
    const Flow flow = run_block(statement.body, inner);
    has_whole_pass |= flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  loop->scope.reset();
  if (!has_whole_pass) run_block(statement.else_body, std::make_shared<Scope>(scope));
}

void Interpreter::run_call(const Statement& statement, const ScopeRef& scope) {
  const Value caller(make_macro(statement, scope));
  write(to_text(runtime_, evaluate_call(*statement.expression, scope, &caller)));
}

void Interpreter::run_with(const Statement& statement, const ScopeRef& scope) {
  const auto inner = std::make_shared<Scope>(scope);
  for (const auto& [target, expression] : statement.assignments) {
    assign(target, evaluate(*expression, scope), inner);
  }
  run_block(statement.body, inner);
}

void Interpreter::assign(const Target& target, const Value& value, const ScopeRef& scope) {
  if (!target.is_tuple) {
    if (target.attribute.empty()) return scope->set(target.name, value);
    const Value* found = scope->find(target.name);
    const auto* space = found == nullptr ? nullptr : found->get_if<std::shared_ptr<Namespace>>();
    if (space == nullptr) {
      runtime_.fail("'" + target.name + "." + target.attribute + "' is set, but '" + target.name +
                    "' is a " + (found == nullptr ? "Undefined" : type_name(*found)) +
                    "; expected a namespace");
    }
    if (target.attribute[0] == '_') {
      runtime_.fail("the attribute '" + target.attribute +
                    "' of a namespace is set; expected a name without '_' before it");
    }
    if (Value* attribute = (*space)->find(target.attribute)) {
      *attribute = value;
    } else {
      runtime_.spend(kScopeCost);
      (*space)->attributes.emplace_back(target.attribute, value);
    }
    return;
  }
  const ListRef items = iterate(runtime_, value);
  if (items->items.size() != target.targets.size()) {
    runtime_.fail(std::to_string(items->items.size()) + " values are set to " +
                  std::to_string(target.targets.size()) + " names; expected as many");
  }
  for (size_t i = 0; i < items->items.size(); ++i) {
    assign(target.targets[i], items->items[i], scope);
  }
}

std::shared_ptr<Macro> Interpreter::make_macro(const Statement& statement, const ScopeRef& scope) {
  runtime_.spend(kScopeCost);
  macros_.push_back(std::make_shared<Macro>(Macro{&statement, scope}));
  return macros_.back();
}

Value Interpreter::make_namespace(CallArguments& arguments) {
  auto space = std::make_shared<Namespace>();
  runtime_.spend(kScopeCost * (1 + arguments.named.size()));
  namespaces_.push_back(space);
  const auto add = [&](const std::string& name, const Value& value) {
    if (name.starts_with('_')) {
      runtime_.fail("the attribute '" + name +
                    "' of a namespace is set; expected a name without '_' before it");
    }
    if (Value* attribute = space->find(name)) {
      *attribute = value;
    } else {
      space->attributes.emplace_back(name, value);
    }
  };
  if (arguments.positional.size() > 1) runtime_.fail("'namespace' gets more than one dict");
  if (!arguments.positional.empty()) {
    const Dict* dict = arguments.positional[0].as_dict();
    if (dict == nullptr) {
      runtime_.fail("'namespace' gets a " + type_name(arguments.positional[0]) +
                    "; expected a dict or named values");
    }
    for (const auto& [key, value] : dict->items) {
      if (key.as_text() != nullptr) add(key.as_text()->bytes, value);
    }
  }
  for (const auto& [name, value] : arguments.named) add(name, value);
  return Value(space);
}

Value Interpreter::call_macro(const std::shared_ptr<Macro>& macro, CallArguments& arguments) {
  const Runtime::Level level(runtime_);
  const Statement& statement = *macro->statement;
  const std::string name = statement.text.empty() ? "caller" : statement.text;
  const size_t count = statement.parameters.size();
  runtime_.spend(kScopeCost);
  const auto scope = std::make_shared<Scope>(macro->scope);
  const auto take_named = [&](const std::string& wanted) -> std::optional<Value> {
    const auto found = std::ranges::find(arguments.named, wanted,
                                         [](const auto& argument) { return argument.first; });
    if (found == arguments.named.end()) return std::nullopt;
    Value value = found->second;
    arguments.named.erase(found);
    return value;
  };
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = statement.parameters[i];
    const std::optional<Value> named = take_named(parameter.name);
    if (i < arguments.positional.size()) {
      if (named) runtime_.fail("'" + name + "' gets '" + parameter.name + "' twice");
      scope->set(parameter.name, arguments.positional[i]);
    } else if (named) {
      scope->set(parameter.name, *named);
    } else if (parameter.default_value) {
      scope->set(parameter.name, evaluate(*parameter.default_value, scope));
    } else {
      scope->set(parameter.name,
                 Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  if (const std::optional<Value> caller = take_named("caller")) {
    if (!statement.uses_caller) {
      runtime_.fail("'" + name + "' is called with a block, which it does not use");
    }
    scope->set("caller", *caller);
  } else if (statement.uses_caller && scope->find("caller") == nullptr) {
    scope->set("caller", Value::undefined("No caller defined"));
  }
  Values more;
  for (size_t i = count; i < arguments.positional.size(); ++i)
    more.push_back(arguments.positional[i]);
  if (!more.empty() && !statement.uses_varargs) {
    runtime_.fail("'" + name + "' gets " + std::to_string(arguments.positional.size()) +
                  " values; expected at most " + std::to_string(count));
  }
  if (!arguments.named.empty() && !statement.uses_kwargs) {
    runtime_.fail("'" + name + "' gets '" + arguments.named[0].first +
                  "'; expected a parameter that it has");
  }
  if (statement.uses_varargs) {
    scope->set("varargs", make_list(runtime_, std::move(more), ListKind::kTuple));
  }
  if (statement.uses_kwargs) {
    std::vector<std::pair<Value, Value>> items;
    for (auto& [key, value] : arguments.named) items.emplace_back(Value::text(key), value);
    scope->set("kwargs", make_dict(runtime_, std::move(items)));
  }
  return make_text(runtime_, capture([&] { run_block(statement.body, scope); }));
}

Value Interpreter::call_loop(Loop& loop, CallArguments& arguments) {
  if (loop.statement == nullptr || loop.scope == nullptr) {
    runtime_.fail("'loop' is called; expected that of a 'for … recursive'");
  }
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    runtime_.fail("'loop' is called without a list; expected one to loop over");
  }
  const ListRef items = iterate(runtime_, arguments.positional[0]);
  const Statement& statement = *loop.statement;
  const ScopeRef scope = loop.scope;
  return make_text(runtime_, capture([&] { run_loop(statement, items, scope, loop.depth + 1); }));
}

}  // namespace vitrine::chat
