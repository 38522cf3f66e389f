// SPDX-License-Identifier: Apache-2.0
// Schemas of which some keyword cannot be kept exactly: compiled without it, and told.
#include "lenient.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxDropped = 100;
constexpr std::string_view kBegin = "schema at '#";

constexpr std::array kMaps = {"properties",  "patternProperties", "$defs",
                              "definitions", "dependentSchemas",  "dependencies"};
constexpr std::array kLists = {"allOf", "anyOf", "oneOf", "prefixItems"};
constexpr std::array kSchemas = {"additionalProperties",
                                 "items",
                                 "additionalItems",
                                 "then",
                                 "else",
                                 "propertyNames",
                                 "contains",
                                 "not",
                                 "if"};
/// What makes a schema hard, the likeliest first. None of these lets in less where it is missing,
/// but for patternProperties beside additionalProperties.
constexpr std::array kHard = {"not",
                              "if",
                              "uniqueItems",
                              "contains",
                              "dependentSchemas",
                              "dependencies",
                              "unevaluatedProperties",
                              "unevaluatedItems",
                              "dependentRequired",
                              "propertyNames",
                              "patternProperties",
                              "maxProperties",
                              "minProperties",
                              "multipleOf",
                              "pattern",
                              "anyOf"};

/// What tells which properties and items are evaluated: without one, unevaluatedProperties and
/// unevaluatedItems would let in less.
constexpr std::array kEvaluate = {
    "if",         "contains", "dependentSchemas", "dependencies",  "patternProperties",
    "properties", "items",    "prefixItems",      "allOf",         "anyOf",
    "$ref",       "then",     "$dynamicRef",      "$recursiveRef", "else"};

template <typename List>
bool is_in(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::vector<std::string> tokens_of(std::string_view pointer) {
  std::vector<std::string> out;
  for (size_t at = 0; at < pointer.size(); ++at) {
    if (pointer[at] == '/') {
      out.emplace_back();
    } else if (pointer[at] == '~' && at + 1 < pointer.size() && !out.empty()) {
      out.back() += pointer[++at] == '1' ? '/' : '~';
    } else if (!out.empty()) {
      out.back() += pointer[at];
    }
  }
  return out;
}

void remove(JsonValue& schema, std::string_view key) {
  for (size_t i = schema.keys.size(); i-- > 0;) {
    if (schema.keys[i] != key) continue;
    schema.keys.erase(schema.keys.begin() + static_cast<long>(i));
    schema.items.erase(schema.items.begin() + static_cast<long>(i));
  }
}

/// Takes one keyword out of a document; returns its pointer, or nothing where none is left to take.
class Weakener {
 public:
  explicit Weakener(JsonValue& document) : document_(document) {}

  std::optional<std::string> weaken(std::string_view pointer) {
    const std::vector<std::string> tokens = tokens_of(pointer);
    std::vector<std::pair<JsonValue*, std::string>> above = {{&document_, ""}};
    for (size_t i = 0; i < tokens.size();) {
      auto [schema, place] = above.back();
      const std::string& key = tokens[i];
      JsonValue* value = schema->is_object() ? const_cast<JsonValue*>(schema->find(key)) : nullptr;
      if (value == nullptr) break;
      // Within these, to let in more is to let in less outside.
      const bool is_negative = key == "not" || key == "if" || key == "oneOf" ||
                               (key == "contains" && schema->find("maxContains") != nullptr);
      if (is_negative) return take(*schema, place, key);
      const bool is_list = is_in(kLists, key) || (key == "items" && value->is_array());
      if (is_in(kMaps, key) || is_list) {
        if (i + 1 == tokens.size()) return take(*schema, place, key);
        JsonValue* inner = member(*value, tokens[i + 1]);
        if (inner == nullptr) break;
        above.emplace_back(inner, place + "/" + key + pointer_token(tokens[i + 1]));
        i += 2;
      } else if (is_in(kSchemas, key)) {
        above.emplace_back(value, place + "/" + key);
        ++i;
      } else {
        return take(*schema, place, key);
      }
    }
    for (size_t i = above.size(); i-- > 0;) {
      seen_.clear();
      if (auto taken = take_hard(*above[i].first, above[i].second)) return taken;
    }
    for (; !above.empty(); above.pop_back()) {  // what combines, as a whole
      auto [schema, place] = above.back();
      for (const char* key : {"allOf", "$ref", "$dynamicRef", "$recursiveRef", "properties",
                              "items", "prefixItems", "enum", "const"}) {
        if (schema->find(key) == nullptr) continue;
        return take(*schema, place, key);
      }
    }
    return {};
  }

 private:
  /// The likeliest cause in a schema and in those that hold at the same place.
  std::optional<std::string> take_hard(JsonValue& schema, const std::string& place) {
    if (!schema.is_object() || !seen_.insert(&schema).second) return {};
    if (schema.find("oneOf") != nullptr) return take(schema, place, "oneOf");
    for (const char* key : kHard) {
      if (key != std::string_view("anyOf") && schema.find(key) != nullptr) {
        return take(schema, place, key);
      }
    }
    for (const char* key : {"allOf", "anyOf"}) {
      auto* list = const_cast<JsonValue*>(schema.find(key));
      for (size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
        auto taken = take_hard(list->items[i], place + "/" + key + "/" + std::to_string(i));
        if (taken) return taken;
      }
    }
    const JsonValue* reference = schema.find("$ref");
    if (reference != nullptr && reference->is_string() && reference->text.starts_with("#/")) {
      JsonValue* at = &document_;
      for (const std::string& token : tokens_of(reference->text.substr(1))) {
        if (at != nullptr) at = member(*at, token);
      }
      if (at != nullptr) {
        if (auto taken = take_hard(*at, reference->text.substr(1))) return taken;
      }
    }
    if (schema.find("anyOf") != nullptr) return take(schema, place, "anyOf");
    return {};
  }
  static JsonValue* member(JsonValue& value, const std::string& token) {
    if (value.is_object()) return const_cast<JsonValue*>(value.find(token));
    if (token.empty() || token.size() > 6 ||
        token.find_first_not_of("0123456789") != std::string::npos) {
      return nullptr;
    }
    const size_t index = std::stoul(token);
    return index < value.items.size() ? &value.items[index] : nullptr;
  }
  /// The first of these keywords in what is no negation; it goes before what it counts on.
  static std::optional<std::string> take_unevaluated(JsonValue& schema, const std::string& place) {
    for (const char* key : {"unevaluatedProperties", "unevaluatedItems"}) {
      if (schema.find(key) == nullptr) continue;
      remove(schema, key);
      return place + pointer_token(key);
    }
    for (size_t i = 0; i < schema.keys.size(); ++i) {
      const std::string& key = schema.keys[i];
      if (key == "not" || key == "if" || key == "oneOf") continue;
      JsonValue& value = schema.items[i];
      const std::string inside = place + pointer_token(key);
      if (is_in(kSchemas, key) && value.is_object()) {
        if (auto taken = take_unevaluated(value, inside)) return taken;
      }
      const bool is_map = is_in(kMaps, key) && value.is_object();
      if (!is_map && !(value.is_array() && (is_in(kLists, key) || key == "items"))) continue;
      for (size_t k = 0; k < value.items.size(); ++k) {
        const std::string token = is_map ? value.keys[k] : std::to_string(k);
        if (!value.items[k].is_object()) continue;
        if (auto taken = take_unevaluated(value.items[k], inside + pointer_token(token))) {
          return taken;
        }
      }
    }
    return {};
  }
  std::string take(JsonValue& schema, const std::string& place, const std::string& key) {
    const std::string pointer = place + pointer_token(key);
    if (is_in(kEvaluate, key) || (key == "oneOf" && schema.find("anyOf") != nullptr)) {
      if (auto first = take_unevaluated(document_, "")) return *first;
    }
    if (key == "oneOf" && schema.find("anyOf") == nullptr) {  // at least one is what is left of it
      std::replace(schema.keys.begin(), schema.keys.end(), key, std::string("anyOf"));
      return pointer;
    }
    remove(schema, key);
    if (key == "properties" || key == "patternProperties") {  // its keys count as others then
      remove(schema, "additionalProperties");
    }
    return pointer;
  }

  JsonValue& document_;
  std::set<const JsonValue*> seen_;
};

}  // namespace

std::unique_ptr<JsonGrammar> make_json_grammar(std::string_view schema,
                                               const SchemaOptions& options,
                                               const std::string& place,
                                               std::vector<Weakening>& weakened) {
  if (!options.lenient) return std::make_unique<JsonGrammar>(schema, options);
  std::string text(schema);
  for (size_t dropped = 0;; ++dropped) {
    try {
      return std::make_unique<JsonGrammar>(text, options);
    } catch (const Error& error) {
      const std::string_view what = error.what();
      const size_t end = what.find("': ");
      if (error.kind() != ErrorKind::kUnsupported || !what.starts_with(kBegin) ||
          end == std::string_view::npos || dropped == kMaxDropped ||
          what.find("nothing is valid") != std::string_view::npos) {
        throw;
      }
      JsonValue document = parse_json(text);
      const auto pointer =
          Weakener(document).weaken(what.substr(kBegin.size(), end - kBegin.size()));
      if (!pointer) throw;
      weakened.push_back({place + *pointer, std::string(what.substr(end + 3))});
      text = write_json(document);
    }
  }
}

}  // namespace vitrine::constrain
