// SPDX-License-Identifier: Apache-2.0
#include "tests/gates/made_evaluations.h"

#include <cmath>

namespace vitrine::testing {

namespace {

EvaluatedItem right_answer(const std::string& task, int number) {
  EvaluatedItem item;
  item.task = task;
  item.id = std::to_string(number);
  item.prompt_sha256 = "prompt of " + task + "/" + item.id;
  item.answer = "right";
  item.expected = "right";
  item.tokens = {7, number, 9};
  item.logprobs = {-0.5, -0.25, -0.125};
  item.score = 1;
  item.is_right = true;
  item.stop = "stop";
  item.prompt_tokens = 100;
  item.first_token_seconds = 0.1 + 0.001 * number;
  item.total_seconds = 0.3 + 0.002 * number;
  item.digest = "digest of " + task + "/" + item.id;
  return item;
}

EvaluatedItem right_choice(int number) {
  EvaluatedItem item = right_answer("facts", number);
  item.tokens.clear();
  item.logprobs.clear();
  item.right_choice = number % 4;
  item.choice_logprobs = {-9, -9, -9, -9};
  item.choice_logprobs[static_cast<size_t>(item.right_choice)] = -6;
  item.group = "document " + std::to_string(number / 2);
  return item;
}

EvaluatedItem safe_answer(int number) {
  EvaluatedItem item = right_answer("requests", number);
  item.parts = {{"refused", number % 2}, {"unsafe", 0}};
  return item;
}

EvaluatedItem found_needle(int number) {
  EvaluatedItem item = right_answer("niah_single", number);
  item.parts["length"] = 1024 << (number / 10);
  return item;
}

EvaluatedItem predicted_text(int number) {
  EvaluatedItem item = right_answer("texts", number);
  item.tokens.clear();
  item.is_right = false;
  for (int32_t at = 0; at < 64; ++at) {
    TextPosition position;
    position.token = at;
    position.logprob = std::log(0.5F);
    position.best = {{at, std::log(0.5F)}, {at + 1, std::log(0.25F)}, {at + 2, std::log(0.125F)}};
    item.positions.push_back(position);
  }
  return item;
}

}  // namespace

Evaluation make_evaluation(const MadeSuite& made, const std::string& path) {
  Evaluation evaluation;
  evaluation.path = path;
  evaluation.suite = "made";
  evaluation.suite_version = "1";
  evaluation.suite_digest = "made up";
  evaluation.sha256 = "hash of " + path;
  evaluation.is_complete = true;
  const auto add = [&](const char* name, const char* domain, TaskKind kind, double chance,
                       int count, const std::function<EvaluatedItem(int)>& make) {
    SuiteTask task;
    task.name = name;
    task.domain = domain;
    task.kind = kind;
    task.chance = chance;
    task.num_items = static_cast<size_t>(count);
    evaluation.tasks.push_back(task);
    for (int number = 0; number < count; ++number) evaluation.items.push_back(make(number));
  };
  add("sums", "logic", TaskKind::kAnswer, 0, made.answers,
      [](int number) { return right_answer("sums", number); });
  add("facts", "logic", TaskKind::kChoice, 0.25, made.choices, right_choice);
  add("calls", "schema", TaskKind::kAnswer, 0, made.calls,
      [](int number) { return right_answer("calls", number); });
  add("requests", "safety", TaskKind::kAnswer, 0.5, made.safety, safe_answer);
  add("niah_single", "recall", TaskKind::kAnswer, 0, made.needles, found_needle);
  add("texts", "text", TaskKind::kText, 0, made.texts, predicted_text);
  return evaluation;
}

void change_items(Evaluation& evaluation, const std::string& task,
                  const std::function<void(EvaluatedItem&, size_t)>& change) {
  size_t number = 0;
  for (EvaluatedItem& item : evaluation.items) {
    if (item.task == task) change(item, number++);
  }
}

void spoil(EvaluatedItem& item) {
  item.is_right = false;
  item.score = 0;
  item.answer = "wrong";
  item.digest = "another " + item.digest;
  if (item.tokens.size() > 1) item.tokens[1] = 1000;
}

}  // namespace vitrine::testing
