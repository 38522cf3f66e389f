// SPDX-License-Identifier: Apache-2.0
// Private to the room: a parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "value.h"

namespace vitrine::chat {

struct Expression;
using ExpressionRef = std::unique_ptr<Expression>;

struct Argument {
  ExpressionRef value;
  std::string name;  ///< of a keyword argument
  int stars = 0;     ///< 1: *value, 2: **value
};

enum class ExpressionKind : uint8_t {
  kConstant,
  kName,
  kAttribute,    ///< children[0].name
  kItem,         ///< children[0][children[1]]
  kSlice,        ///< children[0][children[1]:children[2]:children[3]], each may be null
  kCall,         ///< children[0](arguments)
  kFilter,       ///< children[0] | name(arguments); null child: a filter block's text
  kTest,         ///< children[0] is name(arguments)
  kNot,          ///< not children[0]
  kNegative,     ///< -children[0]
  kPositive,     ///< +children[0]
  kBinary,       ///< children[0] name children[1]: + - * / // % **
  kCompare,      ///< children[0] operators[0] children[1] operators[1] …
  kAnd,          ///< children[0] and children[1]
  kOr,           ///< children[0] or children[1]
  kConcat,       ///< children joined by ~
  kConditional,  ///< children[1] if children[0] else children[2], which may be null
  kList,
  kTuple,
  kDict,  ///< keys and values in turn
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 1;
  int height = 1;  ///< of the tree below
  std::string name;
  Value constant;
  std::vector<ExpressionRef> children;
  std::vector<std::string> operators;
  std::vector<Argument> arguments;
};

/// What an assignment writes to: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute;        ///< not empty: `name.attribute`
  std::vector<Target> targets;  ///< not empty: a tuple
  bool is_tuple = false;
};

struct Statement;
using StatementRef = std::unique_ptr<Statement>;
using Block = std::vector<StatementRef>;

struct Parameter {
  std::string name;
  ExpressionRef default_value;  ///< may be null
};

enum class StatementKind : uint8_t {
  kText,      ///< text
  kOutput,    ///< {{ expression }}
  kIf,        ///< branches: condition (null: else) and block
  kFor,       ///< for target in expression if condition: body, else_body
  kSet,       ///< set target = expression
  kSetBlock,  ///< set target: body, through `expression`, a filter chain, where there is one
  kMacro,     ///< macro name(parameters): body
  kCall,      ///< call(parameters) expression: body
  kFilter,    ///< filter chain `expression`: body
  kWith,      ///< with target = expression …: body
  kScope,     ///< generation: body, in a scope of its own
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 1;
  std::string text;  ///< of kText; the name of a macro
  ExpressionRef expression, condition;
  std::vector<std::pair<ExpressionRef, Block>> branches;
  Target target;
  std::vector<std::pair<Target, ExpressionRef>> assignments;  ///< kWith
  std::vector<Parameter> parameters;
  Block body, else_body;
  bool is_recursive = false;
  /// What the body of a macro or call block reads: it may take further arguments then.
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

/// Throws kBadFile ("name: line N: …").
Block parse_template(std::string_view source, const std::string& name);

}  // namespace vitrine::chat
