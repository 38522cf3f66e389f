// SPDX-License-Identifier: Apache-2.0
#include "evaluation/scorers/schema_shares.h"

#include <algorithm>
#include <cmath>

#include "evaluation/scorers/reading.h"
#include "vitrine/constrain.h"

namespace vitrine::evaluation {

namespace {

void add_shares(const Json& value, const Json& schema, SchemaShares& shares) {
  if (!schema.is_object()) return;
  if (const Json* type = find_field(schema, "type")) {
    const auto fits = [&](const Json& name) {
      return name.is_string() && has_json_type(value, name.get<std::string>());
    };
    shares.types.add(type->is_array() ? std::ranges::any_of(*type, fits) : fits(*type));
  }
  if (const Json* values = find_field(schema, "enum"); values != nullptr && values->is_array()) {
    shares.enums.add(std::ranges::find(*values, value) != values->end());
  }
  if (const Json* constant = find_field(schema, "const")) shares.enums.add(*constant == value);
  const Json* required = find_field(schema, "required");
  if (required != nullptr && required->is_array()) {
    for (const Json& name : *required) {
      shares.required.add(name.is_string() && value.is_object() &&
                          value.contains(name.get<std::string>()));
    }
  }
  const Json* properties = find_field(schema, "properties");
  if (properties != nullptr && properties->is_object() && value.is_object()) {
    for (const auto& [name, property] : properties->items()) {
      if (value.contains(name)) add_shares(value[name], property, shares);
    }
  }
  const Json* items = find_field(schema, "items");
  if (items != nullptr && value.is_array()) {
    for (const Json& entry : value) add_shares(entry, *items, shares);
  }
}

/// One id a byte, and one that ends a text.
const TokenTable& byte_table() {
  static const TokenTable table = [] {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.emplace_back();
    return TokenTable::from_bytes(std::move(bytes), {256});
  }();
  return table;
}

}  // namespace

SchemaShares schema_shares(const Json& value, const Json& schema) {
  SchemaShares shares;
  add_shares(value, schema, shares);
  return shares;
}

bool has_json_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type != "integer") return true;
  return value.is_number_integer() ||
         (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
}

bool is_accepted(const std::string& schema, std::string_view text) {
  const Grammar grammar =
      Grammar::json_schema(byte_table(), schema, SchemaOptions::every_spelling());
  const std::unique_ptr<Constraint> constraint = grammar.start();
  for (const char byte : text) {
    if (!constraint->accept(static_cast<uint8_t>(byte))) return false;
  }
  return constraint->is_complete();
}

bool are_equal_values(const Json& found, const Json& right) {
  if (found.is_string() && right.is_string()) {
    return fold_case(trim(found.get_ref<const std::string&>())) ==
           fold_case(trim(right.get_ref<const std::string&>()));
  }
  if (found.is_number() && right.is_number()) {
    const double value = right.get<double>();
    return std::abs(found.get<double>() - value) <= std::abs(value) * 1e-12;
  }
  if (found.is_array() && right.is_array()) {
    return std::ranges::equal(found, right, are_equal_values);
  }
  if (found.is_object() && right.is_object()) {
    return found.size() == right.size() &&
           std::ranges::all_of(right.items(), [&](const auto& entry) {
             return found.contains(entry.key()) &&
                    are_equal_values(found[entry.key()], entry.value());
           });
  }
  return found == right;
}

Share equal_leaves(const Json& found, const Json& right) {
  Share share;
  if (right.is_structured() && !right.empty()) {
    for (const auto& [name, value] : right.items()) {
      const bool is_there = right.is_object()
                                ? found.is_object() && found.contains(name)
                                : found.is_array() && std::stoull(name) < found.size();
      const Json nothing;
      const Json& other = !is_there           ? nothing
                          : right.is_object() ? found[name]
                                              : found[std::stoull(name)];
      // A leaf that is null is right only where it stands there.
      if (!is_there && !value.is_structured()) {
        share.add(false);
      } else {
        share.add(equal_leaves(other, value));
      }
    }
    return share;
  }
  share.add(are_equal_values(found, right));
  return share;
}

}  // namespace vitrine::evaluation
