// SPDX-License-Identifier: Apache-2.0
// Private to the room: runs a parsed template.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ast.h"
#include "runtime.h"
#include "value.h"

namespace vitrine::chat {

/// Variables of a template, a loop's pass or a macro's call; what is set here is not seen outside.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
  void set(const std::string& name, Value value);
  const Value* find(std::string_view name) const;
};
using ScopeRef = std::shared_ptr<Scope>;

struct Macro {
  const Statement* statement = nullptr;
  ScopeRef scope;
};

class Interpreter {
 public:
  /// `variables` hides functions of the same name. `now`: seconds since 1970, for strftime_now.
  Interpreter(std::string name, Values variables_and_names, uint64_t max_work, size_t max_output,
              int64_t now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string run(const Block& block);

  Runtime& runtime() { return runtime_; }
  int64_t now() const { return now_; }

  // What filters and functions need.
  Value call(const Value& callee, CallArguments& arguments);
  Value filter(std::string_view name, const Value& input, CallArguments& arguments);
  bool test(std::string_view name, const Value& value, CallArguments& arguments);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value make_namespace(CallArguments& arguments);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };

  Flow run_block(const Block& block, const ScopeRef& scope);
  Flow run_statement(const Statement& statement, const ScopeRef& scope);
  Flow run_if(const Statement& statement, const ScopeRef& scope);
  void run_for(const Statement& statement, const ScopeRef& scope);
  void run_loop(const Statement& statement, const ListRef& items, const ScopeRef& scope, int depth);
  void run_call(const Statement& statement, const ScopeRef& scope);
  void run_with(const Statement& statement, const ScopeRef& scope);
  void write(std::string_view text);
  /// What `body` writes.
  template <typename Body>
  std::string capture(const Body& body);
  void assign(const Target& target, const Value& value, const ScopeRef& scope);

  Value evaluate(const Expression& expression, const ScopeRef& scope);
  Value look_up(const Expression& expression, const ScopeRef& scope);
  Value evaluate_slice(const Expression& expression, const ScopeRef& scope);
  Value evaluate_compare(const Expression& expression, const ScopeRef& scope);
  Value evaluate_call(const Expression& expression, const ScopeRef& scope,
                      const Value* caller = nullptr);
  /// A chain of filters whose innermost input is `input`.
  Value filter_block(const Expression& expression, const Value& input, const ScopeRef& scope);
  CallArguments evaluate_arguments(const std::vector<Argument>& arguments, const ScopeRef& scope);
  Value call_macro(const std::shared_ptr<Macro>& macro, CallArguments& arguments);
  Value call_loop(Loop& loop, CallArguments& arguments);
  std::shared_ptr<Macro> make_macro(const Statement& statement, const ScopeRef& scope);

  Runtime runtime_;
  const size_t max_output_;
  const int64_t now_;
  ScopeRef globals_;
  std::string* out_ = nullptr;
  // These can hold one another, in a ring or a long chain; emptied one by one at the end.
  std::vector<std::shared_ptr<Macro>> macros_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Loop>> loops_;
};

/// The functions that every template sees.
std::vector<std::pair<std::string, Value>> global_functions();
/// A method of a text, list, dict or loop, or an attribute of a loop; nothing where it has none.
std::optional<Value> find_method(Interpreter& interpreter, const Value& object,
                                 const std::string& name);
std::optional<Value> find_text_method(const Value& object, const std::string& name);
/// `left name right` for + - * / // % **.
Value binary_operation(Runtime& runtime, const std::string& name, const Value& left,
                       const Value& right);
Value slice(Runtime& runtime, const Value& object, const Value& begin, const Value& end,
            const Value& step);

/// The arguments of a filter, test or function, by position or name.
class BoundArguments {
 public:
  /// `names`: all that it knows, in order; the first `required` must be there.
  BoundArguments(Runtime& runtime, CallArguments& arguments,
                 std::initializer_list<const char*> names, size_t required = 0);
  /// The name that it was called by.
  const std::string& function() const { return function_; }
  /// Null where it was not given.
  const Value* get(size_t index) const { return values_[index]; }
  const Value& value(size_t index) const { return *values_[index]; }
  int64_t integer(size_t index, int64_t otherwise) const;
  bool boolean(size_t index, bool otherwise) const;
  /// Text as it is; refuses another type.
  std::string text(size_t index, std::string_view otherwise) const;

 private:
  [[noreturn]] void refuse(size_t index, const char* expected) const;

  Runtime& runtime_;
  std::string function_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

}  // namespace vitrine::chat
