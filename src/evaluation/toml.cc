// SPDX-License-Identifier: Apache-2.0
#include "evaluation/toml.h"

#include <sstream>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "vitrine/core.h"

namespace vitrine::evaluation {

namespace {

using Json = nlohmann::ordered_json;
constexpr int kMostLevels = 64;

template <typename Date>
std::string date_text(const Date& date) {
  std::ostringstream text;
  text << date;
  return text.str();
}

Json to_json(const toml::node& node, const std::string& file, int level) {
  if (level > kMostLevels) {
    throw Error(ErrorKind::kBadFile, file + ": tables in more than " + std::to_string(kMostLevels) +
                                         " levels; expected fewer");
  }
  if (const toml::table* table = node.as_table()) {
    Json object = Json::object();
    for (const auto& [name, value] : *table) {
      object[std::string(name.str())] = to_json(value, file, level + 1);
    }
    return object;
  }
  if (const toml::array* array = node.as_array()) {
    Json list = Json::array();
    for (const toml::node& value : *array) list.push_back(to_json(value, file, level + 1));
    return list;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* date = node.as_date()) return date_text(date->get());
  if (const auto* time = node.as_time()) return date_text(time->get());
  return date_text(node.as_date_time()->get());
}

}  // namespace

Json parse_toml(const std::string& text, const std::string& file) {
  const toml::parse_result parsed = toml::parse(text, file);
  if (parsed) return to_json(parsed.table(), file, 0);
  const toml::source_position& where = parsed.error().source().begin;
  throw Error(ErrorKind::kBadFile, file + ": line " + std::to_string(where.line) + ": " +
                                       std::string(parsed.error().description()) +
                                       "; expected TOML 1.0");
}

}  // namespace vitrine::evaluation
