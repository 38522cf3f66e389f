// SPDX-License-Identifier: Apache-2.0
// Private to the library: JSON from outside, parsed within bounds, and made fit for one-line
// messages.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace vitrine {

/// `text` in single quotes, control characters and quotes escaped, cut after 120 bytes.
std::string quote_text(std::string_view text);

/// What a JSON value is, for messages: the value itself where it is short, else its type.
std::string found_text(const nlohmann::json& value);

/// Parses a JSON object. Throws kBadFile (naming `file` and the byte) for invalid JSON, another
/// type at the top, a nesting deeper than 64 levels, a key given twice in one object, or more than
/// `max_values` values (an object or a list counts twice).
nlohmann::json parse_json_object(std::string_view text, const std::string& file,
                                 size_t max_values = std::numeric_limits<size_t>::max());

}  // namespace vitrine
