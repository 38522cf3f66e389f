// SPDX-License-Identifier: Apache-2.0
// Keywords of objects, arrays and combinations.
#include <algorithm>

#include "schema.h"
#include "schema_fields.h"

namespace vitrine::constrain {

uint32_t read_count(const JsonValue& json, const char* key, const std::string& pointer,
                    uint32_t fallback) {
  const JsonValue* value = json.find(key);
  if (!value) return fallback;
  const auto decimal =
      value->type == JsonValue::kNumber ? parse_decimal(value->text) : std::nullopt;
  if (!decimal || decimal->negative || !decimal->fraction.empty()) {
    malformed(pointer + "/" + key, "expected a whole number from 0");
  }
  constexpr uint64_t kMaxCount = 4'000'000'000;
  if (decimal->integer.size() > 10) return kMaxCount;
  return static_cast<uint32_t>(std::min<uint64_t>(kMaxCount, std::stoull(decimal->integer)));
}

void SchemaSet::load_object(Schema& schema, const JsonValue& json, const Context& at) {
  const std::string& pointer = schema.pointer;
  const auto members = [&](const char* key) -> const JsonValue* {
    const JsonValue* value = json.find(key);
    if (value && !value->is_object()) malformed(pointer + "/" + key, "expected an object");
    return value;
  };
  const auto names = [&](const JsonValue& list, const std::string& where) {
    std::vector<std::string> out;
    if (!list.is_array()) malformed(where, "expected a list of names");
    for (const JsonValue& name : list.items) {
      if (!name.is_string()) malformed(where, "expected a list of names");
      out.push_back(name.text);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  };
  const auto member_of = [&](const char* key, const std::string& name, const JsonValue& value) {
    Schema place;
    place.pointer = pointer + "/" + key;
    return load_member(place, value, name, at);
  };
  if (const JsonValue* value = members("properties")) {
    std::map<std::string, SchemaId> sorted;
    for (size_t i = 0; i < value->keys.size(); ++i) {
      sorted[value->keys[i]] = member_of("properties", value->keys[i], value->items[i]);
    }
    schema.properties.assign(sorted.begin(), sorted.end());
    schema.members = value;
  }
  if (const JsonValue* value = members("patternProperties")) {
    for (size_t i = 0; i < value->keys.size(); ++i) {
      const NodeId node = pattern(value->keys[i], pointer + "/patternProperties");
      schema.patterns.emplace_back(node,
                                   member_of("patternProperties", value->keys[i], value->items[i]));
    }
  }
  if (const JsonValue* value = json.find("additionalProperties")) {
    schema.additional = load_member(schema, *value, "additionalProperties", at);
  }
  if (const JsonValue* value = json.find("propertyNames")) {
    schema.property_names = load_member(schema, *value, "propertyNames", at);
  }
  // A boolean `required` is draft 3's, on the property itself; later drafts know no such thing.
  if (const JsonValue* value = json.find("required"); value && !value->is_bool()) {
    schema.required = names(*value, pointer + "/required");
  }
  schema.min_properties = read_count(json, "minProperties", pointer, 0);
  schema.max_properties = read_count(json, "maxProperties", pointer, kUnbounded);
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const JsonValue* value = members(key);
    if (!value) continue;
    for (size_t i = 0; i < value->keys.size(); ++i) {
      const JsonValue& item = value->items[i];
      const std::string where = pointer + "/" + key;
      if (item.is_array()) {
        schema.dependent_required.emplace_back(value->keys[i], names(item, where));
      } else if (item.is_string() && value == json.find("dependencies")) {
        // Draft 3's spelling of a list of one.
        schema.dependent_required.emplace_back(value->keys[i], std::vector{item.text});
      } else {
        schema.dependent_schemas.emplace_back(value->keys[i], member_of(key, value->keys[i], item));
      }
    }
  }
}

void SchemaSet::load_array(Schema& schema, const JsonValue& json, const Context& at) {
  const std::string& pointer = schema.pointer;
  const JsonValue* prefix =
      at.dialect < SchemaDialect::kDraft2020 ? nullptr : json.find("prefixItems");
  const JsonValue* items = json.find("items");
  if (prefix) schema.prefix = load_list(schema, *prefix, "prefixItems", at);
  if (items && items->is_array()) {
    // Until 2019-09 a list is what prefixItems is since; additionalItems says what follows.
    if (!prefix) schema.prefix = load_list(schema, *items, "items", at);
    if (const JsonValue* rest = json.find("additionalItems")) {
      schema.items = load_member(schema, *rest, "additionalItems", at);
    }
  } else if (items) {
    schema.items = load_member(schema, *items, "items", at);
  }
  schema.min_items = read_count(json, "minItems", pointer, 0);
  schema.max_items = read_count(json, "maxItems", pointer, kUnbounded);
  const JsonValue* unique = json.find("uniqueItems");
  if (unique && !unique->is_bool()) malformed(pointer + "/uniqueItems", "expected true or false");
  schema.unique = unique && unique->type == JsonValue::kTrue;
  if (const JsonValue* value = json.find("contains")) {
    schema.contains = load_member(schema, *value, "contains", at);
    schema.contains_evaluates = at.dialect != SchemaDialect::kDraft2019;
    if (at.dialect >= SchemaDialect::kDraft2019) {
      schema.min_contains = read_count(json, "minContains", pointer, 1);
      schema.max_contains = read_count(json, "maxContains", pointer, kUnbounded);
    }
  }
}

void SchemaSet::load_applicators(Schema& schema, const JsonValue& json, const Context& at) {
  for (const char* key : {"allOf", "anyOf", "oneOf"}) {
    const JsonValue* list = json.find(key);
    if (list && list->is_array() && list->items.empty()) {
      malformed(schema.pointer + "/" + key, "expected a list that is not empty");
    }
  }
  if (const JsonValue* list = json.find("allOf")) {
    const auto more = load_list(schema, *list, "allOf", at);
    schema.all_of.insert(schema.all_of.end(), more.begin(), more.end());
  }
  if (const JsonValue* list = json.find("anyOf")) {
    schema.any_of = load_list(schema, *list, "anyOf", at);
    schema.has_any_of = true;
  }
  if (const JsonValue* list = json.find("oneOf")) {
    schema.one_of = load_list(schema, *list, "oneOf", at);
    schema.has_one_of = true;
  }
  if (const JsonValue* value = json.find("not")) {
    schema.negated = load_member(schema, *value, "not", at);
  }
  const JsonValue* condition = at.dialect < SchemaDialect::kDraft7 ? nullptr : json.find("if");
  if (!condition) return;
  schema.condition = load_member(schema, *condition, "if", at);
  schema.then_schema = schema.else_schema = kTrueSchema;
  if (const JsonValue* value = json.find("then")) {
    schema.then_schema = load_member(schema, *value, "then", at);
  }
  if (const JsonValue* value = json.find("else")) {
    schema.else_schema = load_member(schema, *value, "else", at);
  }
}

void SchemaSet::load_unevaluated(Schema& schema, const JsonValue& json, const Context& at) {
  if (const JsonValue* value = json.find("unevaluatedProperties")) {
    schema.unevaluated_properties = load_member(schema, *value, "unevaluatedProperties", at);
  }
  if (const JsonValue* value = json.find("unevaluatedItems")) {
    schema.unevaluated_items = load_member(schema, *value, "unevaluatedItems", at);
  }
}

}  // namespace vitrine::constrain
