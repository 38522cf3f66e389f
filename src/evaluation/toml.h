// SPDX-License-Identifier: Apache-2.0
// Private to the library: TOML files as JSON values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace vitrine::evaluation {

/// Parses TOML 1.0. Names of a table ascend, and dates become texts. Throws kBadFile with
/// `file` and the line for what is no TOML, and for tables in more than 64 levels.
nlohmann::ordered_json parse_toml(const std::string& text, const std::string& file);

}  // namespace vitrine::evaluation
