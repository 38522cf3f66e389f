// SPDX-License-Identifier: Apache-2.0
#include "vitrine/evaluation.h"

#include <algorithm>
#include <unordered_map>

#include "evaluation/result_file.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace {

/// Sorts items by task, then as they were asked for; a file has them as they ended.
void sort_items(Evaluation& read) {
  std::unordered_map<std::string, size_t> order;
  for (const SuiteTask& task : read.tasks) order.emplace(task.name, order.size());
  std::ranges::stable_sort(read.items, [&](const EvaluatedItem& a, const EvaluatedItem& b) {
    const size_t first = order[a.task], second = order[b.task];
    return first != second ? first < second : a.id < b.id;
  });
}

}  // namespace

Evaluation read_evaluation(const std::string& path) {
  Evaluation read;
  read.path = path;
  const std::string text = read_text_file(path, evaluation::kMostResultBytes);
  read.sha256 = sha256_of_text(text);
  bool has_head = false;
  std::set<std::pair<std::string, std::string>> seen;
  evaluation::read_lines(text, [&](std::string_view line, size_t number) {
    const std::string place = evaluation::place_text(path, number);
    const evaluation::Json json = evaluation::parse_line(line, place);
    if (number == 1) {
      evaluation::RunHead head = evaluation::read_head(json, place);
      read.suite = std::move(head.suite);
      read.suite_version = std::move(head.version);
      read.suite_digest = std::move(head.digest);
      read.target_json = std::move(head.target_json);
      read.tasks = std::move(head.tasks);
      has_head = true;
    } else if (json.contains("end")) {
      read.is_complete = true;
    } else {
      EvaluatedItem item = evaluation::read_item(json, place, read.seconds);
      if (!seen.emplace(item.task, item.id).second) {
        throw Error(ErrorKind::kBadFile, place + ": task '" + item.task + "' has item '" + item.id +
                                             "' already; expected each once");
      }
      if (std::ranges::find(read.tasks, item.task, &SuiteTask::name) == read.tasks.end()) {
        throw Error(ErrorKind::kBadFile,
                    place + ": 'task' is '" + item.task + "'; expected one of the first line's");
      }
      read.items.push_back(std::move(item));
    }
  });
  if (!has_head) {
    throw Error(ErrorKind::kBadFile,
                path + ": has no whole line; expected the results of `vitrine eval`");
  }
  size_t expected = 0;
  for (const SuiteTask& task : read.tasks) expected += task.num_items;
  read.is_complete = read.is_complete && read.items.size() == expected;
  sort_items(read);
  return read;
}

const EvaluatedItem* Evaluation::find(std::string_view task, std::string_view id) const {
  const auto found = std::ranges::find_if(
      items, [&](const EvaluatedItem& item) { return item.task == task && item.id == id; });
  return found == items.end() ? nullptr : &*found;
}

}  // namespace vitrine
