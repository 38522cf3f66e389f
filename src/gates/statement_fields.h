// SPDX-License-Identifier: Apache-2.0
// Private to the library: reads a signed statement by the paths of its fields.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/json_text.h"
#include "vitrine/core.h"

namespace vitrine::gates {

/// Reads a JSON object out of `file`, which stays as it is meanwhile. Paths are JSON pointers
/// (RFC 6901); messages begin them with `root` in place of their first slash. All throw kBadFile.
class StatementFields {
 public:
  StatementFields(const nlohmann::json& json, std::string file, std::string root = "")
      : json_(json), file_(std::move(file)), root_(std::move(root)) {}

  const nlohmann::json& at(const std::string& path, const char* expected) const {
    const nlohmann::json::json_pointer place(path);
    if (!json_.contains(place)) refuse(path, "not there", expected);
    return json_.at(place);
  }
  const std::string& text(const std::string& path) const {
    const nlohmann::json& value = at(path, "a text");
    if (!value.is_string()) refuse(path, found_text(value), "a text");
    return value.get_ref<const std::string&>();
  }
  const nlohmann::json& list(const std::string& path) const {
    const nlohmann::json& value = at(path, "a list");
    if (!value.is_array()) refuse(path, found_text(value), "a list");
    return value;
  }
  void expect(const std::string& path, const std::string& expected) const {
    const std::string& found = text(path);
    if (found != expected) refuse(path, quote_text(found), quote_text(expected));
  }
  [[noreturn]] void refuse(const std::string& path, const std::string& found,
                           const std::string& expected) const {
    throw Error(ErrorKind::kBadFile, file_ + ": '" + root_ + path.substr(1) + "' is " + found +
                                         "; expected " + expected);
  }

 private:
  const nlohmann::json& json_;
  const std::string file_, root_;
};

}  // namespace vitrine::gates
