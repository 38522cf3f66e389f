// SPDX-License-Identifier: Apache-2.0
// Files with a JSON object a line.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace cli {

/// Throws kBadFile: "FILE: line N: WHAT".
[[noreturn]] void refuse_line(const std::string& path, size_t line, const std::string& what);

/// Calls `take` with each line that is not blank, and its number from 1. Throws kInvalidArgument
/// with `unreadable` where the file cannot be read, kBadFile for a line that is no JSON object or
/// nests too deep, and where there is no line.
void read_json_lines(const std::string& path, const std::string& unreadable,
                     const std::function<void(const nlohmann::ordered_json&, size_t)>& take);

}  // namespace cli
