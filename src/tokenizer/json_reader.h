// SPDX-License-Identifier: Apache-2.0
// Typed access to tokenizer.json that knows where it stands, so that every complaint names the file
// and the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "regex.h"
#include "vitrine/core.h"

namespace vitrine::tokenizer {

using Json = nlohmann::json;

/// Text from a file, quoted for a one-line message: shortened, control characters replaced.
std::string quote(std::string_view text);

/// Parses JSON text after checking its nesting. Throws kBadFile.
Json parse_json(std::string_view text, const std::string& file);

/// A JSON value, the file that it came from and the path to it ("pre_tokenizer.behavior").
class JsonNode {
 public:
  JsonNode(const Json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  /// A field that must be there; fails where this is not an object.
  JsonNode at(const char* key) const;
  /// A field that may be missing; then a null.
  JsonNode get(const char* key) const;
  /// The elements of an array.
  std::vector<JsonNode> elements() const;

  const std::string& as_string() const;
  bool as_bool() const;
  bool as_bool_or(bool fallback) const { return is_null() ? fallback : as_bool(); }
  /// An integer in [0, max].
  int64_t as_integer(int64_t max) const;
  const Json& as_object() const;
  const Json& as_array() const;

  /// "FILE: field 'PATH' is FOUND, expected EXPECTED".
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const;
  [[noreturn]] void fail_type(const char* expected) const;
  /// "FILE: field 'PATH': WHAT is not supported; ADVICE".
  [[noreturn]] void unsupported(const std::string& what) const;

  /// A pattern {"String": …} or {"Regex": …}.
  Regex as_pattern() const;

 private:
  std::string place() const;

  const Json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace vitrine::tokenizer
