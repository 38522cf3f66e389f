// SPDX-License-Identifier: Apache-2.0
// Private to the library: the tasks of a suite's TOML file.
#pragma once

#include <string>
#include <vector>

#include "evaluation/item.h"

namespace vitrine::evaluation {

/// Where a task's items come from, and how many are asked.
struct TaskPlan {
  Task task;            // without items
  std::string where;    // begins messages: "FILE: [[task]] 'NAME'"
  std::string items;    // a file beside the suite's, or empty
  std::string fetched;  // a file in the folder of what was fetched, or empty
  std::string fetch;    // the command that fetches it
  std::string maker;    // who makes them, or empty
  std::string sha256;   // of the file; empty: not told
  int64_t count = 0;    // asked where nothing else is said; of makers with lengths: of each length
  int64_t all = 0;      // of makers: the fixed larger set
};

/// Reads `[suite]` into `suite` and each `[[task]]`. Throws kBadFile and kUnsupported.
std::vector<TaskPlan> read_tasks(const Json& toml, const std::string& file, SuiteData& suite);

}  // namespace vitrine::evaluation
