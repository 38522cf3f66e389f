// SPDX-License-Identifier: Apache-2.0
#include "http/dialect.h"

#include <utility>

#include "core/json_text.h"

namespace vitrine::http {

namespace {

// Gives the other interface's name to the field that a message begins with.
std::string rename_field(const std::string& message, const FieldNames& names) {
  const size_t end = message.starts_with('\'') ? message.find('\'', 1) : std::string::npos;
  if (end == std::string::npos) return message;
  const std::string field = message.substr(1, end - 1);
  const size_t stem = std::min(field.find_first_of(".["), field.size());
  const auto found = names.find(field.substr(0, stem));
  if (found == names.end()) return message;
  return "'" + found->second + field.substr(stem) + message.substr(end);
}

}  // namespace

std::optional<Json> parse_json(std::string_view text) {
  try {
    check_json(text, "the body", kMostJsonValues, kMostJsonKeys);
  } catch (const Error&) {
    return std::nullopt;
  }
  return Json::parse(text);
}

Json parse_body(std::string_view body) {
  Json parsed = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    throw HttpError(400,
                    "the body is no JSON object; expected one of UTF-8, with each key once and at "
                    "most 64 levels");
  }
  return parsed;
}

void refuse_value(const std::string& place, const Json& found, std::string_view expected) {
  constexpr size_t kMostShown = 60;
  std::string shown = found.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "…";
  throw HttpError({.status = 400,
                   .type = failure_type(400),
                   .message = "'" + place + "' is " + shown + "; expected " + std::string(expected),
                   .param = place});
}

const Json* find_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string read_text(const Json& object, const std::string& place, const char* name) {
  const Json* found = find_field(object, name);
  if (found == nullptr || !found->is_string()) {
    refuse_value(place + "." + name, found == nullptr ? Json(nullptr) : *found, "a text");
  }
  return found->get<std::string>();
}

std::string read_type(const Json& object, const std::string& place, std::string_view standard) {
  if (!object.is_object()) refuse_value(place, object, "an object with a 'type'");
  if (find_field(object, "type") == nullptr && !standard.empty()) return std::string(standard);
  return read_text(object, place, "type");
}

std::string item_place(const std::string& place, size_t index) {
  return place + "[" + std::to_string(index) + "]";
}

void add_text(Json& message, const std::string& text) {
  message["content"].push_back({{"type", "text"}, {"text", text}});
}

void copy_shared_fields(const Json& body, Json& chat) {
  for (const char* name : {"model",
                           "stream",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "typical_p",
                           "top_n_sigma",
                           "xtc_probability",
                           "xtc_threshold",
                           "repetition_penalty",
                           "frequency_penalty",
                           "presence_penalty",
                           "dry_multiplier",
                           "dry_base",
                           "dry_allowed_length",
                           "seed",
                           "logit_bias",
                           "stop_token_ids",
                           "ignore_eos",
                           "priority",
                           "cache_prompt",
                           "chat_template_kwargs"}) {
    if (const Json* found = find_field(body, name)) chat[name] = *found;
  }
}

void set_template_variable(Json& chat, const char* name, const Json& value) {
  Json& variables = chat["chat_template_kwargs"];
  if (variables.is_null()) variables = Json::object();
  if (variables.is_object() && !variables.contains(name)) variables[name] = value;
}

OpenAiRequest read_chat(const Json& chat, const FieldNames& names) {
  try {
    return read_openai_request(OpenAiRoute::kChatCompletions, dump(chat));
  } catch (const Error& error) {
    throw Error(error.kind(), rename_field(error.what(), names));
  }
}

}  // namespace vitrine::http
