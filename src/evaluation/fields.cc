// SPDX-License-Identifier: Apache-2.0
#include "evaluation/fields.h"

#include <algorithm>
#include <cmath>

#include "core/json_text.h"
#include "vitrine/core.h"

namespace vitrine::evaluation {

namespace {

std::string number_text(double number) { return Json(number).dump(); }

}  // namespace

std::string field_problem(std::string_view name, const Json* found, std::string_view expected) {
  const std::string named = "'" + std::string(name) + "' is ";
  const std::string what = found == nullptr ? "missing" : found_text(nlohmann::json(*found));
  return named + what + "; expected " + std::string(expected);
}

void throw_field(const std::string& where, const std::string& problem) {
  throw Error(ErrorKind::kBadFile, where.empty() ? problem : where + ": " + problem);
}

const Json* find_field(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string text_field(const Json& object, const std::string& where, std::string_view name,
                       const std::optional<std::string>& otherwise) {
  const Json* found = find_field(object, name);
  if (found == nullptr && otherwise) return *otherwise;
  if (found == nullptr || !found->is_string()) {
    throw_field(where, field_problem(name, found, "a text"));
  }
  return found->get<std::string>();
}

int64_t whole_field(const Json& object, const std::string& where, std::string_view name,
                    int64_t least, int64_t most, std::optional<int64_t> otherwise) {
  const Json* found = find_field(object, name);
  if (found == nullptr && otherwise) return *otherwise;
  const bool is_whole = found != nullptr && found->is_number_integer() &&
                        (!found->is_number_unsigned() || found->get<uint64_t>() <= INT64_MAX);
  if (!is_whole || found->get<int64_t>() < least || found->get<int64_t>() > most) {
    throw_field(where, field_problem(name, found,
                                     "a whole number from " + std::to_string(least) + " to " +
                                         std::to_string(most)));
  }
  return found->get<int64_t>();
}

double number_field(const Json& object, const std::string& where, std::string_view name,
                    double least, double most, std::optional<double> otherwise) {
  const Json* found = find_field(object, name);
  if (found == nullptr && otherwise) return *otherwise;
  // The comparison is false for a NaN, which TOML can spell.
  if (found == nullptr || !found->is_number() ||
      !(found->get<double>() >= least && found->get<double>() <= most)) {
    throw_field(where,
                field_problem(name, found,
                              "a number from " + number_text(least) + " to " + number_text(most)));
  }
  return found->get<double>();
}

bool flag_field(const Json& object, const std::string& where, std::string_view name,
                bool otherwise) {
  const Json* found = find_field(object, name);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) throw_field(where, field_problem(name, found, "true or false"));
  return found->get<bool>();
}

std::string choice_field(const Json& object, const std::string& where, std::string_view name,
                         const std::vector<std::string>& known,
                         const std::optional<std::string>& otherwise) {
  const Json* found = find_field(object, name);
  if (found == nullptr && otherwise) return *otherwise;
  if (found == nullptr || !found->is_string() ||
      std::ranges::find(known, found->get_ref<const std::string&>()) == known.end()) {
    throw_field(where, field_problem(name, found, one_of_text(known)));
  }
  return found->get<std::string>();
}

std::vector<std::string> texts_field(const Json& object, const std::string& where,
                                     std::string_view name) {
  const Json* found = find_field(object, name);
  if (found == nullptr) return {};
  if (found->is_string()) return {found->get<std::string>()};
  if (!found->is_array())
    throw_field(where, field_problem(name, found, "a text or a list of them"));
  std::vector<std::string> texts;
  for (const Json& entry : *found) {
    if (!entry.is_string()) {
      throw_field(where, field_problem(std::string(name) + "[" + std::to_string(texts.size()) + "]",
                                       &entry, "a text"));
    }
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

std::vector<int64_t> wholes_field(const Json& object, const std::string& where,
                                  std::string_view name, int64_t least, int64_t most,
                                  const std::vector<int64_t>& otherwise) {
  const Json* found = find_field(object, name);
  if (found == nullptr) return otherwise;
  const std::string expected = "a list of whole numbers from " + std::to_string(least) + " to " +
                               std::to_string(most) + ", at least one";
  if (!found->is_array() || found->empty()) {
    throw_field(where, field_problem(name, found, expected));
  }
  std::vector<int64_t> numbers;
  for (const Json& entry : *found) {
    const std::string place = std::string(name) + "[" + std::to_string(numbers.size()) + "]";
    const Json one = Json::object({{place, entry}});
    numbers.push_back(whole_field(one, where, place, least, most));
  }
  return numbers;
}

void check_names(const Json& object, const std::string& where,
                 const std::vector<std::string>& known) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) == known.end()) {
      throw_field(where,
                  "there is no field " + quote_text(name) + "; expected " + one_of_text(known));
    }
  }
}

std::string one_of_text(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace vitrine::evaluation
