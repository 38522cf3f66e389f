// SPDX-License-Identifier: Apache-2.0
// Private to the library: named fields of tables and objects from outside, each of the type that
// is expected. `where` begins a message and names the file and the table; empty: who calls names
// them. All throw kBadFile: "WHERE: 'NAME' is FOUND; expected EXPECTED".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::evaluation {

using Json = nlohmann::ordered_json;

/// "'NAME' is FOUND; expected EXPECTED", or that it is missing where `found` is null.
std::string field_problem(std::string_view name, const Json* found, std::string_view expected);
[[noreturn]] void throw_field(const std::string& where, const std::string& problem);

/// Null where there is none.
const Json* find_field(const Json& object, std::string_view name);

std::string text_field(const Json& object, const std::string& where, std::string_view name,
                       const std::optional<std::string>& otherwise = {});
int64_t whole_field(const Json& object, const std::string& where, std::string_view name,
                    int64_t least, int64_t most, std::optional<int64_t> otherwise = {});
double number_field(const Json& object, const std::string& where, std::string_view name,
                    double least, double most, std::optional<double> otherwise = {});
bool flag_field(const Json& object, const std::string& where, std::string_view name,
                bool otherwise);
/// One text of `known`.
std::string choice_field(const Json& object, const std::string& where, std::string_view name,
                         const std::vector<std::string>& known,
                         const std::optional<std::string>& otherwise = {});
/// A text or a list of texts; where it is missing none.
std::vector<std::string> texts_field(const Json& object, const std::string& where,
                                     std::string_view name);
/// A list of whole numbers; where it is missing `otherwise`.
std::vector<int64_t> wholes_field(const Json& object, const std::string& where,
                                  std::string_view name, int64_t least, int64_t most,
                                  const std::vector<int64_t>& otherwise);

/// Throws for a field that is not among `known`.
void check_names(const Json& object, const std::string& where,
                 const std::vector<std::string>& known);

/// "a, b or c".
std::string one_of_text(const std::vector<std::string>& names);

}  // namespace vitrine::evaluation
