// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <set>

#include "core/json_text.h"
#include "evaluation/fields.h"
#include "evaluation/item.h"
#include "evaluation/suite_files.h"
#include "evaluation/suite_items.h"
#include "evaluation/suite_tasks.h"
#include "evaluation/toml.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace evaluation {

namespace {

constexpr size_t kMostFetchedBytes = size_t{256} << 20;

std::string fetched_folder(const SuiteOptions& options) {
  if (!options.folder.empty()) return options.folder;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/vitrine/suites";
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "." : home) + "/.cache/vitrine/suites";
}

void check_sum(const TaskPlan& plan, const std::string& text, const std::string& file) {
  const std::string found = sha256_of_text(text);
  if (plan.sha256.empty() || plan.sha256 == found) return;
  throw Error(ErrorKind::kBadFile,
              file + ": its SHA-256 is " + found + "; expected " + plan.sha256 + " (" + plan.where +
                  (plan.fetched.empty() ? ")" : "): take the file away and run " + plan.fetch));
}

/// Whether a task, or its domain, is asked for.
bool is_wanted(const SuiteTask& task, const std::vector<std::string>& names) {
  return names.empty() || std::ranges::find(names, task.name) != names.end() ||
         std::ranges::find(names, task.domain) != names.end();
}

void check_options(const SuiteOptions& options, const std::vector<TaskPlan>& plans) {
  if (options.items < -1) {
    throw Error(ErrorKind::kInvalidArgument,
                "items is " + std::to_string(options.items) + "; expected -1 (all), 0 or more");
  }
  if (options.longest < 0) {
    throw Error(ErrorKind::kInvalidArgument, "longest is " + std::to_string(options.longest) +
                                                 "; expected 0 or a number of tokens");
  }
  std::vector<std::string> known;
  for (const TaskPlan& plan : plans) known.push_back(plan.task.told.name);
  for (const std::string& name : options.tasks) {
    const bool is_known = std::ranges::any_of(plans, [&](const TaskPlan& plan) {
      return plan.task.told.name == name || plan.task.told.domain == name;
    });
    if (!is_known) {
      throw Error(ErrorKind::kInvalidArgument, "the suite has no task or domain " +
                                                   quote_text(name) + "; expected " +
                                                   one_of_text(known));
    }
  }
}

/// How many items of a task are asked at most.
size_t most_items(const TaskPlan& plan, const SuiteOptions& options) {
  if (options.items > 0) return static_cast<size_t>(options.items);
  if (options.items < 0) return plan.maker.empty() ? SIZE_MAX : static_cast<size_t>(plan.all);
  return static_cast<size_t>(plan.count);
}

/// Lets the task's maker make its items. A maker with lengths makes so many of each.
void make_items(TaskPlan& plan, const SuiteOptions& options) {
  const Maker* maker = find_maker(plan.maker);
  Json& fields = plan.task.options;
  const bool has_lengths = std::ranges::find(maker->options, "lengths") != maker->options.end();
  if (has_lengths && options.longest > 0) fields["longest"] = options.longest;
  size_t count = most_items(plan, options);
  try {
    plan.task.items =
        maker->make(fields, fields["seed"].get<uint64_t>(), static_cast<int64_t>(count));
  } catch (const Error& error) {
    throw Error(error.kind(), plan.where + ": " + error.what());
  }
  if (plan.task.items.empty()) {
    plan.task.told.left_out =
        "none of its lengths is within " + std::to_string(options.longest) + " tokens";
    return;
  }
  finish_items(plan.task, plan.where);
  if (has_lengths && options.items <= 0) return;
  // The first of each length stand before the second of each, so that all lengths stay.
  if (plan.task.items.size() > count) plan.task.items.resize(count);
}

void read_file_items(TaskPlan& plan, const SuiteFiles& files, const SuiteOptions& options,
                     uint64_t seed) {
  std::string text;
  std::string file;
  if (plan.fetched.empty()) {
    file = files.items_name(plan.items);
    text = files.items(plan.items, plan.where);
  } else {
    file = fetched_folder(options) + "/" + plan.fetched;
    std::optional<std::string> fetched = read_file_if_there(file, kMostFetchedBytes);
    if (!fetched) {
      plan.task.told.left_out = "it is not fetched; this does it: " + plan.fetch;
      return;
    }
    text = *std::move(fetched);
  }
  check_sum(plan, text, file);
  plan.task.items = read_items(text, file);
  finish_items(plan.task, file);
  choose_items(plan.task, seed, most_items(plan, options));
}

/// Chance of a choice among the items' choices, where the suite does not tell another.
double chance_of_choices(const Task& task) {
  double sum = 0;
  for (const Item& item : task.items) sum += 1.0 / static_cast<double>(item.data["choices"].size());
  return task.items.empty() ? 0 : sum / static_cast<double>(task.items.size());
}

/// All that is asked, as one text whose names ascend.
std::string canonical_text(const SuiteData& suite) {
  nlohmann::json all = {{"name", suite.name}, {"version", suite.version}, {"seed", suite.seed}};
  for (const Task& task : suite.tasks) {
    if (task.items.empty()) continue;
    nlohmann::json one = {{"options", nlohmann::json(task.options)}};
    for (const Item& item : task.items) {
      one["items"].push_back({{"id", item.id},
                              {"group", item.group},
                              {"critical", item.is_critical},
                              {"data", nlohmann::json(item.data)}});
    }
    all["tasks"].push_back(std::move(one));
  }
  return all.dump();
}

void get_items(TaskPlan& plan, const SuiteFiles& files, const SuiteOptions& options,
               uint64_t seed) {
  if (plan.maker.empty()) {
    read_file_items(plan, files, options, seed);
  } else {
    make_items(plan, options);
  }
  Task& task = plan.task;
  task.told.num_items = task.items.size();
  if (task.told.kind == TaskKind::kText)
    task.told.window = task.options.value("window", int64_t{0});
  if (task.told.kind == TaskKind::kChoice && find_field(task.options, "chance") == nullptr) {
    task.told.chance = chance_of_choices(task);
  }
}

}  // namespace

}  // namespace evaluation

Suite::Suite(std::shared_ptr<const evaluation::SuiteData> data) : data_(std::move(data)) {}

Suite Suite::open(const std::string& path, const SuiteOptions& options) {
  using namespace evaluation;
  const SuiteFiles files(path);
  auto suite = std::make_shared<SuiteData>();
  suite->path = path;
  std::vector<TaskPlan> plans =
      read_tasks(parse_toml(files.suite(), files.name()), files.name(), *suite);
  check_options(options, plans);
  for (TaskPlan& plan : plans) {
    if (!is_wanted(plan.task.told, options.tasks)) continue;
    get_items(plan, files, options, suite->seed);
    suite->told.push_back(plan.task.told);
    suite->tasks.push_back(std::move(plan.task));
  }
  const auto has_items = [](const Task& task) { return !task.items.empty(); };
  if (std::ranges::none_of(suite->tasks, has_items)) {
    throw Error(ErrorKind::kInvalidArgument, files.name() + ": nothing is left to ask: task '" +
                                                 suite->tasks.front().told.name +
                                                 "': " + suite->tasks.front().told.left_out);
  }
  suite->digest = sha256_of_text(canonical_text(*suite));
  return Suite(std::move(suite));
}

const std::string& Suite::name() const { return data_->name; }
const std::string& Suite::version() const { return data_->version; }
std::span<const SuiteTask> Suite::tasks() const { return data_->told; }
std::string Suite::digest() const { return data_->digest; }

}  // namespace vitrine
