// SPDX-License-Identifier: Apache-2.0
// How the fields of tags are read. Each throws with a JSON pointer and what was expected.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "json_value.h"
#include "vitrine/core.h"

namespace vitrine::constrain {

using Texts = std::vector<std::string>;

struct TagFields {
  [[noreturn]] static void refuse(const std::string& pointer, const std::string& what,
                                  ErrorKind kind = ErrorKind::kBadFile);
  /// Names may hold anything; an error is one line.
  static std::string shown(std::string_view text);
  static void check_keys(const JsonValue& json, const std::string& pointer,
                         std::initializer_list<std::string_view> known);
  static const JsonValue& member(const JsonValue& json, const std::string& pointer,
                                 std::string_view key);
  static const std::string& text_of(const JsonValue& value, const std::string& pointer);
  static const std::string& text_member(const JsonValue& json, const std::string& pointer,
                                        const std::string& key);
  static bool flag(const JsonValue& json, const std::string& pointer, const std::string& key,
                   bool fallback);
  static const std::vector<JsonValue>& list_of(const JsonValue& json, const std::string& pointer,
                                               const std::string& key);
  /// Strings that are not empty; none where the key is missing.
  static Texts texts_of(const JsonValue& json, const std::string& pointer, const std::string& key);
  /// A whole number; -1 for the one that stands for no bound.
  static int64_t number_of(const JsonValue& value, const std::string& pointer);
  static std::string child(const std::string& pointer, const std::string& key, size_t index) {
    return pointer + "/" + key + "/" + std::to_string(index);
  }
};

}  // namespace vitrine::constrain
