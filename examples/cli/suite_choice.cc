// SPDX-License-Identifier: Apache-2.0
#include "suite_choice.h"

namespace cli {

namespace {

std::string items_problem(const std::string& text) {
  const bool is_number = !text.empty() && text.size() < 10 &&
                         text.find_first_not_of("0123456789") == std::string::npos &&
                         text.front() != '0';
  return is_number || text == "all" || text == "default"
             ? std::string()
             : "expected a number above 0, default or all";
}

}  // namespace

void SuiteChoice::add_to(CLI::App& command, const std::string& tasks_help,
                         const std::string& items_help, const std::string& longest_help) {
  command.add_option("--tasks", tasks, tasks_help)->delimiter(',');
  command.add_option("--items", items, items_help)->check(items_problem)->capture_default_str();
  command.add_option("--longest", longest, longest_help)->check(CLI::Range(64, 1 << 24));
}

vitrine::SuiteOptions SuiteChoice::options() const {
  vitrine::SuiteOptions options;
  options.tasks = tasks;
  options.longest = longest;
  options.items = items == "all" ? -1 : items == "default" ? 0 : std::stoll(items);
  return options;
}

}  // namespace cli
