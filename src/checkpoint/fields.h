// SPDX-License-Identifier: Apache-2.0
// Typed, range-checked access to the fields of a JSON object from a file.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::checkpoint {

/// A view of one JSON object; `place` (file and path within it) starts every message. A field that
/// is null counts as absent.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string place)
      : object_(&object), place_(std::move(place)) {}

  const std::string& place() const { return place_; }
  const nlohmann::json* find(std::string_view name) const;

  /// Returns an integer within [low, high]; nothing where the field is absent, as the ones below.
  /// Throws kBadFile.
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high) const;
  /// Returns an integer under any of several spellings, which must agree where more than one is
  /// there.
  std::optional<int64_t> integer(std::initializer_list<std::string_view> names, int64_t low,
                                 int64_t high) const;
  int64_t required_integer(std::string_view name, int64_t low, int64_t high) const;
  /// Returns a finite number within [low, high]. Throws kBadFile.
  std::optional<double> number(std::string_view name, double low, double high) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string> string(std::string_view name) const;
  std::vector<std::string> strings(std::string_view name) const;
  /// Returns one integer or a list of at most `max_count`, each within [low, high].
  std::vector<int64_t> integers(std::string_view name, int64_t low, int64_t high,
                                size_t max_count) const;
  /// Returns a list of exactly `count` finite numbers within [low, high]. Throws kBadFile, also
  /// where it is absent.
  std::vector<double> numbers(std::string_view name, double low, double high, size_t count) const;
  /// Returns the object of that name; nothing where it is absent.
  std::optional<Fields> object(std::string_view name) const;

  /// Throws kBadFile: "<place>: field '<name>' is <found>; expected <expected>".
  [[noreturn]] void bad(std::string_view name, const std::string& expected) const;
  /// Throws kUnsupported with the same text.
  [[noreturn]] void unsupported(std::string_view name, const std::string& expected) const;

 private:
  std::string message(std::string_view name, const std::string& expected) const;

  const nlohmann::json* object_;
  std::string place_;
};

}  // namespace vitrine::checkpoint
