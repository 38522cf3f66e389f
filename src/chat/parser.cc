// SPDX-License-Identifier: Apache-2.0
#include "parser.h"

#include "core/json_text.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {

constexpr int kMaxNesting = 200;

constexpr const char* kTags =
    "if, for, set, macro, call, filter, with, raw, generation, break or continue";

}  // namespace

Parser::Level::Level(Parser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxNesting) {
    --parser_.depth_;
    parser_.fail_at(parser_.current().line, "tags and brackets stand in one another more than " +
                                                std::to_string(kMaxNesting) +
                                                " levels deep; expected fewer levels");
  }
}

const Token& Parser::next() {
  const Token& token = tokens_[at_];
  if (token.kind != TokenKind::kEnd) ++at_;
  return token;
}

bool Parser::is_name(std::string_view text) const {
  return current().kind == TokenKind::kName && current().text == text;
}

bool Parser::is_operator(std::string_view text) const {
  return current().kind == TokenKind::kOperator && current().text == text;
}

bool Parser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  next();
  return true;
}

bool Parser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  next();
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail("'" + std::string(text) + "'");
}

void Parser::expect_name(std::string_view text) {
  if (!skip_name(text)) fail("'" + std::string(text) + "'");
}

std::string Parser::expect_identifier(const char* what) {
  if (current().kind != TokenKind::kName) fail(what);
  return next().text;
}

void Parser::fail(const std::string& expected) const {
  fail_at(current().line, "found " + describe(current()) + "; expected " + expected);
}

void Parser::fail_at(int line, const std::string& message) const {
  throw Error(ErrorKind::kBadFile, name_ + ": line " + std::to_string(line) + ": " + message);
}

Block Parser::parse() {
  Block block = parse_block({}, "", 1);
  if (current().kind != TokenKind::kEnd) fail("no tag that ends what was not begun");
  return block;
}

/// Statements up to one of the tags `ends`, of which it stops at the name.
Block Parser::parse_block(std::initializer_list<std::string_view> ends, std::string_view opened,
                          int line) {
  const Level level(*this);
  Block block;
  while (current().kind != TokenKind::kEnd) {
    if (current().kind == TokenKind::kBlockBegin) {
      next();
      const bool is_end = current().kind == TokenKind::kName &&
                          std::ranges::find(ends, current().text) != ends.end();
      if (is_end) return block;
      block.push_back(parse_statement());
      continue;
    }
    auto statement = std::make_unique<Statement>();
    statement->line = current().line;
    if (current().kind == TokenKind::kVariableBegin) {
      next();
      statement->kind = StatementKind::kOutput;
      statement->expression = parse_tuple();
      if (current().kind != TokenKind::kVariableEnd) fail("'}}'");
      next();
    } else {
      statement->text = next().text;
    }
    block.push_back(std::move(statement));
  }
  if (ends.size() > 0) {
    fail_at(line, "'" + std::string(opened) + "' has no end; expected '{% " +
                      std::string(*(ends.end() - 1)) + " %}'");
  }
  return block;
}

void Parser::end_block() {
  if (current().kind != TokenKind::kBlockEnd) fail("'%}'");
  next();
}

Block Parser::parse_body(std::string_view end, std::string_view opened, int line) {
  end_block();
  Block body = parse_block({end}, opened, line);
  next();
  end_block();
  return body;
}

StatementRef Parser::parse_statement() {
  auto statement = std::make_unique<Statement>();
  statement->line = current().line;
  if (current().kind != TokenKind::kName) fail(std::string("a tag: ") + kTags);
  const std::string tag = current().text;
  if (tag == "break" || tag == "continue") {
    next();
    statement->kind = tag == "break" ? StatementKind::kBreak : StatementKind::kContinue;
    if (loops_ == 0) fail_at(statement->line, "'" + tag + "' stands outside of a loop");
    end_block();
    return statement;
  }
  using Parse = StatementRef (Parser::*)(StatementRef);
  constexpr std::pair<const char*, Parse> kParsers[] = {
      {"if", &Parser::parse_if},     {"for", &Parser::parse_for},
      {"set", &Parser::parse_set},   {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call}, {"filter", &Parser::parse_filter},
      {"with", &Parser::parse_with}, {"generation", &Parser::parse_generation},
  };
  for (const auto& [name, parse] : kParsers) {
    if (tag != name) continue;
    next();
    return (this->*parse)(std::move(statement));
  }
  fail(std::string("a tag: ") + kTags);
}

StatementRef Parser::parse_if(StatementRef statement) {
  statement->kind = StatementKind::kIf;
  ExpressionRef condition = parse_tuple(false);
  while (true) {
    end_block();
    Block block = parse_block({"elif", "else", "endif"}, "if", statement->line);
    statement->branches.emplace_back(std::move(condition), std::move(block));
    const std::string tag = next().text;
    if (tag == "elif") {
      condition = parse_tuple(false);
      continue;
    }
    if (tag == "else") {
      Block otherwise = parse_body("endif", "if", statement->line);
      statement->branches.emplace_back(nullptr, std::move(otherwise));
    } else {
      end_block();
    }
    return statement;
  }
}

StatementRef Parser::parse_for(StatementRef statement) {
  statement->kind = StatementKind::kFor;
  statement->target = parse_target(false);
  expect_name("in");
  statement->expression = parse_tuple(false);
  if (skip_name("if")) statement->condition = parse_expression();
  statement->is_recursive = skip_name("recursive");
  end_block();
  ++loops_;
  statement->body = parse_block({"else", "endfor"}, "for", statement->line);
  --loops_;
  if (next().text == "else") {
    statement->else_body = parse_body("endfor", "for", statement->line);
  } else {
    end_block();
  }
  return statement;
}

StatementRef Parser::parse_set(StatementRef statement) {
  statement->kind = StatementKind::kSet;
  statement->target = parse_target(true);
  if (skip_operator("=")) {
    statement->expression = parse_tuple();
    end_block();
    return statement;
  }
  statement->kind = StatementKind::kSetBlock;
  if (is_operator("|")) statement->expression = parse_filter_chain(nullptr, false);
  statement->body = parse_body("endset", "set", statement->line);
  return statement;
}

void Parser::parse_parameters(Statement& statement) {
  expect_operator("(");
  while (!skip_operator(")")) {
    if (!statement.parameters.empty()) expect_operator(",");
    Parameter parameter;
    parameter.name = expect_identifier("a parameter's name");
    if (skip_operator("=")) {
      parameter.default_value = parse_expression();
    } else if (!statement.parameters.empty() && statement.parameters.back().default_value) {
      fail("a default value, as the parameter before has one");
    }
    statement.parameters.push_back(std::move(parameter));
  }
}

void Parser::parse_macro_body(Statement& statement, std::string_view end, std::string_view opened) {
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(&statement);
  statement.body = parse_body(end, opened, statement.line);
  macros_.pop_back();
  loops_ = loops;
}

StatementRef Parser::parse_macro(StatementRef statement) {
  statement->kind = StatementKind::kMacro;
  statement->text = expect_identifier("the macro's name");
  parse_parameters(*statement);
  parse_macro_body(*statement, "endmacro", "macro");
  return statement;
}

StatementRef Parser::parse_call(StatementRef statement) {
  statement->kind = StatementKind::kCall;
  if (is_operator("(")) parse_parameters(*statement);
  statement->expression = parse_expression();
  if (statement->expression->kind != ExpressionKind::kCall) fail("a call of a macro before it");
  parse_macro_body(*statement, "endcall", "call");
  return statement;
}

StatementRef Parser::parse_filter(StatementRef statement) {
  statement->kind = StatementKind::kFilter;
  statement->expression = parse_filter_chain(nullptr, true);
  statement->body = parse_body("endfilter", "filter", statement->line);
  return statement;
}

StatementRef Parser::parse_with(StatementRef statement) {
  statement->kind = StatementKind::kWith;
  while (current().kind != TokenKind::kBlockEnd) {
    if (!statement->assignments.empty()) expect_operator(",");
    Target target = parse_target(false);
    expect_operator("=");
    statement->assignments.emplace_back(std::move(target), parse_expression());
  }
  statement->body = parse_body("endwith", "with", statement->line);
  return statement;
}

StatementRef Parser::parse_generation(StatementRef statement) {
  statement->kind = StatementKind::kScope;
  const int loops = std::exchange(loops_, 0);
  statement->body = parse_body("endgeneration", "generation", statement->line);
  loops_ = loops;
  return statement;
}

Target Parser::parse_single_target(bool with_attributes) {
  if (skip_operator("(")) {
    Target target = parse_target(false);
    expect_operator(")");
    return target;
  }
  Target target;
  const int line = current().line;
  target.name = expect_identifier("a variable's name");
  for (const char* word : {"true", "false", "none", "True", "False", "None"}) {
    if (target.name == word) {
      fail_at(line, "'" + target.name + "' is set; expected a variable's name");
    }
  }
  if (with_attributes && skip_operator(".")) {
    target.attribute = expect_identifier("an attribute's name");
  }
  return target;
}

Target Parser::parse_target(bool with_attributes) {
  const Level level(*this);
  Target first = parse_single_target(with_attributes);
  if (!is_operator(",")) return first;
  Target tuple;
  tuple.is_tuple = true;
  tuple.targets.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().kind != TokenKind::kName && !is_operator("(")) break;
    if (is_name("in")) break;
    tuple.targets.push_back(parse_single_target(with_attributes));
  }
  return tuple;
}

Block parse_template(std::string_view source, const std::string& name) {
  return Parser(tokenize_template(source, name), name).parse();
}

}  // namespace vitrine::chat
