// SPDX-License-Identifier: Apache-2.0
// Private to the library: what of a JSON value is as its schema wants it, and which of its values
// are right.
#pragma once

#include <string>

#include "evaluation/item.h"

namespace vitrine::evaluation {

/// So many of so many.
struct Share {
  size_t right = 0, all = 0;
  void add(bool is_right) {
    right += is_right ? 1 : 0;
    ++all;
  }
  void add(const Share& other) {
    right += other.right;
    all += other.all;
  }
  bool is_whole() const { return right == all; }
  /// 1 where there is none.
  double value() const {
    return all == 0 ? 1 : static_cast<double>(right) / static_cast<double>(all);
  }
};

/// Shares of a value, by `required`, `type` and `enum` (`const` too) of its schema and of those
/// below `properties` and `items`.
struct SchemaShares {
  Share required, types, enums;
};
SchemaShares schema_shares(const Json& value, const Json& schema);

/// Whether a value has a JSON Schema type; a whole number is a number, and 2.0 an integer.
bool has_json_type(const Json& value, const std::string& type);

/// Whether a JSON text is one that the schema accepts, by the same rules as constrained answers
/// (Grammar::json_schema). Throws what that throws.
bool is_accepted(const std::string& schema, std::string_view text);

/// Texts are equal but for case and white space at their ends, numbers by their value, lists and
/// objects by theirs.
bool are_equal_values(const Json& found, const Json& right);

/// The leaves of `right` that `found` has at the same place with an equal value.
Share equal_leaves(const Json& found, const Json& right);

}  // namespace vitrine::evaluation
