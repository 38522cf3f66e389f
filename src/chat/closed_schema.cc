// SPDX-License-Identifier: Apache-2.0
#include "closed_schema.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace vitrine::chat {

namespace {

using Schema = nlohmann::ordered_json;

/// Keywords by which a schema that accepts less may let another accept more, or by which several
/// hold for one object.
constexpr std::string_view kCombining[] = {"not",          "if",          "then",
                                           "else",         "oneOf",       "allOf",
                                           "$ref",         "$dynamicRef", "dependentSchemas",
                                           "dependencies", "contains"};
/// Keywords that say something of keys that are not named.
constexpr std::string_view kOfOthers[] = {"additionalProperties", "unevaluatedProperties",
                                          "patternProperties", "propertyNames"};

bool has_any(const Schema& schema, std::span<const std::string_view> keywords) {
  return std::ranges::any_of(
      keywords, [&](std::string_view key) { return schema.contains(std::string(key)); });
}

/// Whether any part combines schemas but by `$ref`: then a definition may stand anywhere.
bool combines_somewhere(const Schema& part) {
  if (part.is_object()) {
    for (const auto& [key, value] : part.items()) {
      const bool is_reference = key == "$ref" || key == "$dynamicRef";
      if (!is_reference && std::ranges::find(kCombining, key) != std::end(kCombining)) return true;
      if (combines_somewhere(value)) return true;
    }
    return false;
  }
  return part.is_array() && std::ranges::any_of(part, combines_somewhere);
}

/// The keys that must come are among those that are named.
bool names_what_must_come(const Schema& schema) {
  const Schema& properties = schema["properties"];
  if (schema.contains("minProperties")) return false;
  if (!schema.contains("required")) return true;
  return schema["required"].is_array() &&
         std::ranges::all_of(schema["required"], [&](const Schema& key) {
           return key.is_string() && properties.contains(key.get_ref<const std::string&>());
         });
}

void close_parts(Schema& schema);

void close_each(Schema& schema, const char* keyword) {
  if (!schema.contains(keyword)) return;
  Schema& parts = schema[keyword];
  if (!parts.is_structured()) return;
  for (Schema& part : parts) close_parts(part);
}

void close_parts(Schema& schema) {
  if (!schema.is_object() || has_any(schema, kCombining)) return;
  const bool has_names = schema.contains("properties") && schema["properties"].is_object();
  const bool is_choice = schema.contains("anyOf");
  if (has_names && is_choice) return;  // both hold for one object
  if (has_names && !has_any(schema, kOfOthers) && names_what_must_come(schema)) {
    schema["additionalProperties"] = false;
  }
  for (const char* keyword : {"properties", "prefixItems", "anyOf"}) close_each(schema, keyword);
  for (const char* keyword : {"items", "additionalProperties"}) {
    if (schema.contains(keyword)) close_parts(schema[keyword]);
  }
}

}  // namespace

void close_objects(Schema& schema) {
  const bool may_close_definitions = !combines_somewhere(schema);
  close_parts(schema);
  if (!may_close_definitions || !schema.is_object()) return;
  for (const char* keyword : {"$defs", "definitions"}) close_each(schema, keyword);
}

}  // namespace vitrine::chat
