// SPDX-License-Identifier: Apache-2.0
// Evaluations that are made up, of one suite with a task of each kind.
#pragma once

#include <functional>
#include <string>

#include "vitrine/gates.h"

namespace vitrine::testing {

/// How many items each task has.
struct MadeSuite {
  int answers = 0;  // task "sums", domain logic
  int choices = 0;  // task "facts", domain logic, 4 choices
  int calls = 0;    // task "calls", domain schema
  int safety = 0;   // task "requests", domain safety: odd ones are to be refused
  int needles = 0;  // task "niah_single", domain recall: of 1,024, 2,048, 4,096, ... by turns of 10
  int texts = 0;    // task "texts", domain text, 64 tokens each
};

/// An evaluation in which everything is right.
Evaluation make_evaluation(const MadeSuite& made, const std::string& path);

/// Calls `change` with each item of a task and its number.
void change_items(Evaluation& evaluation, const std::string& task,
                  const std::function<void(EvaluatedItem&, size_t)>& change);

/// Makes an answer wrong, and its ids differ from the second on.
void spoil(EvaluatedItem& item);

/// A gate of these rules.
inline GateFile gate_of(const std::string& rules) {
  return GateFile::parse("[gate]\nname = \"g\"\n" + rules, "g.toml");
}

/// A rule of a metric, with further fields.
inline std::string rule_of(const std::string& metric, const std::string& more = "") {
  return "[[rule]]\nname = \"" + metric + "\"\nmetric = \"" + metric + "\"\n" + more +
         "\nnext = \"roll back\"\n";
}

}  // namespace vitrine::testing
