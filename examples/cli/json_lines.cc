// SPDX-License-Identifier: Apache-2.0
#include "json_lines.h"

#include <fmt/format.h>

#include <fstream>

#include "common.h"

namespace cli {

void refuse_line(const std::string& path, size_t line, const std::string& what) {
  throw vitrine::Error(vitrine::ErrorKind::kBadFile,
                       fmt::format("{}: line {}: {}", path, line, what));
}

void read_json_lines(const std::string& path, const std::string& unreadable,
                     const std::function<void(const nlohmann::ordered_json&, size_t)>& take) {
  constexpr int kMostDepth = 64;
  std::ifstream file(path);
  if (!file) throw vitrine::Error(vitrine::ErrorKind::kInvalidArgument, unreadable);
  size_t number = 0;
  bool is_empty = true;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto json = nests_deeper_than(line, kMostDepth)
                          ? nlohmann::ordered_json(nlohmann::ordered_json::value_t::discarded)
                          : nlohmann::ordered_json::parse(line, nullptr, false);
    if (!json.is_object()) refuse_line(path, number, "is no JSON object; expected one a line");
    is_empty = false;
    take(json, number);
  }
  if (is_empty) refuse_line(path, 1, "has no request; expected a JSON object a line");
}

}  // namespace cli
