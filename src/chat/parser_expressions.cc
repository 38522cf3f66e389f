// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <optional>

#include "core/json_text.h"
#include "parser.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {

/// Nothing where it is beyond 64 bits.
std::optional<int64_t> whole_number(std::string digits, bool is_negative) {
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) > '9') {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
    digits.erase(0, 2);
  }
  if (is_negative) digits.insert(0, "-");
  int64_t number = 0;
  const char* digits_end = digits.data() + digits.size();
  const auto [end, status] = std::from_chars(digits.data(), digits_end, number, base);
  if (status != std::errc() || end != digits_end) return std::nullopt;
  return number;
}

}  // namespace

ExpressionRef Parser::close(ExpressionRef expression) const {
  int highest = 0;
  for (const ExpressionRef& child : expression->children) {
    if (child != nullptr) highest = std::max(highest, child->height);
  }
  for (const Argument& argument : expression->arguments) {
    highest = std::max(highest, argument.value->height);
  }
  expression->height = highest + 1;
  if (expression->height > kMaxExpressionHeight) {
    fail_at(expression->line, "an expression has more than " +
                                  std::to_string(kMaxExpressionHeight) +
                                  " operations in one another; expected fewer");
  }
  return expression;
}

ExpressionRef Parser::joined(ExpressionRef parent, ExpressionRef left, ExpressionRef right) const {
  parent->children.push_back(std::move(left));
  parent->children.push_back(std::move(right));
  return close(std::move(parent));
}

ExpressionRef Parser::make(ExpressionKind kind, int line, std::string name) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  expression->name = std::move(name);
  return expression;
}

ExpressionRef Parser::parse_expression(bool with_condition) {
  const Level level(*this);
  return with_condition ? parse_conditional() : parse_or();
}

ExpressionRef Parser::parse_tuple(bool with_condition, bool in_parentheses) {
  const int line = current().line;
  const auto ends = [this] {
    const TokenKind kind = current().kind;
    return kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || is_operator(")");
  };
  std::vector<ExpressionRef> items;
  bool is_tuple = false;
  while (!ends()) {
    items.push_back(parse_expression(with_condition));
    if (!skip_operator(",")) break;
    is_tuple = true;
    if (!in_parentheses && is_name("recursive")) break;
  }
  if (!is_tuple && items.size() == 1) return std::move(items[0]);
  if (items.empty() && !in_parentheses) fail("an expression");
  auto tuple = make(ExpressionKind::kTuple, line);
  tuple->children = std::move(items);
  return close(std::move(tuple));
}

ExpressionRef Parser::parse_conditional() {
  ExpressionRef value = parse_or();
  while (is_name("if")) {
    const int line = next().line;
    auto conditional = make(ExpressionKind::kConditional, line);
    ExpressionRef condition = parse_or();
    conditional->children.push_back(std::move(condition));
    conditional->children.push_back(std::move(value));
    conditional->children.push_back(skip_name("else") ? parse_expression() : nullptr);
    value = close(std::move(conditional));
  }
  return value;
}

ExpressionRef Parser::parse_logical(const char* name, ExpressionKind kind, Operand operand) {
  ExpressionRef left = (this->*operand)();
  while (is_name(name)) {
    const int line = next().line;
    left = joined(make(kind, line), std::move(left), (this->*operand)());
  }
  return left;
}

ExpressionRef Parser::parse_binary(std::initializer_list<const char*> operators, Operand operand) {
  ExpressionRef left = (this->*operand)();
  while (std::ranges::any_of(operators, [&](const char* text) { return is_operator(text); })) {
    const Token token = next();
    left = joined(make(ExpressionKind::kBinary, token.line, token.text), std::move(left),
                  (this->*operand)());
  }
  return left;
}

ExpressionRef Parser::parse_or() {
  return parse_logical("or", ExpressionKind::kOr, &Parser::parse_and);
}

ExpressionRef Parser::parse_and() {
  return parse_logical("and", ExpressionKind::kAnd, &Parser::parse_not);
}

ExpressionRef Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Level level(*this);
  const int line = next().line;
  auto expression = make(ExpressionKind::kNot, line);
  expression->children.push_back(parse_not());
  return close(std::move(expression));
}

ExpressionRef Parser::parse_compare() {
  const int line = current().line;
  ExpressionRef left = parse_sum();
  ExpressionRef compare;
  while (true) {
    std::string operation;
    if (current().kind == TokenKind::kOperator) {
      for (const char* text : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (current().text == text) operation = text;
      }
    } else if (is_name("in")) {
      operation = "in";
    } else if (is_name("not") && peek().kind == TokenKind::kName && peek().text == "in") {
      next();
      operation = "not in";
    }
    if (operation.empty()) break;
    next();
    if (compare == nullptr) {
      compare = make(ExpressionKind::kCompare, line);
      compare->children.push_back(std::move(left));
    }
    compare->operators.push_back(operation);
    compare->children.push_back(parse_sum());
  }
  return compare == nullptr ? std::move(left) : close(std::move(compare));
}

ExpressionRef Parser::parse_sum() { return parse_binary({"+", "-"}, &Parser::parse_concat); }

ExpressionRef Parser::parse_concat() {
  const int line = current().line;
  ExpressionRef first = parse_product();
  if (!is_operator("~")) return first;
  auto concat = make(ExpressionKind::kConcat, line);
  concat->children.push_back(std::move(first));
  while (skip_operator("~")) concat->children.push_back(parse_product());
  return close(std::move(concat));
}

ExpressionRef Parser::parse_product() {
  return parse_binary({"*", "/", "//", "%"}, &Parser::parse_power);
}

ExpressionRef Parser::parse_power() {
  ExpressionRef left = parse_unary();
  while (is_operator("**")) {
    const Token token = next();
    left = joined(make(ExpressionKind::kBinary, token.line, token.text), std::move(left),
                  parse_unary());
  }
  return left;
}

ExpressionRef Parser::parse_unary(bool with_filter) {
  const Level level(*this);
  ExpressionRef expression;
  if (is_operator("-") || is_operator("+")) {
    const Token token = next();
    const bool is_negative = token.text == "-";
    // 2^63 is no number of 64 bits, its negative is one.
    const std::string digits = current().kind == TokenKind::kInteger ? current().text : "0";
    if (is_negative && !whole_number(digits, false) && whole_number(digits, true)) {
      next();
      expression = make(ExpressionKind::kConstant, token.line);
      expression->constant = Value(*whole_number(digits, true));
    } else {
      expression =
          make(is_negative ? ExpressionKind::kNegative : ExpressionKind::kPositive, token.line);
      expression->children.push_back(parse_unary(false));
    }
    expression = close(std::move(expression));
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  return with_filter ? parse_filters_and_tests(std::move(expression)) : std::move(expression);
}

ExpressionRef Parser::parse_primary() {
  const Token token = current();
  auto constant = make(ExpressionKind::kConstant, token.line);
  switch (token.kind) {
    case TokenKind::kName: {
      next();
      if (token.text == "true" || token.text == "True") {
        constant->constant = Value(true);
      } else if (token.text == "false" || token.text == "False") {
        constant->constant = Value(false);
      } else if (token.text == "none" || token.text == "None") {
        constant->constant = Value(None());
      } else {
        for (Statement* macro : macros_) {
          macro->uses_varargs |= token.text == "varargs";
          macro->uses_kwargs |= token.text == "kwargs";
          macro->uses_caller |= token.text == "caller";
        }
        return make(ExpressionKind::kName, token.line, token.text);
      }
      return constant;
    }
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;
      constant->constant = Value::text(std::move(text));
      return constant;
    }
    case TokenKind::kInteger: {
      next();
      const std::optional<int64_t> number = whole_number(token.text, false);
      if (!number) {
        fail_at(token.line, "found the number " + token.text + "; expected one of 64 bits");
      }
      constant->constant = Value(*number);
      return constant;
    }
    case TokenKind::kFloat: {
      next();
      double number = 0;
      const char* text_end = token.text.data() + token.text.size();
      const auto [end, status] = std::from_chars(token.text.data(), text_end, number);
      if (status != std::errc() || end != text_end) {
        fail_at(token.line, "found the number " + token.text + "; expected a float64");
      }
      constant->constant = Value(number);
      return constant;
    }
    default: break;
  }
  if (skip_operator("(")) {
    ExpressionRef inner = parse_tuple(true, true);
    expect_operator(")");
    return inner;
  }
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  fail("an expression");
}

ExpressionRef Parser::parse_list() {
  auto list = make(ExpressionKind::kList, next().line);
  while (!skip_operator("]")) {
    if (!list->children.empty()) {
      expect_operator(",");
      if (skip_operator("]")) break;
    }
    list->children.push_back(parse_expression());
  }
  return close(std::move(list));
}

ExpressionRef Parser::parse_dict() {
  auto dict = make(ExpressionKind::kDict, next().line);
  while (!skip_operator("}")) {
    if (!dict->children.empty()) {
      expect_operator(",");
      if (skip_operator("}")) break;
    }
    dict->children.push_back(parse_expression());
    expect_operator(":");
    dict->children.push_back(parse_expression());
  }
  return close(std::move(dict));
}

ExpressionRef Parser::parse_postfix(ExpressionRef expression) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (is_operator("(")) {
      auto call = make(ExpressionKind::kCall, current().line);
      call->children.push_back(std::move(expression));
      call->arguments = parse_arguments();
      expression = close(std::move(call));
    } else {
      return expression;
    }
  }
}

ExpressionRef Parser::parse_filters_and_tests(ExpressionRef expression) {
  while (true) {
    if (is_operator("|")) {
      expression = parse_filter_chain(std::move(expression), false);
    } else if (is_name("is")) {
      expression = parse_test(std::move(expression));
    } else if (is_operator("(")) {
      auto call = make(ExpressionKind::kCall, current().line);
      call->children.push_back(std::move(expression));
      call->arguments = parse_arguments();
      expression = close(std::move(call));
    } else {
      return expression;
    }
  }
}

ExpressionRef Parser::parse_filter_chain(ExpressionRef expression, bool starts_inside) {
  while (starts_inside || is_operator("|")) {
    if (!starts_inside) next();
    starts_inside = false;
    const int line = current().line;
    std::string name = expect_identifier("a filter's name");
    while (skip_operator(".")) name += "." + expect_identifier("a filter's name");
    auto filter = make(ExpressionKind::kFilter, line, std::move(name));
    filter->children.push_back(std::move(expression));
    if (is_operator("(")) filter->arguments = parse_arguments();
    expression = close(std::move(filter));
  }
  return expression;
}

ExpressionRef Parser::parse_test(ExpressionRef expression) {
  const int line = next().line;
  const bool is_negated = skip_name("not");
  std::string name = expect_identifier("a test's name");
  while (skip_operator(".")) name += "." + expect_identifier("a test's name");
  auto test = make(ExpressionKind::kTest, line, std::move(name));
  test->children.push_back(std::move(expression));
  const TokenKind kind = current().kind;
  const bool has_operand =
      kind == TokenKind::kString || kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
      is_operator("[") || is_operator("{") ||
      (kind == TokenKind::kName && !is_name("else") && !is_name("or") && !is_name("and"));
  if (is_operator("(")) {
    test->arguments = parse_arguments();
  } else if (has_operand) {
    if (is_name("is")) fail("no second test without parentheses");
    Argument argument;
    argument.value = parse_postfix(parse_primary());
    test->arguments.push_back(std::move(argument));
  }
  test = close(std::move(test));
  if (!is_negated) return test;
  auto negation = make(ExpressionKind::kNot, line);
  negation->children.push_back(std::move(test));
  return close(std::move(negation));
}

ExpressionRef Parser::parse_subscript(ExpressionRef expression) {
  const Token token = next();
  if (token.text == ".") {
    if (current().kind == TokenKind::kName) {
      auto attribute = make(ExpressionKind::kAttribute, token.line, next().text);
      attribute->children.push_back(std::move(expression));
      return close(std::move(attribute));
    }
    if (current().kind != TokenKind::kInteger) fail("an attribute's name");
    auto item = make(ExpressionKind::kItem, token.line);
    return joined(std::move(item), std::move(expression), parse_primary());
  }
  ExpressionRef item = parse_item(std::move(expression));
  if (is_operator(",")) {  // a tuple as a key
    auto tuple = make(ExpressionKind::kTuple, token.line);
    if (item->kind == ExpressionKind::kSlice) fail("']'");
    tuple->children.push_back(std::move(item->children[1]));
    while (skip_operator(",")) tuple->children.push_back(parse_expression());
    item->children[1] = close(std::move(tuple));
  }
  expect_operator("]");
  return close(std::move(item));
}

ExpressionRef Parser::parse_item(ExpressionRef object) {
  const int line = current().line;
  ExpressionRef parts[3];
  int count = 0;
  if (!is_operator(":")) parts[0] = parse_expression();
  while (count < 2 && skip_operator(":")) {
    ++count;
    if (!is_operator(":") && !is_operator("]") && !is_operator(",")) {
      parts[count] = parse_expression();
    }
  }
  auto item = make(count > 0 ? ExpressionKind::kSlice : ExpressionKind::kItem, line);
  item->children.push_back(std::move(object));
  for (int i = 0; i < (count > 0 ? 3 : 1); ++i) item->children.push_back(std::move(parts[i]));
  return item;
}

std::vector<Argument> Parser::parse_arguments() {
  expect_operator("(");
  std::vector<Argument> arguments;
  bool has_named = false;
  while (!skip_operator(")")) {
    if (!arguments.empty()) {
      expect_operator(",");
      if (skip_operator(")")) break;
    }
    Argument argument;
    if (skip_operator("**")) {
      argument.stars = 2;
    } else if (skip_operator("*")) {
      argument.stars = 1;
    } else if (current().kind == TokenKind::kName && peek().kind == TokenKind::kOperator &&
               peek().text == "=") {
      argument.name = next().text;
      next();
      has_named = true;
    } else if (has_named) {
      fail("a named argument, as those before it");
    }
    argument.value = parse_expression();
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

}  // namespace vitrine::chat
