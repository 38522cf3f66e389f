// SPDX-License-Identifier: Apache-2.0
#include "tag_fields.h"

#include <algorithm>

namespace vitrine::constrain {

void TagFields::refuse(const std::string& pointer, const std::string& what, ErrorKind kind) {
  throw Error(kind, "tags at '#" + pointer + "': " + what);
}

std::string TagFields::shown(std::string_view text) {
  return json_quote(text.substr(0, 60)) + (text.size() > 60 ? "…" : "");
}

void TagFields::check_keys(const JsonValue& json, const std::string& pointer,
                           std::initializer_list<std::string_view> known) {
  if (!json.is_object()) refuse(pointer, "expected an object");
  for (const std::string& key : json.keys) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known)
      names += (names.empty() ? "" : ", ") + std::string(name);
    refuse(pointer, "an unknown key " + shown(key) + "; expected some of " + names);
  }
}

const JsonValue& TagFields::member(const JsonValue& json, const std::string& pointer,
                                   std::string_view key) {
  const JsonValue* value = json.find(key);
  if (value == nullptr) refuse(pointer, "'" + std::string(key) + "' is missing");
  return *value;
}

const std::string& TagFields::text_of(const JsonValue& value, const std::string& pointer) {
  if (!value.is_string()) refuse(pointer, "expected a string");
  return value.text;
}

const std::string& TagFields::text_member(const JsonValue& json, const std::string& pointer,
                                          const std::string& key) {
  const JsonValue& value = member(json, pointer, key);
  if (value.is_object()) {
    refuse(pointer + "/" + key, "tokens are not supported; expected a string",
           ErrorKind::kUnsupported);
  }
  return text_of(value, pointer + "/" + key);
}

bool TagFields::flag(const JsonValue& json, const std::string& pointer, const std::string& key,
                     bool fallback) {
  const JsonValue* value = json.find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) refuse(pointer + "/" + key, "expected true or false");
  return value->type == JsonValue::kTrue;
}

const std::vector<JsonValue>& TagFields::list_of(const JsonValue& json, const std::string& pointer,
                                                 const std::string& key) {
  const JsonValue& value = member(json, pointer, key);
  if (!value.is_array() || value.items.empty()) {
    refuse(pointer + "/" + key, "expected a list that is not empty");
  }
  return value.items;
}

Texts TagFields::texts_of(const JsonValue& json, const std::string& pointer,
                          const std::string& key) {
  const JsonValue* value = json.find(key);
  Texts out;
  if (value == nullptr) return out;
  if (!value->is_array()) refuse(pointer + "/" + key, "expected a list of strings");
  for (size_t i = 0; i < value->items.size(); ++i) {
    const std::string place = pointer + "/" + key + "/" + std::to_string(i);
    out.push_back(text_of(value->items[i], place));
    if (out.back().empty()) refuse(place, "expected a string that is not empty");
  }
  return out;
}

int64_t TagFields::number_of(const JsonValue& value, const std::string& pointer) {
  const std::string& digits = value.text;
  if (value.type == JsonValue::kNumber && digits == "-1") return -1;
  if (value.type != JsonValue::kNumber || digits.size() > 9 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    refuse(pointer, "expected a whole number");
  }
  return std::stoll(digits);
}

}  // namespace vitrine::constrain
