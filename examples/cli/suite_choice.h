// SPDX-License-Identifier: Apache-2.0
// Chooses what of a suite is asked: the options that are common to all commands that open one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common.h"
#include "vitrine/evaluation.h"

namespace cli {

/// Holds --tasks, --items and --longest.
struct SuiteChoice {
  std::vector<std::string> tasks;
  std::string items = "default";
  int64_t longest = 0;

  /// `items_help` and the others say what the option means to the command.
  void add_to(CLI::App& command, const std::string& tasks_help, const std::string& items_help,
              const std::string& longest_help);
  vitrine::SuiteOptions options() const;
};

}  // namespace cli
