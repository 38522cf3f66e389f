// Private to the room: text from files, made fit for one-line messages, and guarded JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "vitrine/core.h"

namespace vitrine::checkpoint {

/// `text` in single quotes, control characters and quotes escaped, cut after 120 bytes.
std::string quote_text(std::string_view text);

/// "[8, 128, 64]", cut after 16 extents.
std::string shape_text(const std::vector<int64_t>& shape);

/// What a JSON value is, for messages: the value itself where it is short, else its type.
std::string found_text(const nlohmann::json& value);

[[noreturn]] void throw_bad_file(const std::string& message);
[[noreturn]] void throw_unsupported(const std::string& message);

/// Parses a JSON object. Throws kBadFile (naming `file` and the byte) for invalid JSON, another
/// type at the top, a nesting deeper than 64 levels, or a key given twice in one object.
nlohmann::json parse_json_object(std::string_view text, const std::string& file);

}  // namespace vitrine::checkpoint
