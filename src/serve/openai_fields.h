// SPDX-License-Identifier: Apache-2.0
// Reads fields of a JSON body with one clear error each.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::serve {

/// Throws kInvalidArgument: "'field' is FOUND; expected EXPECTED".
[[noreturn]] void refuse_field(std::string_view field, const nlohmann::json& found,
                               std::string_view expected);

/// An object's fields, of which null means that the field is not there.
class Fields {
 public:
  /// `body` must stay.
  explicit Fields(const nlohmann::json& body) : body_(body) {}

  /// Null where it is not there.
  const nlohmann::json* find(const char* name) const;
  bool has(const char* name) const { return find(name) != nullptr; }
  /// Each leaves `value` where the field is not there, and throws where it is something else.
  void read(const char* name, std::string& value) const;
  void read(const char* name, bool& value) const;
  void read(const char* name, int& value, int64_t least, int64_t most) const;
  void read(const char* name, float& value, double least, double most) const;
  /// A whole number of 64 bits; a negative one is taken by its bits.
  void read_seed(const char* name, uint64_t& value) const;
  /// One text or a list of texts, none of them empty.
  void read_texts(const char* name, std::vector<std::string>& texts, size_t most) const;

 private:
  const nlohmann::json& body_;
};

}  // namespace vitrine::serve
