// SPDX-License-Identifier: Apache-2.0
// How bodies of other interfaces are read: each is written as a body of chat completions, which the
// library reads.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "http/message.h"
#include "vitrine/openai.h"

namespace vitrine::http {

/// Parses JSON from outside. Nothing for a text that is none, that nests deeper than 64 levels, or
/// that gives a key twice in one object.
std::optional<Json> parse_json(std::string_view text);
/// Parses a body, an object, that was looked through before (check_json). Throws HttpError (400).
Json parse_body(std::string_view body);

/// Throws HttpError (400): "'place' is FOUND; expected EXPECTED".
[[noreturn]] void refuse_value(const std::string& place, const Json& found,
                               std::string_view expected);

/// Null where the object has no such field, or null there.
const Json* find_field(const Json& object, const char* name);
/// The object's field as a text. Throws HttpError (400) where it is none, or is not there.
std::string read_text(const Json& object, const std::string& place, const char* name);
/// The object's field "type", or `standard` where it has none. Throws HttpError (400) where the
/// value is no object, or the type no text.
std::string read_type(const Json& object, const std::string& place, std::string_view standard = {});
/// "place[index]".
std::string item_place(const std::string& place, size_t index);

/// Gives a chat's message a text part more; `message["content"]` is a list of parts then.
void add_text(Json& message, const std::string& text);
/// Copies the fields that all interfaces here share: how tokens are chosen, and what is Vitrine's
/// own.
void copy_shared_fields(const Json& body, Json& chat);
/// Adds a variable of the chat template; what the body says of it itself stays.
void set_template_variable(Json& chat, const char* name, const Json& value);

/// Names of fields of chat completions, and what the other interface calls them.
using FieldNames = std::map<std::string, std::string>;
/// Reads a body of chat completions. Errors name the other interface's fields.
OpenAiRequest read_chat(const Json& chat, const FieldNames& names);

}  // namespace vitrine::http
