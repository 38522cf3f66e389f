// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "gguf_header.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr const char* kTypeNames[] = {"uint8",  "int8",    "uint16",  "int16",  "uint32",
                                      "int32",  "float32", "boolean", "string", "array",
                                      "uint64", "int64",   "float64"};

template <typename T>
T element_at(const std::string& bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

std::string found_value(const GgufValue& value) {
  if (const auto* text = std::get_if<std::string>(&value.value)) return quote_text(*text);
  if (const auto* number = std::get_if<int64_t>(&value.value)) return std::to_string(*number);
  if (const auto* number = std::get_if<uint64_t>(&value.value)) return std::to_string(*number);
  if (const auto* flag = std::get_if<bool>(&value.value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<double>(&value.value)) {
    char text[40];
    std::snprintf(text, sizeof(text), "%g", *number);
    return text;
  }
  const auto& array = std::get<GgufArray>(value.value);
  return "an array of " + std::to_string(array.count) + " values of type " +
         kTypeNames[static_cast<uint32_t>(array.element_type)];
}

/// The shortest decimal that rounds to a float, as a double: 1e-05 and not 9.99999974e-06.
double shortest_decimal(float value) {
  char text[40];
  const auto written = std::to_chars(text, text + sizeof(text), value);
  double result = value;
  std::from_chars(text, written.ptr, result);
  return result;
}

}  // namespace

std::string gguf_type_name(GgufType type) { return kTypeNames[static_cast<uint32_t>(type)]; }

std::string_view GgufArray::string(uint64_t index) const {
  const uint64_t begin = index == 0 ? 0 : ends[index - 1];
  return std::string_view(bytes).substr(begin, ends[index] - begin);
}

double GgufArray::number(uint64_t index) const {
  return element_type == GgufType::kF64 ? element_at<double>(bytes, index)
                                        : static_cast<double>(element_at<float>(bytes, index));
}

int64_t GgufArray::integer(uint64_t index) const {
  switch (element_type) {
    case GgufType::kU8: return element_at<uint8_t>(bytes, index);
    case GgufType::kI8: return element_at<int8_t>(bytes, index);
    case GgufType::kU16: return element_at<uint16_t>(bytes, index);
    case GgufType::kI16: return element_at<int16_t>(bytes, index);
    case GgufType::kU32: return element_at<uint32_t>(bytes, index);
    case GgufType::kI32: return element_at<int32_t>(bytes, index);
    case GgufType::kU64: return static_cast<int64_t>(element_at<uint64_t>(bytes, index));
    default: return element_at<int64_t>(bytes, index);
  }
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufMetadata::add(const std::string& key, GgufValue value) {
  return values_.emplace(key, std::move(value)).second;
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key, int64_t low,
                                             int64_t high) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  int64_t result = 0;
  bool fits = false;
  if (const auto* number = std::get_if<int64_t>(&value->value)) {
    result = *number;
    fits = true;
  } else if (const auto* number = std::get_if<uint64_t>(&value->value)) {
    result = static_cast<int64_t>(*number);
    fits = *number <= static_cast<uint64_t>(INT64_MAX);
  }
  if (!fits || result < low || result > high) bad(key, "an integer of " + range_text(low, high));
  return result;
}

std::optional<int64_t> GgufMetadata::token_id(std::string_view key, int64_t last) const {
  const auto id = integer(key, 0, UINT32_MAX);
  if (!id || *id == UINT32_MAX) return std::nullopt;
  if (*id > last) bad(key, "an id below the vocabulary's " + std::to_string(last + 1));
  return id;
}

int64_t GgufMetadata::required_integer(std::string_view key, int64_t low, int64_t high) const {
  const auto value = integer(key, low, high);
  if (!value) bad(key, "an integer of " + range_text(low, high));
  return *value;
}

std::optional<int64_t> GgufMetadata::uniform_integer(std::string_view key, int64_t low,
                                                     int64_t high) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->type != GgufType::kArray) return integer(key, low, high);
  const auto& array = std::get<GgufArray>(value->value);
  const bool is_integral = array.element_type <= GgufType::kI32 ||
                           array.element_type == GgufType::kU64 ||
                           array.element_type == GgufType::kI64;
  if (!is_integral || array.count == 0) bad(key, "an integer of " + range_text(low, high));
  const std::string block_count = std::string(key.substr(0, key.find('.'))) + ".block_count";
  const auto layers = integer(block_count, 1, INT64_MAX);
  if (layers && array.count != static_cast<uint64_t>(*layers)) {
    bad(key, "a number for each of the " + std::to_string(*layers) + " layers");
  }
  const int64_t first = array.integer(0);
  for (uint64_t i = 0; i < array.count; ++i) {
    if (array.integer(i) != first) unsupported(key, "the same number in every layer");
  }
  if (first < low || first > high) bad(key, "integers of " + range_text(low, high));
  return first;
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key, int64_t low, int64_t high) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->type != GgufType::kArray) {
    return {required_integer(key, low, high)};
  }
  const auto& array = std::get<GgufArray>(value->value);
  const bool is_integral = array.element_type <= GgufType::kI32 ||
                           array.element_type == GgufType::kU64 ||
                           array.element_type == GgufType::kI64;
  if (!is_integral) bad(key, "integers of " + range_text(low, high));
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < array.count; ++i) {
    numbers.push_back(array.integer(i));
    if (numbers.back() < low || numbers.back() > high) {
      bad(key, "integers of " + range_text(low, high));
    }
  }
  return numbers;
}

std::optional<double> GgufMetadata::number(std::string_view key, double low, double high) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* found = std::get_if<double>(&value->value);
  if (found == nullptr || !(*found >= low && *found <= high)) {
    char range[80];
    std::snprintf(range, sizeof(range), "a float of %g to %g", low, high);
    bad(key, range);
  }
  return value->type == GgufType::kF32 ? shortest_decimal(static_cast<float>(*found)) : *found;
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* found = std::get_if<bool>(&value->value);
  if (found == nullptr) bad(key, "a boolean");
  return *found;
}

std::optional<std::string> GgufMetadata::string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* found = std::get_if<std::string>(&value->value);
  if (found == nullptr) bad(key, "a string");
  return *found;
}

std::string GgufMetadata::required_string(std::string_view key) const {
  const auto value = string(key);
  if (!value) bad(key, "a string");
  return *value;
}

const GgufArray* GgufMetadata::array(std::string_view key, GgufType element_type) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return nullptr;
  const auto* found = std::get_if<GgufArray>(&value->value);
  // An empty array says nothing of its elements: some writers give it any type.
  if (found == nullptr || (found->element_type != element_type && found->count > 0)) {
    bad(key, "an array of values of type " + gguf_type_name(element_type));
  }
  return found;
}

std::string GgufMetadata::message(std::string_view key, const std::string& expected) const {
  const GgufValue* value = find(key);
  return file_ + ": key " + quote_text(key) +
         (value == nullptr ? " is missing" : " is " + found_value(*value)) + "; expected " +
         expected;
}

void GgufMetadata::bad(std::string_view key, const std::string& expected) const {
  throw_bad_file(message(key, expected));
}

void GgufMetadata::unsupported(std::string_view key, const std::string& expected) const {
  throw_unsupported(message(key, expected));
}

}  // namespace vitrine::checkpoint
