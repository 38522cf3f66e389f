// SPDX-License-Identifier: Apache-2.0
#include "fields.h"

#include <cmath>
#include <cstdio>

#include "text.h"

namespace vitrine::checkpoint {
namespace {

bool is_integer_within(const nlohmann::json& value, int64_t low, int64_t high) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return false;
  }
  return value.is_number_integer() && value.get<int64_t>() >= low && value.get<int64_t>() <= high;
}

}  // namespace

const nlohmann::json* Fields::find(std::string_view name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!is_integer_within(*value, low, high)) bad(name, "an integer of " + range_text(low, high));
  return value->get<int64_t>();
}

std::optional<int64_t> Fields::integer(std::initializer_list<std::string_view> names, int64_t low,
                                       int64_t high) const {
  std::optional<int64_t> result;
  std::string_view first;
  for (std::string_view name : names) {
    const std::optional<int64_t> value = integer(name, low, high);
    if (!value) continue;
    if (result && *result != *value) {
      bad(name, std::to_string(*result) + " as in field " + quote_text(first));
    }
    result = value;
    first = name;
  }
  return result;
}

int64_t Fields::required_integer(std::string_view name, int64_t low, int64_t high) const {
  const std::optional<int64_t> value = integer(name, low, high);
  if (!value) bad(name, "an integer of " + range_text(low, high));
  return *value;
}

std::optional<double> Fields::number(std::string_view name, double low, double high) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= low && number <= high)) {
    char range[80];
    std::snprintf(range, sizeof(range), "a number of %g to %g", low, high);
    bad(name, range);
  }
  return number;
}

std::optional<bool> Fields::boolean(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) bad(name, "true or false");
  return value->get<bool>();
}

std::optional<std::string> Fields::string(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) bad(name, "a string");
  return value->get<std::string>();
}

std::vector<std::string> Fields::strings(std::string_view name) const {
  std::vector<std::string> result;
  const nlohmann::json* value = find(name);
  if (value == nullptr) return result;
  if (!value->is_array()) bad(name, "a list of strings");
  for (const nlohmann::json& element : *value) {
    if (!element.is_string()) bad(name, "a list of strings only");
    result.push_back(element.get<std::string>());
  }
  return result;
}

std::vector<int64_t> Fields::integers(std::string_view name, int64_t low, int64_t high,
                                      size_t max_count) const {
  std::vector<int64_t> result;
  const nlohmann::json* value = find(name);
  if (value == nullptr) return result;
  const std::string expected = "an integer, or a list of at most " + std::to_string(max_count) +
                               ", of " + range_text(low, high);
  if (!value->is_array()) {
    if (!is_integer_within(*value, low, high)) bad(name, expected);
    return {value->get<int64_t>()};
  }
  if (value->size() > max_count) bad(name, expected);
  for (const nlohmann::json& element : *value) {
    if (!is_integer_within(element, low, high)) {
      throw_bad_file(place_ + ": field " + quote_text(name) + " holds " + found_text(element) +
                     "; expected " + expected);
    }
    result.push_back(element.get<int64_t>());
  }
  return result;
}

std::vector<double> Fields::numbers(std::string_view name, double low, double high,
                                    size_t count) const {
  char expected[100];
  std::snprintf(expected, sizeof(expected), "a list of %zu numbers of %g to %g", count, low, high);
  const nlohmann::json* value = find(name);
  if (value == nullptr || !value->is_array()) bad(name, expected);
  if (value->size() != count) {
    throw_bad_file(place_ + ": field " + quote_text(name) + " is a list of " +
                   std::to_string(value->size()) + "; expected " + expected);
  }
  std::vector<double> result;
  for (const nlohmann::json& element : *value) {
    const double number = element.is_number() ? element.get<double>() : NAN;
    if (!(number >= low && number <= high)) {
      throw_bad_file(place_ + ": field " + quote_text(name) + " holds " + found_text(element) +
                     "; expected " + expected);
    }
    result.push_back(number);
  }
  return result;
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) bad(name, "an object");
  return Fields(*value, place_ + ": " + std::string(name));
}

std::string Fields::message(std::string_view name, const std::string& expected) const {
  const nlohmann::json* value = find(name);
  return place_ + ": field " + quote_text(name) +
         (value == nullptr ? " is missing" : " is " + found_text(*value)) + "; expected " +
         expected;
}

void Fields::bad(std::string_view name, const std::string& expected) const {
  throw_bad_file(message(name, expected));
}

void Fields::unsupported(std::string_view name, const std::string& expected) const {
  throw_unsupported(message(name, expected));
}

}  // namespace vitrine::checkpoint
