// SPDX-License-Identifier: Apache-2.0
#include "evaluation/suite_tasks.h"

#include <algorithm>
#include <set>

#include "core/json_text.h"
#include "core/sha256.h"
#include "evaluation/fields.h"
#include "evaluation/record.h"

namespace vitrine::evaluation {

namespace {

constexpr int64_t kMostAsked = 100'000;
const std::vector<std::string> kDomains = {"logic", "schema", "recall", "safety", "text"};

/// Fields that each task may have, whatever its scorer and maker read.
const std::vector<std::string> kTaskFields = {
    "name",           "domain",        "kind",      "items",   "fetched",
    "fetch",          "maker",         "sha256",    "licence", "source",
    "template",       "text_template", "system",    "form",    "scorer",
    "chance",         "temperature",   "seed",      "window",  "constrain",
    "max_new_tokens", "stop",          "normalise", "count",   "all",
    "critical",       "note"};

void check_name(const std::string& name, const std::string& where) {
  const bool is_plain = std::ranges::all_of(name, [](char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '_' ||
           byte == '-';
  });
  if (name.empty() || name.size() > 64 || !is_plain) {
    throw_field(where, "'name' is " + quote_text(name) +
                           "; expected 1 to 64 small letters, digits, _ and -");
  }
}

const Scorer* read_scorer(const Json& table, TaskPlan& plan) {
  SuiteTask& told = plan.task.told;
  if (told.kind != TaskKind::kAnswer) {
    if (const Json* found = find_field(table, "scorer")) {
      throw_field(plan.where, field_problem("scorer", found, "none, but of kind = \"answer\""));
    }
    return nullptr;
  }
  told.scorer = text_field(table, plan.where, "scorer");
  const Scorer* scorer = find_scorer(told.scorer);
  if (scorer == nullptr) {
    throw Error(ErrorKind::kUnsupported, plan.where + ": 'scorer' is " + quote_text(told.scorer) +
                                             "; expected " + one_of_text(scorer_names()));
  }
  return scorer;
}

const Maker* read_maker(const Json& table, TaskPlan& plan) {
  plan.maker = text_field(table, plan.where, "maker", "");
  if (plan.maker.empty()) return nullptr;
  const Maker* maker = find_maker(plan.maker);
  if (maker == nullptr) {
    throw Error(ErrorKind::kUnsupported, plan.where + ": 'maker' is " + quote_text(plan.maker) +
                                             "; expected " + one_of_text(maker_names()));
  }
  return maker;
}

void check_fields(const Json& table, const TaskPlan& plan, const Scorer* scorer,
                  const Maker* maker) {
  std::vector<std::string> known = kTaskFields;
  if (scorer != nullptr) {
    known.insert(known.end(), scorer->options.begin(), scorer->options.end());
  }
  if (maker != nullptr) known.insert(known.end(), maker->options.begin(), maker->options.end());
  check_names(table, plan.where, known);
}

void read_sources(const Json& table, TaskPlan& plan) {
  const std::string& where = plan.where;
  plan.items = text_field(table, where, "items", "");
  plan.fetched = text_field(table, where, "fetched", "");
  const int num_sources =
      int{!plan.items.empty()} + int{!plan.fetched.empty()} + int{!plan.maker.empty()};
  if (num_sources != 1) {
    throw_field(where, "it has " + std::to_string(num_sources) +
                           " of 'items', 'fetched' and 'maker'; expected one of them");
  }
  if (plan.fetched.find('/') != std::string::npos || plan.fetched.find('\0') != std::string::npos ||
      plan.fetched.starts_with('.')) {
    throw_field(where, "'fetched' is " + quote_text(plan.fetched) +
                           "; expected a file's name without a folder");
  }
  plan.sha256 = text_field(table, where, "sha256", "");
  if (!is_hex_of_32_bytes(plan.sha256) && (!plan.sha256.empty() || !plan.fetched.empty())) {
    throw_field(where, "'sha256' is " + quote_text(plan.sha256) +
                           "; expected 64 digits of 0 to 9 and a to f");
  }
  const std::string stem = plan.fetched.substr(0, plan.fetched.find('.'));
  plan.fetch = text_field(table, where, "fetch", "python3 bench/fetch_suite.py " + stem);
  SuiteTask& told = plan.task.told;
  const bool is_made = !plan.maker.empty();
  const std::optional<std::string> own =
      is_made ? std::optional<std::string>("CC0-1.0") : std::nullopt;
  told.licence = text_field(table, where, "licence", own);
  told.source = text_field(table, where, "source", is_made ? "made by " + plan.maker : own);
}

/// How the task is asked: each field with its default.
void read_asking(const Json& table, const SuiteData& suite, TaskPlan& plan) {
  const std::string& where = plan.where;
  Json& options = plan.task.options;
  options["system"] = text_field(table, where, "system", "");
  options["form"] = choice_field(table, where, "form", {"conversation", "text"}, "conversation");
  options["max_new_tokens"] = whole_field(table, where, "max_new_tokens", 1, 65'536, 256);
  options["temperature"] = number_field(table, where, "temperature", 0, 10, 0);
  options["seed"] =
      whole_field(table, where, "seed", 0, INT64_MAX, static_cast<int64_t>(suite.seed));
  options["window"] = whole_field(table, where, "window", 2, 1 << 20, 512);
  options["constrain"] =
      choice_field(table, where, "constrain", {"schema", "tools", "calls", "none"}, "none");
  options["normalise"] =
      choice_field(table, where, "normalise", {"tokens", "bytes", "none"}, "none");
  options["stop"] = texts_field(table, where, "stop");
  for (const Json& text : options["stop"]) {
    if (text == "") throw_field(where, "'stop' has an empty text; expected a text");
  }
  for (const char* name : {"template", "text_template"}) {
    if (find_field(table, name) != nullptr) text_field(table, where, name);
  }
  texts_field(table, where, "critical");
  text_field(table, where, "note", "");
}

TaskPlan read_task(const Json& table, const std::string& file, const SuiteData& suite,
                   size_t number) {
  TaskPlan plan;
  plan.where = file + ": [[task]] " + std::to_string(number);
  if (!table.is_object()) throw_field(plan.where, "found no table; expected one");
  SuiteTask& told = plan.task.told;
  told.name = text_field(table, plan.where, "name");
  check_name(told.name, plan.where);
  plan.where = file + ": [[task]] '" + told.name + "'";
  told.domain = choice_field(table, plan.where, "domain", kDomains);
  told.kind = kind_field(table, plan.where);
  const Scorer* scorer = read_scorer(table, plan);
  const Maker* maker = read_maker(table, plan);
  check_fields(table, plan, scorer, maker);
  read_sources(table, plan);
  plan.task.options = table;
  read_asking(table, suite, plan);
  told.chance = number_field(table, plan.where, "chance", 0, 1, 0);
  plan.count =
      whole_field(table, plan.where, "count", 1, kMostAsked, maker == nullptr ? kMostAsked : 10);
  plan.all =
      whole_field(table, plan.where, "all", 1, kMostAsked, std::max<int64_t>(plan.count, 100));
  return plan;
}

}  // namespace

std::vector<TaskPlan> read_tasks(const Json& toml, const std::string& file, SuiteData& suite) {
  check_names(toml, file, {"suite", "task"});
  const Json* head = find_field(toml, "suite");
  if (head == nullptr || !head->is_object()) {
    throw_field(file, field_problem("suite", head, "a table with 'name' and 'version'"));
  }
  const std::string where = file + ": [suite]";
  check_names(*head, where, {"name", "version", "seed", "note"});
  suite.name = text_field(*head, where, "name");
  check_name(suite.name, where);
  suite.version = text_field(*head, where, "version");
  suite.seed = static_cast<uint64_t>(whole_field(*head, where, "seed", 0, INT64_MAX, 0));
  const Json* tables = find_field(toml, "task");
  if (tables == nullptr || !tables->is_array() || tables->empty()) {
    throw_field(file, field_problem("task", tables, "tables [[task]], at least one"));
  }
  std::vector<TaskPlan> plans;
  std::set<std::string> names;
  for (const Json& table : *tables) {
    plans.push_back(read_task(table, file, suite, plans.size() + 1));
    if (!names.insert(plans.back().task.told.name).second) {
      throw_field(plans.back().where, "the name stands twice; expected each once");
    }
  }
  return plans;
}

}  // namespace vitrine::evaluation
