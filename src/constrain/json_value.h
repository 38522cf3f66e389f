// SPDX-License-Identifier: Apache-2.0
// A JSON document that keeps what a schema needs: the order of keys and the digits of numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::constrain {

struct JsonValue {
  enum Type : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject } type = kNull;
  std::string text;               // a string's characters, a number's digits
  std::vector<std::string> keys;  // of an object, beside `items`
  std::vector<JsonValue> items;

  bool is_bool() const { return type == kFalse || type == kTrue; }
  bool is_object() const { return type == kObject; }
  bool is_array() const { return type == kArray; }
  bool is_string() const { return type == kString; }
  /// An object's member, the last of that name; null where there is none.
  const JsonValue* find(std::string_view key) const;
};

/// Throws kBadFile with the byte for invalid JSON (RFC 8259, UTF-8 without lone surrogates) and for
/// a nesting deeper than 500.
JsonValue parse_json(std::string_view text);

/// The document again, without white space; numbers keep their digits.
std::string write_json(const JsonValue& value);

/// `text` as a JSON string, quotes included: only what must be escaped is.
std::string json_quote(std::string_view text);

/// A key as a JSON pointer's part (RFC 6901), its slash included.
std::string pointer_token(std::string_view key);

}  // namespace vitrine::constrain
