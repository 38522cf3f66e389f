// SPDX-License-Identifier: Apache-2.0
// Private to the library: the lines of an .eval file.
//
//     {"vitrine_eval": 1, "suite": {…}, "target": {…}}     the first line: who was asked what
//     {"task": …, "id": …, …}                              an item, in the order of their ends
//     {"end": {"items": N, "seconds": S, "sha256": …}}     the last line: every item is there
#pragma once

#include <string>

#include "evaluation/item.h"

namespace vitrine::evaluation {

inline constexpr int kFormatVersion = 1;

/// What the first line says.
struct RunHead {
  std::string suite, version, digest;
  std::string target_json;
  std::vector<SuiteTask> tasks;
};

std::string head_line(const RunHead& head);
/// `place`: file and line, for messages. Throws kBadFile.
RunHead read_head(const Json& json, const std::string& place);

/// `seconds`: since the run began, all sittings together.
std::string item_line(const EvaluatedItem& item, double seconds);
/// Reads a line's item and its seconds. Throws kBadFile, also where the digest is another one.
EvaluatedItem read_item(const Json& json, const std::string& place, double& seconds);

std::string end_line(size_t items, double seconds);

/// "FILE, line 3".
std::string place_text(const std::string& path, size_t line);

/// Names TaskKind's values, in their order, as suites and results do.
inline const std::vector<std::string> kTaskKinds = {"answer", "choice", "text"};
std::string_view kind_name(TaskKind kind);
/// Reads the field "kind". Throws kBadFile.
TaskKind kind_field(const Json& object, const std::string& where);

}  // namespace vitrine::evaluation
