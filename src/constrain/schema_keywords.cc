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
  if (decimal->integer.size() > 9) return 1U << 31;
  return static_cast<uint32_t>(std::stoul(decimal->integer));
}

void SchemaSet::load_object(Schema& schema, const JsonValue& json, const std::string& base,
                            SchemaDialect dialect) {
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
    return load_member(place, value, name, base, dialect);
  };
  if (const JsonValue* value = members("properties")) {
    std::map<std::string, SchemaId> sorted;
    for (size_t i = 0; i < value->keys.size(); ++i) {
      sorted[value->keys[i]] = member_of("properties", value->keys[i], value->items[i]);
    }
    schema.properties.assign(sorted.begin(), sorted.end());
  }
  if (const JsonValue* value = members("patternProperties")) {
    for (size_t i = 0; i < value->keys.size(); ++i) {
      const NodeId node = pattern(value->keys[i], pointer + "/patternProperties");
      schema.patterns.emplace_back(node,
                                   member_of("patternProperties", value->keys[i], value->items[i]));
    }
  }
  if (const JsonValue* value = json.find("additionalProperties")) {
    schema.additional = load_member(schema, *value, "additionalProperties", base, dialect);
  }
  if (const JsonValue* value = json.find("propertyNames")) {
    schema.property_names = load_member(schema, *value, "propertyNames", base, dialect);
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
      } else if (item.is_string()) {  // draft 3's spelling of a list of one
        schema.dependent_required.emplace_back(value->keys[i], std::vector{item.text});
      } else {
        schema.dependent_schemas.emplace_back(value->keys[i], member_of(key, value->keys[i], item));
      }
    }
  }
}

void SchemaSet::load_array(Schema& schema, const JsonValue& json, const std::string& base,
                           SchemaDialect dialect) {
  const std::string& pointer = schema.pointer;
  const JsonValue* prefix =
      dialect < SchemaDialect::kDraft2020 ? nullptr : json.find("prefixItems");
  const JsonValue* items = json.find("items");
  if (prefix) schema.prefix = load_list(schema, *prefix, "prefixItems", base, dialect);
  if (items && items->is_array()) {
    // Until 2019-09 a list is what prefixItems is since; additionalItems says what follows.
    if (!prefix) schema.prefix = load_list(schema, *items, "items", base, dialect);
    if (const JsonValue* rest = json.find("additionalItems")) {
      schema.items = load_member(schema, *rest, "additionalItems", base, dialect);
    }
  } else if (items) {
    schema.items = load_member(schema, *items, "items", base, dialect);
  }
  schema.min_items = read_count(json, "minItems", pointer, 0);
  schema.max_items = read_count(json, "maxItems", pointer, kUnbounded);
  const JsonValue* unique = json.find("uniqueItems");
  schema.unique = unique && unique->type == JsonValue::kTrue;
  if (const JsonValue* value = json.find("contains")) {
    schema.contains = load_member(schema, *value, "contains", base, dialect);
    if (dialect >= SchemaDialect::kDraft2019) {
      schema.min_contains = read_count(json, "minContains", pointer, 1);
      schema.max_contains = read_count(json, "maxContains", pointer, kUnbounded);
    }
  }
}

void SchemaSet::load_applicators(Schema& schema, const JsonValue& json, const std::string& base,
                                 SchemaDialect dialect) {
  if (const JsonValue* list = json.find("allOf")) {
    const auto more = load_list(schema, *list, "allOf", base, dialect);
    schema.all_of.insert(schema.all_of.end(), more.begin(), more.end());
  }
  if (const JsonValue* list = json.find("anyOf")) {
    schema.any_of = load_list(schema, *list, "anyOf", base, dialect);
    schema.has_any_of = true;
  }
  if (const JsonValue* list = json.find("oneOf")) {
    schema.one_of = load_list(schema, *list, "oneOf", base, dialect);
    schema.has_one_of = true;
  }
  if (const JsonValue* value = json.find("not")) {
    schema.negated = load_member(schema, *value, "not", base, dialect);
  }
  const JsonValue* condition = dialect < SchemaDialect::kDraft7 ? nullptr : json.find("if");
  if (!condition) return;
  schema.condition = load_member(schema, *condition, "if", base, dialect);
  schema.then_schema = schema.else_schema = kTrueSchema;
  if (const JsonValue* value = json.find("then")) {
    schema.then_schema = load_member(schema, *value, "then", base, dialect);
  }
  if (const JsonValue* value = json.find("else")) {
    schema.else_schema = load_member(schema, *value, "else", base, dialect);
  }
}

namespace {

std::string unescape_fragment(std::string_view fragment) {
  std::string out;
  for (size_t i = 0; i < fragment.size(); ++i) {
    const auto hex = [](char c) {
      return c >= '0' && c <= '9'                 ? c - '0'
             : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                  : -1;
    };
    if (fragment[i] == '%' && i + 2 < fragment.size() && hex(fragment[i + 1]) >= 0 &&
        hex(fragment[i + 2]) >= 0) {
      out += static_cast<char>(hex(fragment[i + 1]) << 4 | hex(fragment[i + 2]));
      i += 2;
    } else {
      out += fragment[i];
    }
  }
  return out;
}

/// Where a JSON pointer leads; null where nowhere.
const JsonValue* follow(const JsonValue* at, std::string_view pointer) {
  while (at && !pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    pointer.remove_prefix(1);
    std::string_view raw = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(raw.size());
    std::string token;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] == '~' && i + 1 < raw.size()) {
        token += raw[++i] == '1' ? '/' : '~';
      } else {
        token += raw[i];
      }
    }
    if (at->is_array()) {
      size_t index = 0;
      if (token.empty() || token.size() > 9 ||
          token.find_first_not_of("0123456789") != std::string::npos)
        return nullptr;
      index = std::stoul(token);
      at = index < at->items.size() ? &at->items[index] : nullptr;
    } else {
      at = at->find(token);
    }
  }
  return at;
}

}  // namespace

SchemaId SchemaSet::resolve(const std::string& reference, const std::string& base,
                            const std::string& pointer) {
  const std::string whole = resolve_uri(base, reference);
  const size_t hash = whole.find('#');
  const std::string document = whole.substr(0, hash);
  const std::string fragment =
      hash == std::string::npos ? "" : unescape_fragment(std::string_view(whole).substr(hash + 1));
  Target target{&document_, "", base, options_.dialect};
  if (const JsonValue* uri = document_.find("$schema"); uri && uri->is_string()) {
    for (const auto& [name, dialect] : {std::pair{"draft-04", SchemaDialect::kDraft4},
                                        {"draft-06", SchemaDialect::kDraft6},
                                        {"draft-07", SchemaDialect::kDraft7},
                                        {"2019-09", SchemaDialect::kDraft2019},
                                        {"2020-12", SchemaDialect::kDraft2020}}) {
      if (uri->text.find(name) != std::string::npos) target.dialect = dialect;
    }
  }
  if (const auto found = ids_.find(whole); found != ids_.end()) {
    return load(*found->second.json, found->second.pointer, found->second.base,
                found->second.dialect);
  }
  const auto found = ids_.find(document);
  if (found != ids_.end()) {
    target = found->second;
  } else if (!(document == base || reference.starts_with('#'))) {
    unsupported(pointer, "a reference to another document ('" + reference + "')");
  }
  const JsonValue* json = follow(target.json, fragment);
  if (!json && reference.starts_with('#')) {  // a pointer from the whole document's root
    target.json = &document_;
    target.pointer.clear();
    json = follow(target.json, fragment);
  }
  if (!json) malformed(pointer, "the reference '" + reference + "' leads nowhere");
  return load(*json, target.pointer + fragment, target.base, target.dialect);
}

void SchemaSet::collect_ids(const JsonValue& json, const std::string& pointer,
                            const std::string& outer, SchemaDialect dialect) {
  std::string base = outer;
  if (json.is_object()) {
    const bool old = dialect < SchemaDialect::kDraft2019;
    const char* key = dialect == SchemaDialect::kDraft4 ? "id" : "$id";
    const JsonValue* id = json.find(key);
    if (id && id->is_string() && !(old && json.find("$ref"))) {
      std::string whole = resolve_uri(outer, id->text);
      if (old && id->text.starts_with('#')) {
        ids_.try_emplace(whole, Target{&json, pointer, outer, dialect});
      } else {
        if (whole.ends_with('#')) whole.pop_back();
        base = whole;
        ids_.try_emplace(base, Target{&json, pointer, base, dialect});
      }
    }
    const JsonValue* anchor = old ? nullptr : json.find("$anchor");
    if (!anchor && !old) anchor = json.find("$dynamicAnchor");
    if (anchor && anchor->is_string()) {
      ids_.try_emplace(base + "#" + anchor->text, Target{&json, pointer, base, dialect});
    }
  }
  for (size_t i = 0; i < json.items.size(); ++i) {
    const bool is_data = json.is_object() && (json.keys[i] == "enum" || json.keys[i] == "const");
    if (is_data || (!json.items[i].is_object() && !json.items[i].is_array())) continue;
    collect_ids(json.items[i],
                pointer + "/" + (json.is_object() ? json.keys[i] : std::to_string(i)), base,
                dialect);
  }
}

std::string resolve_uri(std::string_view base, std::string_view reference) {
  const auto scheme_end = [](std::string_view uri) {
    const size_t colon = uri.find(':');
    return colon != std::string_view::npos && uri.find_first_of("/?#") > colon ? colon + 1 : 0;
  };
  if (scheme_end(reference) > 0) return std::string(reference);
  base = base.substr(0, base.find('#'));
  if (reference.empty() || reference[0] == '#') return std::string(base) + std::string(reference);
  const size_t scheme = scheme_end(base);
  size_t path = scheme;
  if (base.substr(scheme).starts_with("//")) {
    path = std::min(base.find('/', scheme + 2), base.size());
  }
  if (reference.starts_with("//"))
    return std::string(base.substr(0, scheme)) + std::string(reference);
  if (reference[0] == '/') return std::string(base.substr(0, path)) + std::string(reference);
  const size_t slash = base.rfind('/');
  if (slash == std::string_view::npos || slash < path) {
    const bool has_authority = path > scheme;
    return std::string(base.substr(0, path)) + (has_authority ? "/" : "") + std::string(reference);
  }
  std::string out = std::string(base.substr(0, slash + 1)) + std::string(reference);
  // "a/b/../c" is "a/c", and "a/./b" is "a/b".
  for (size_t at; (at = out.find("/./")) != std::string::npos;) out.erase(at, 2);
  for (size_t at; (at = out.find("/../")) != std::string::npos && at > path;) {
    const size_t before = out.rfind('/', at - 1);
    if (before == std::string::npos || before < path) break;
    out.erase(before, at + 3 - before);
  }
  return out;
}

}  // namespace vitrine::constrain
