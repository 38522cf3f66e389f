// SPDX-License-Identifier: Apache-2.0
// Python functions, checked by running them: HumanEval's form (Chen et al., arXiv 2107.03374), a
// head `code`, a `test` that defines check(candidate), and the function's name `entry_point`.
#include <algorithm>

#include "evaluation/program_runner.h"
#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

/// What ends a function's body that an answer goes on with, as HumanEval's stop texts do.
constexpr std::string_view kBodyEnds[] = {"\ndef ", "\nclass ", "\nif ",    "\nprint(",
                                          "\n#",    "\n```",    "\nassert "};

bool defines(std::string_view text, const std::string& name) {
  return text.find("def " + name) != std::string_view::npos;
}

/// The head as a whole program: a later definition takes its place.
std::string whole_head(const std::string& head) {
  return head + (head.ends_with('\n') ? "" : "\n") + "    pass\n";
}

/// The answer as a program: a function of its own, or the body of the head's.
std::string answer_program(const std::string& text, const std::string& head,
                           const std::string& name) {
  const std::optional<std::string_view> block = fenced_block(text);
  if (block && defines(*block, name)) return whole_head(head) + std::string(*block);
  if (!block && defines(text, name)) return whole_head(head) + text;
  std::string body(block ? *block : std::string_view(text));
  for (const std::string_view end : kBodyEnds) body = body.substr(0, body.find(end));
  return head + body;
}

Score score_code(const ScoredAnswer& answer) {
  const std::string text = answer_text(answer);
  const Json& data = answer.item.data;
  const std::string name = data["entry_point"].get<std::string>();
  Score score;
  score.is_parsed = !trim(text).empty();
  score.parts["ran"] = answer.runs_code && score.is_parsed ? 1 : 0;
  if (!answer.runs_code || !score.is_parsed) {
    score.extracted = "not run";
    return score;
  }
  const std::string program = answer_program(text, data["code"].get<std::string>(), name) + "\n" +
                              data["test"].get<std::string>() + "\ncheck(" + name + ")\n";
  ProgramLimits limits;
  limits.seconds = answer.options.value("time_limit", limits.seconds);
  limits.memory = answer.options.value("memory_limit", limits.memory);
  const ProgramResult result = run_program(program, limits);
  score.extracted = result.ending;
  score.is_parsed = result.ending != "SyntaxError" && result.ending != "IndentationError";
  score.is_right = result.has_passed;
  score.value = result.has_passed ? 1 : 0;
  return score;
}

std::string check_code(const Item& item, const Json& options) {
  whole_field(options, "", "time_limit", 1, 600, 5);
  whole_field(options, "", "memory_limit", 64, 65'536, 512);
  for (const char* name : {"code", "test", "entry_point"}) {
    if (text_field(item.data, "", name).empty()) {
      return std::string("'") + name + "' is empty; expected a text";
    }
  }
  const std::string name = item.data["entry_point"].get<std::string>();
  const bool is_name = std::ranges::all_of(name, [](char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '_';
  });
  if (!is_name || !defines(item.data["code"].get<std::string>(), name)) {
    return "'entry_point' is '" + name + "'; expected the name of a function that 'code' begins";
  }
  return {};
}

std::string expected_code(const Item& item) {
  return item.data["entry_point"].get<std::string>() + " passes its test";
}

VITRINE_REGISTER_SCORER({.name = "code",
                         .score = score_code,
                         .check = check_code,
                         .expected = expected_code,
                         .options = {"time_limit", "memory_limit"},
                         .item_fields = {"code", "test", "entry_point"}});

}  // namespace

}  // namespace vitrine::evaluation
