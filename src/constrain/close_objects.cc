// SPDX-License-Identifier: Apache-2.0
// Objects of a schema that list their properties and say nothing of others, closed.
#include <algorithm>
#include <array>

#include "schema.h"

namespace vitrine::constrain {

namespace {

constexpr std::array<std::string_view, 12> kClosedSchemas = {"items",
                                                             "additionalItems",
                                                             "additionalProperties",
                                                             "unevaluatedItems",
                                                             "unevaluatedProperties",
                                                             "contains",
                                                             "then",
                                                             "else",
                                                             "allOf",
                                                             "anyOf",
                                                             "oneOf",
                                                             "prefixItems"};
constexpr std::array<std::string_view, 6> kClosedMaps = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"};

}  // namespace

/// Goes into keywords that hold schemas, but not into `not` and `if`, where a narrower schema is a
/// wider answer, nor into what holds values, where a member is no keyword.
void close_objects(JsonValue& schema) {
  if (!schema.is_object()) return;
  for (size_t i = 0; i < schema.keys.size(); ++i) {
    JsonValue& value = schema.items[i];
    const bool is_map = std::ranges::find(kClosedMaps, schema.keys[i]) != kClosedMaps.end();
    if (is_map ? value.is_object() : value.is_array()) {
      if (!is_map && std::ranges::find(kClosedSchemas, schema.keys[i]) == kClosedSchemas.end())
        continue;
      for (JsonValue& inner : value.items) close_objects(inner);
    } else if (std::ranges::find(kClosedSchemas, schema.keys[i]) != kClosedSchemas.end()) {
      close_objects(value);
    }
  }
  const JsonValue* properties = schema.find("properties");
  if (properties == nullptr || !properties->is_object()) return;
  if (schema.find("additionalProperties") != nullptr) return;
  JsonValue closed;
  closed.type = JsonValue::kFalse;
  schema.keys.emplace_back("additionalProperties");
  schema.items.push_back(std::move(closed));
}

}  // namespace vitrine::constrain
