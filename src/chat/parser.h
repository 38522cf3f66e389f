// SPDX-License-Identifier: Apache-2.0
// Private to the room: tokens to a tree. One class in two files: statements and expressions.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "ast.h"
#include "lexer.h"

namespace vitrine::chat {

/// How far an expression's tree goes down.
inline constexpr int kMaxExpressionHeight = 200;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  Block parse();

 private:
  /// Counts how deep the parser is nested, so that a hostile template meets a limit, not the end of
  /// the stack.
  class Level {
   public:
    explicit Level(Parser& parser);
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next();
  bool is_name(std::string_view text) const;
  bool is_operator(std::string_view text) const;
  bool skip_name(std::string_view text);
  bool skip_operator(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_identifier(const char* what);
  [[noreturn]] void fail(const std::string& expected) const;
  [[noreturn]] void fail_at(int line, const std::string& message) const;

  // Statements.
  Block parse_block(std::initializer_list<std::string_view> ends, std::string_view opened,
                    int line);
  StatementRef parse_statement();
  StatementRef parse_if(StatementRef statement);
  StatementRef parse_for(StatementRef statement);
  StatementRef parse_set(StatementRef statement);
  StatementRef parse_macro(StatementRef statement);
  StatementRef parse_call(StatementRef statement);
  StatementRef parse_filter(StatementRef statement);
  StatementRef parse_with(StatementRef statement);
  StatementRef parse_generation(StatementRef statement);
  void parse_parameters(Statement& statement);
  void parse_macro_body(Statement& statement, std::string_view end, std::string_view opened);
  Block parse_body(std::string_view end, std::string_view opened, int line);
  Target parse_target(bool with_attributes);
  Target parse_single_target(bool with_attributes);
  void end_block();

  // Expressions, loosest first.
  ExpressionRef parse_expression(bool with_condition = true);
  /// Several with commas between them are a tuple.
  ExpressionRef parse_tuple(bool with_condition = true, bool in_parentheses = false);
  ExpressionRef parse_conditional();
  using Operand = ExpressionRef (Parser::*)();
  /// Operands with a word or with any of some operators between them, joined from the left.
  ExpressionRef parse_logical(const char* name, ExpressionKind kind, Operand operand);
  ExpressionRef parse_binary(std::initializer_list<const char*> operators, Operand operand);
  ExpressionRef parse_or();
  ExpressionRef parse_and();
  ExpressionRef parse_not();
  ExpressionRef parse_compare();
  ExpressionRef parse_sum();
  ExpressionRef parse_concat();
  ExpressionRef parse_product();
  ExpressionRef parse_power();
  ExpressionRef parse_unary(bool with_filter = true);
  ExpressionRef parse_primary();
  ExpressionRef parse_list();
  ExpressionRef parse_dict();
  ExpressionRef parse_postfix(ExpressionRef expression);
  ExpressionRef parse_filters_and_tests(ExpressionRef expression);
  ExpressionRef parse_filter_chain(ExpressionRef expression, bool starts_inside);
  ExpressionRef parse_test(ExpressionRef expression);
  ExpressionRef parse_subscript(ExpressionRef expression);
  ExpressionRef parse_item(ExpressionRef object);
  std::vector<Argument> parse_arguments();
  ExpressionRef make(ExpressionKind kind, int line, std::string name = {}) const;
  /// Takes the height of a tree whose children are there, and refuses too high a one.
  ExpressionRef close(ExpressionRef expression) const;
  ExpressionRef joined(ExpressionRef parent, ExpressionRef left, ExpressionRef right) const;

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  ///< around what is being parsed
  /// Names that the macro being parsed reads.
  std::vector<Statement*> macros_;
};

}  // namespace vitrine::chat
